"""The address of a RabbitMQ: every form is understood or refused with a sentence, and none shows a password."""

import ssl
import subprocess
import traceback
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carom.brokers.rabbitmq.address import Address, Tls, parse, read
from carom.errors import ConfigurationError

SECRET = "s3cr3t-W0rd"  # noqa: S105 - of nobody


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://", Address((("localhost", 5672),))),
        ("amqp:///", Address((("localhost", 5672),))),
        ("amqp://rabbit", Address((("rabbit", 5672),))),
        ("amqp://rabbit:5673/", Address((("rabbit", 5673),))),
        ("amqp://u:p@rabbit", Address((("rabbit", 5672),), "u", "p")),
        ("amqp://u:p@/shop", Address((("localhost", 5672),), "u", "p", "shop")),
        ("amqp://u@rabbit", Address((("rabbit", 5672),), "u", "")),
        ("amqp://:p@rabbit", Address((("rabbit", 5672),), "", "p")),
        ("amqp://u:p@a,b:5673,c/", Address((("a", 5672), ("b", 5673), ("c", 5672)), "u", "p")),
        ("amqp://a, b", Address((("a", 5672), ("b", 5672)))),
        ("amqp://[::1]", Address((("::1", 5672),))),
        ("amqp://[::1]:5673,[fe80::1%25eth0]", Address((("::1", 5673), ("fe80::1%25eth0", 5672)))),
        ("amqp://h/%2F", Address((("h", 5672),))),
        ("amqp://h/a%2Fb%20c", Address((("h", 5672),), vhost="a/b c")),
        ("amqp://u%40x:p%3A%2F%3F%23%40%25@h", Address((("h", 5672),), "u@x", "p:/?#@%")),
        ("amqp://u:p@ss@h", Address((("h", 5672),), "u", "p@ss")),
        ("amqp://u:a[b@h", Address((("h", 5672),), "u", "a[b")),
        ("amqp://u:a:b@h", Address((("h", 5672),), "u", "a:b")),
        ("AMQPS://h", Address((("h", 5671),), tls=Tls())),
        ("  amqp://h\n", Address((("h", 5672),))),
        ("amqp://h/?heartbeat=30", Address((("h", 5672),), heartbeat_s=30)),
        ("amqp://h?heartbeat=1500ms", Address((("h", 5672),), heartbeat_s=2)),
        ("amqp://h?heartbeat=0", Address((("h", 5672),), heartbeat_s=0)),
        (
            "amqp://h?timeout=2.5&confirm_timeout=1m",
            Address((("h", 5672),), timeout_ms=2500, confirm_timeout_ms=60_000),
        ),
        ("amqp://h?window=5&name=shop+1", Address((("h", 5672),), window=5, name="shop+1")),
        ("amqp://h?management=http://u:p@h:15672", Address((("h", 5672),), management="http://u:p@h:15672")),
        (
            "amqps://h?cafile=/a+b/ca.pem&certfile=c%20d.pem&keyfile=k&verify=no",
            Address((("h", 5671),), tls=Tls("/a+b/ca.pem", "c d.pem", "k", verify=False)),
        ),
    ],
)
def test_every_form_of_an_address_is_understood(url, expected):
    assert parse(url) == expected


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "begins with amqp://"),
        ("http://h", "begins with amqp://"),
        ("localhost:5672", "begins with amqp://"),
        ("amqp://h:0", "no port"),
        ("amqp://h:65536", "no port"),
        ("amqp://h:٣", "no port"),
        ("amqp://h:", "no port after it"),
        ("amqp://a,,b", "host without a name"),
        ("amqp://[::1", "in brackets"),
        ("amqp://[x", "host without a name"),
        ("amqp://::1", "in brackets"),
        ("amqp://h/a/b", "%2F"),
        ("amqp://h#x", "%23"),
        ("amqp://u:%ff@h", "not UTF-8"),
        ("amqp://h?heartbaet=1", "'heartbaet'; there are cafile,"),
        ("amqp://h?window=", "without a value"),
        ("amqp://h?window=1&window=2", "twice"),
        ("amqp://h?window=0", "no count"),
        ("amqp://h?window=²", "no count"),
        ("amqp://h?window=99999999999", "no count"),
        ("amqp://h?timeout=0", "no time"),
        ("amqp://h?timeout=²", "timeout=²"),
        ("amqp://h?timeout=soon", "'1m30s'"),
        ("amqp://h?confirm_timeout=-1", "confirm_timeout=-1"),
        ("amqp://h?heartbeat=1d", "the longest"),
        ("amqp://h?management=h:15672", "http://"),
        ("amqp://h?cafile=ca.pem", "say amqps://"),
        ("amqp://h?verify=no", "say amqps://"),
        ("amqps://h?verify=false", "yes or no"),
        ("amqps://h?keyfile=k", "no certfile"),
    ],
)
def test_what_is_not_understood_is_refused_with_a_sentence(url, words):
    with pytest.raises(ConfigurationError) as caught:
        parse(url)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"amqp://u:{SECRET}@h:x/",
        f"amqp://u:{SECRET}/x@h/",
        f"amqp://u:x/{SECRET}@h/",
        f"amqp://u:{SECRET}?x@h/",
        f"amqp://u:x?{SECRET}@h/",
        f"amqp://u:x?{SECRET}=y@h/",
        f"amqp://u:{SECRET}#x@h/",
        f"amqp://u:x#{SECRET}@h/",
        f"amqp://u:{SECRET}",
        f"amqp://u:{SECRET}@h/a/b",
        f"amqp://u:{SECRET}℀@h:x",
        f"amqp://u:{SECRET}%ff@h",
        f"amqp://u:{SECRET}@h?nothing=1",
        f"u:{SECRET}@h",
        f"redis://u:{SECRET}@h",
    ],
)
def test_a_refusal_never_shows_the_password(url):
    with pytest.raises(ConfigurationError) as caught:
        parse(url)
    assert SECRET not in "".join(traceback.format_exception(caught.value)).replace(f"parse({url!r})", "")


