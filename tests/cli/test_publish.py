"""``carom publish`` prints an id when the broker has the message, and says why when it has not."""

import json

import pytest
from cli_stage import SHOP, carom, real, taken

DATABASE = "shop.db"


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Go to a folder with the app, and return the file of its broker."""
    (tmp_path / "published_shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    return tmp_path / DATABASE


APP = ("--app", "published_shop:app")


def test_a_message_is_published_as_it_was_written(shop):
    found = carom("publish", "order.created", '{"id": 1}', *APP)
    assert found.exit_code == 0, found.output
    (message,) = taken(shop, "shop.charge")
    assert found.stdout == f"{message.id}\n"
    assert message.body == b'{"id": 1}'
    assert message.content_type == "application/json"
    assert message.correlation_id == message.id
    assert message.routing_key == "order.created"
    assert message.exchange == "shop"
    assert message.timestamp is not None


def test_everything_about_a_message_can_be_said(shop):
    found = carom(
        *("publish", "order.x", "\x00 not JSON", *APP, "--raw", "--id", "one", "--correlation-id", "two"),
        *("--header", "a=b=c", "--header", "d=", "--content-type", "text/plain"),
    )
    assert found.stdout == "one\n", found.output
    (message,) = taken(shop, "shop.charge")
    assert (message.id, message.correlation_id, message.content_type) == ("one", "two", "text/plain")
    assert message.headers == {"a": "b=c", "d": ""}
    assert message.body == b"\x00 not JSON"


def test_a_payload_comes_from_stdin_byte_for_byte(shop):
    body = b'\n["\xc3\xa9"]\n'
    assert carom("publish", "order.x", "-", *APP, stdin=body).exit_code == 0
    assert carom("publish", "order.x", "-", "--raw", *APP, stdin=b"\xff\x00").exit_code == 0
    first, second = taken(shop, "shop.charge")
    assert first.body == body
    assert (second.body, second.content_type) == (b"\xff\x00", "application/octet-stream")


def test_many_have_an_id_each(shop):
    found = carom("publish", "order.x", "1", *APP, "--count", "1234")
    ids = found.stdout.split()
    assert len(set(ids)) == 1234
    assert [message.id for message in taken(shop, "shop.charge")] == ids


def test_without_an_app_nothing_is_declared(shop):
    carom("publish", "order.x", "1", *APP)
    found = carom("publish", "order.x", "2", "--broker", f"embedded:///{DATABASE}", "--exchange", "shop", "--json")
    value = json.loads(found.stdout)
    assert value == {"schema": 1, "exchange": "shop", "routing_key": "order.x", "ids": value["ids"]}
    assert [message.body for message in taken(shop, "shop.charge")] == [b"1", b"2"]
    missing = carom("publish", "order.x", "3", "--broker", f"embedded:///{DATABASE}", "--exchange", "shpo")
    assert missing.exit_code == 1
    assert "no exchange 'shpo'" in missing.stderr


def test_a_message_nobody_wants_is_said_once_with_exit_code_1(shop):
    found = real("publish", "nobody.wants", "1", *APP, cwd=shop.parent)
    assert found.returncode == 1
    assert found.stdout == b""
    assert found.stderr.count(b"NO_ROUTE") == 1
    assert b"nobody.wants" in found.stderr
    many = carom("publish", "nobody.wants", "1", *APP, "--count", "3", "--json")
    assert many.exit_code == 1
    assert json.loads(many.stdout)["error"]["exit_code"] == 1


def test_a_part_that_was_not_taken_is_told_with_exit_code_3(shop):
    (shop.parent / "partial_shop.py").write_text(
        SHOP + "\nfrom dataclasses import replace\nnumbers = iter(range(9))\n@app.outgoing\ndef every_third(message):\n"
        "    return replace(message, routing_key='lost') if next(numbers) % 3 == 2 else message\n"
    )
    found = carom("publish", "order.x", "1", "--app", "partial_shop:app", "--count", "9", "--json")
    assert found.exit_code == 3
    value = json.loads(found.stdout)
    assert [message.id for message in taken(shop, "shop.charge")] == value["ids"]
    assert len(value["ids"]) == 6
    assert len(value["failed"]) == 3
    assert "6 messages were published" in found.stderr


def test_what_goes_out_is_seen_by_the_app(shop):
    (shop.parent / "stamping_shop.py").write_text(
        SHOP
        + "\nfrom dataclasses import replace\n@app.outgoing\ndef stamp(m):\n    return replace(m, headers={'s': 1})\n"
    )
    assert carom("publish", "order.x", "1", "--app", "stamping_shop:app").exit_code == 0
    assert [message.headers for message in taken(shop, "shop.charge")] == [{"s": 1}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("x", "not json", *APP), "--raw publishes bytes as they are"),
        (("x", "NaN", *APP), "not JSON"),
        (("x", "1"), "say where: --broker URL"),
        (("x", "1", "--broker", "embedded://"), "the memory of one process"),
        (("x", "1", *APP, "--id", "a", "--count", "2"), "--id names one message"),
        (("x", "1", *APP, "--header", "nothing"), "say NAME=VALUE"),
        (("x", "1", *APP, "--header", "=x"), "say NAME=VALUE"),
        (("x", "1", *APP, "--header", "a=1", "--header", "a=2"), "given twice"),
        (("x", "1", *APP, "--count", "0"), "0 is not in the range"),
        (("x", "1", *APP, "--timeout", "soon"), "not a duration"),
        (("x", "1", "--app", "published_shop"), "such as published_shop:app"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(arguments, said, shop):
    found = carom("publish", *arguments)
    assert found.exit_code == 2, found.output
    assert said in " ".join(found.stderr.split())
    assert found.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("x", "1", *APP, "--header", "carom-attempt=9"), "Carom's own"),
        (("x" * 256, "1", *APP), "at most 255 bytes"),
        (("x", "1", "--broker", "smoke://signals"), "no broker answers to"),
        (("x", "1", "--app", "published_shop:nope"), "it has published_shop:app"),
    ],
)
def test_what_cannot_be_is_a_configuration_error(arguments, said, shop):
    found = carom("publish", *arguments)
    assert found.exit_code == 78, found.output
    assert said in found.stderr


def test_a_broker_that_does_not_answer_is_exit_code_69_and_no_password_is_shown(tmp_path):
    found = carom("publish", "x", "1", "--broker", "amqp://ada:secret@127.0.0.1:1/", "--timeout", "0.5")
    assert found.exit_code == 69, found.output
    assert "secret" not in found.output
    assert "did not answer within 0.5 s" in found.stderr


def test_options_come_from_the_environment_and_secrets_from_files(shop):
    carom("publish", "order.x", "1", *APP)
    url = f"embedded:///{DATABASE}"
    assert carom("publish", "order.x", "2", CAROM_BROKER=url, CAROM_EXCHANGE="shop").exit_code == 0
    (shop.parent / "url").write_text(f"{url}\n")
    assert carom("publish", "order.x", "3", CAROM_BROKER_FILE="url", CAROM_EXCHANGE="shop").exit_code == 0
    assert len(taken(shop, "shop.charge")) == 3
    both = carom("publish", "order.x", "4", CAROM_BROKER=url, CAROM_BROKER_FILE="url")
    assert (both.exit_code, "which is meant?" in both.stderr) == (2, True)
    none = carom("publish", "order.x", "4", CAROM_BROKER_FILE="not-there")
    assert (none.exit_code, "cannot be read" in none.stderr) == (2, True)


def test_what_is_said_on_the_command_line_wins(shop):
    found = carom("publish", "order.x", "1", *APP, CAROM_BROKER="smoke://signals")
    assert found.exit_code == 78
    found = carom(
        "publish", "order.x", "1", *APP, "--broker", f"embedded:///{DATABASE}", CAROM_BROKER="smoke://signals"
    )
    assert found.exit_code == 0
