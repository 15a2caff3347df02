"""Properties and headers: what is written is read again, by us and by the client library where that is right."""

import math
import struct
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import spec

from carom.brokers.rabbitmq.content import DEPTH_LIMIT, Seconds, decode, encode
from carom.core.message import Message, unwritable
from carom.errors import DecodeError

SHORT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
MOMENTS = st.integers(0, 253_402_300_799).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    SHORT,
    st.binary(max_size=40),
    MOMENTS,
    st.decimals(-(10**9), 10**9, places=3).filter(lambda value: abs(value) < 2_147_483),
    st.integers(253_402_300_800, 2**64 - 1).map(Seconds),
)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SHORT, inner, max_size=4))
MESSAGES = st.builds(
    Message,
    headers=st.dictionaries(SHORT, VALUES, max_size=6),
    id=SHORT,
    correlation_id=SHORT,
    content_type=SHORT,
    content_encoding=SHORT,
    type=SHORT,
    app_id=SHORT,
    reply_to=SHORT,
    user_id=SHORT,
    expiration=SHORT,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    priority=st.none() | st.integers(0, 255),
    delivery_mode=st.sampled_from([1, 2]),
)


def with_headers(value):
    return Message(headers={"h": value})


def again(message):
    return decode(encode(message), message.body, message.exchange, message.routing_key)


def properties_of_the_library(data):
    properties = spec.BasicProperties()
    properties.decode(data)
    return properties


@given(MESSAGES)
def test_what_is_written_is_read_again(message):
    assert again(message) == message
    assert encode(again(message)) == encode(message)


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        -0.0,
        5e-324,
        2**63 - 1,
        -(2**63),
        2**31,
        b"\xff\xfe",
        "\udcff",
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
        Seconds(1_628_906_112_000),  # in the year 53768: milliseconds where seconds belong
        Seconds(2**64 - 1),
        Decimal("0.001"),
        Decimal("-12.50"),
        Decimal(0),
        [[], {}, [None]],
    ],
)
def test_a_header_keeps_its_value_and_its_type(value):
    [found] = again(with_headers(value)).headers.values()
    assert found == value
    assert type(found) is type(value)
    assert encode(with_headers(found)) == encode(with_headers(value))


@given(MESSAGES.filter(lambda message: message.timestamp is None or message.timestamp < 2**32))
def test_the_library_reads_what_we_write_where_it_reads_right(message):
    headers = {
        key: value for key, value in message.headers.items() if isinstance(value, bool | int | str | bytes | None)
    }
    headers = {key: value for key, value in headers.items() if not isinstance(value, Seconds)}
    found = properties_of_the_library(encode(Message(headers=headers, id=message.id, priority=message.priority)))
    assert (found.headers or {}) == headers
    assert (found.message_id or "", found.priority, found.delivery_mode) == (message.id, message.priority, 2)


@given(st.dictionaries(SHORT, st.booleans() | st.integers(-(2**63), 2**63 - 1) | SHORT | st.binary() | MOMENTS))
def test_we_read_what_the_library_writes(headers):
    properties = pika.BasicProperties(headers=headers, message_id="7", timestamp=9, delivery_mode=2, type="t")
    found = decode(b"".join(properties.encode()), b"body", "exchange", "key")
    expected = {
        key: value.replace(tzinfo=UTC) if isinstance(value, datetime) else value for key, value in headers.items()
    }
    assert found == Message(
        headers=expected, id="7", timestamp=9, type="t", body=b"body", exchange="exchange", routing_key="key"
    )


@pytest.mark.parametrize(
    ("kind", "form", "value"),
    [
        ("b", ">b", -5),
        ("B", ">B", 250),
        ("s", ">h", -5),
        ("u", ">H", 65_000),
        ("I", ">i", -5),
        ("i", ">I", 4_000_000_000),
        ("l", ">q", -5),
        ("f", ">f", 0.5),
        ("d", ">d", 0.1),
        ("t", ">B", True),
    ],
)
def test_every_type_that_a_broker_knows_is_read(kind, form, value):
    entry = b"\x01h" + kind.encode() + struct.pack(form, value)
    data = struct.pack(">HI", 1 << 13, len(entry)) + entry
    assert decode(data, b"", "", "").headers == {"h": value}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, "RabbitMQ closes the connection"),
        (math.inf, "RabbitMQ closes the connection"),
        (2**63, "64 bits"),
        ([10**5000], "64 bits"),
        (datetime(1969, 12, 31, tzinfo=UTC), "before 1970"),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), "AMQP"),
        (Decimal("NaN"), "decimal"),
        (Decimal("sNaN"), "decimal"),
        (Decimal("Infinity"), "decimal"),
        (Decimal("1e11"), "too many digits"),
        (Decimal("1.0000000000000000000000000000000000000001"), "too many digits"),
        (Decimal(2**31), "too many digits"),
        (object(), "cannot hold a object"),
        ({1: 2}, "no form in AMQP"),
        ({"k" * 256: 1}, "255 bytes"),
        ("\ud800", "surrogates"),
    ],
)
def test_what_has_no_form_in_amqp_is_refused_with_a_reason(value, words):
    with pytest.raises(ValueError, match=words):
        encode(with_headers(value))
    assert unwritable(with_headers(value).headers), "and whoever publishes it is told before any broker is"


@pytest.mark.parametrize(
    "fields",
    [{"id": "x" * 256}, {"priority": 256}, {"priority": -1}, {"timestamp": -1}, {"timestamp": "now"}, {"type": 7}],
)
def test_a_property_that_does_not_fit_is_refused(fields):
    with pytest.raises(ValueError, match=r"AMQP|255 bytes"):
        encode(Message(**fields))


def test_nesting_has_the_same_limit_both_ways():
    value = "deep"
    for _ in range(DEPTH_LIMIT):
        value = [value]
    assert again(with_headers(value)).headers == {"h": value}
    with pytest.raises(ValueError, match="nested"):
        encode(with_headers([value]))
    endless = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested"):
        encode(with_headers(endless))


def test_headers_nested_beyond_the_limit_are_a_decode_error():
    for kind in (b"A", b"F"):
        inner = b""
        for _ in range(5_000):
            entry = (b"" if kind == b"A" else b"\x00") + (kind + struct.pack(">I", len(inner)) + inner)
            inner = entry
        table = b"\x01h" + inner if kind == b"A" else inner
        with pytest.raises(DecodeError, match="nested"):
            decode(struct.pack(">HI", 1 << 13, len(table)) + table, b"", "", "")


@given(st.binary(max_size=200))
def test_whatever_the_bytes_reading_ends(data):
    for prefix in (b"", b"\x20\x00", b"\xff\xfe", b"\xff\xff"):
        with suppress(DecodeError):
            assert isinstance(decode(prefix + data, b"", "", ""), Message)


@given(MESSAGES, st.data())
def test_a_property_list_that_was_cut_or_bent_is_read_or_refused(message, data):
    whole = bytearray(encode(message))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    for hostile in (bytes(whole), bytes(whole[:at])):
        with suppress(DecodeError):
            assert isinstance(decode(hostile, b"", "", ""), Message)