def test_no_form_of_an_address_shows_its_password():
    address = parse(f"amqp://u:{SECRET}@h/v%2Fw?management=http://x:{SECRET}@h")
    assert SECRET not in f"{address} {address!r} {address.tls!r}"
    assert str(address) == "amqp://u@h:5672/v%2Fw"


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_a_refusal(text):
    for url in (text, f"amqp://{text}", f"amqps://u:{text}@h/?{text}"):
        with suppress(ConfigurationError):
            assert isinstance(parse(url), Address)


@given(st.text(min_size=1, max_size=20), st.text(max_size=20), st.text(min_size=1, max_size=20))
def test_what_is_escaped_is_read_as_it_was(user, password, vhost):
    def escaped(text):
        return "".join(f"%{byte:02X}" for byte in text.encode())

    try:
        address = parse(f"amqp://{escaped(user)}:{escaped(password)}@h/{escaped(vhost)}")
    except UnicodeEncodeError:  # a lone surrogate has no bytes to escape
        return
    assert (address.user, address.password, address.vhost) == (user, password, vhost)


def test_files_that_are_none_are_a_refusal_that_names_them(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere\.pem"):
        Tls(cafile=str(tmp_path / "nowhere.pem")).context()
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(ConfigurationError, match=r"empty\.pem"):
        Tls(certfile=str(tmp_path / "empty.pem")).context()


def test_an_encrypted_key_is_refused_instead_of_asked_for_at_the_terminal(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-keyout", key, "-out", certificate]
    subprocess.run([*command, "-subj", "/CN=x", "-passout", "pass:x"], check=True, capture_output=True)
    with pytest.raises(ConfigurationError, match="must not be encrypted"):
        Tls(certfile=str(certificate), keyfile=str(key)).context()


def test_verification_is_on_unless_somebody_says_otherwise():
    assert Tls().context().verify_mode == ssl.CERT_REQUIRED
    assert Tls().context().check_hostname
    assert Tls(verify=False).context().verify_mode == ssl.CERT_NONE


def test_a_list_of_urls_is_one_cluster():
    urls = ["amqps://u:p@a/v?verify=no", "amqps://u:p@b:5672,c/v?verify=no", "amqps://u:p@a/v?verify=no"]
    assert read(urls) == parse("amqps://u:p@a,b:5672,c/v?verify=no")
    assert read(tuple(urls[:1])) == read(urls[0]) == parse(urls[0])


@pytest.mark.parametrize(
    ("urls", "words"),
    [
        ([f"amqp://u:{SECRET}@a/", "amqp://u:other@b/"], "in common"),
        ([f"amqp://u:{SECRET}@a/", f"amqp://u:{SECRET}@b/v"], "in common"),
        ([f"amqp://u:{SECRET}@a/", f"amqps://u:{SECRET}@b/"], "in common"),
        ([f"amqp://u:{SECRET}@a/", f"amqp://u:{SECRET}@b/?window=2"], "in common"),
        ([f"amqp://u:{SECRET}@a/", "embedded://"], "begins with amqp"),
        ([f"amqp://u:{SECRET}@a/", None], "list with the URL of each host"),
        ([], "list with the URL of each host"),
        (None, "NoneType"),
    ],
)
def test_a_list_that_is_no_cluster_is_refused_with_a_sentence(urls, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        read(urls)
    assert SECRET not in str(caught.value)
