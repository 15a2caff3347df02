"""A message as the columns of a row, and back: whatever AMQP can carry."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carom.core.message import Message
from carom.core.relaying import Entry
from carom.errors import ConfigurationError
from carom.stores.rows import CLAIMED, COLUMNS, row, values


def _is_utf8(name):
    try:
        return len(name.encode()) <= 255
    except UnicodeEncodeError:
        return False


NAMES = st.text(max_size=60).filter(lambda name: "\0" not in name).filter(_is_utf8)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(max_size=3).map(lambda data: data.decode("utf-8", "surrogateescape"))
    | st.binary()
    | st.datetimes(timezones=st.just(UTC))
    | st.decimals(allow_nan=False, allow_infinity=False, places=3)
)
KEYS = st.text(max_size=10) | st.sampled_from(["$bytes", "$time", "$decimal", "$map", "$"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))
MESSAGES = st.builds(
    Message,
    body=st.binary(),
    exchange=NAMES,
    routing_key=NAMES,
    id=NAMES,
    content_type=NAMES,
    correlation_id=st.text(),
    type=st.text(),
    expiration=st.text(),
    timestamp=st.none() | st.integers(0, 2**63),
    priority=st.none() | st.integers(0, 255),
    delivery_mode=st.sampled_from([1, 2]),
    headers=st.dictionaries(KEYS, VALUES, max_size=4),
)


def kept(message):
    """Write a message and read it again."""
    written = dict(zip(COLUMNS, values(Entry(message, "key")), strict=False))
    return row([{"seq": 7, "attempts": 3, **written}[name] for name in CLAIMED])


@given(MESSAGES)
def test_what_is_read_is_what_was_written(message):
    found = kept(message)
    assert found.message == message
    assert (found.seq, found.ordering_key, found.failures) == (7, "key", 3)


@given(MESSAGES)
def test_what_is_written_is_text_that_every_database_keeps(message):
    for text in values(Entry(message))[5:7]:
        assert "\0" not in text
        assert text.encode().decode() == text
        assert not text or isinstance(json.loads(text), dict)


@pytest.mark.parametrize("value", [1, True, 1.0, "1", b"1", Decimal(1), None])
def test_values_that_are_equal_stay_of_their_type(value):
    assert type(kept(Message(headers={"h": [value]})).message.headers["h"][0]) is type(value)


def test_what_is_nearly_of_a_type_becomes_that_type():
    class Text(str):
        __slots__ = ()

    headers = {Text("a"): Text("b"), "c": (1, 2), "d": bytearray(b"e"), "f": memoryview(b"g")}
    assert kept(Message(headers=headers)).message.headers == {"a": "b", "c": [1, 2], "d": b"e", "f": b"g"}


def deep(levels):
    value: object = 1
    for _ in range(levels):
        value = [value]
    return {"deep": value}


def test_headers_may_be_nested_as_deep_as_on_the_wire_and_no_deeper():
    assert kept(Message(headers=deep(64))).message.headers == deep(64)
    with pytest.raises(ConfigurationError, match="nested more than 64 deep"):
        values(Entry(Message(headers=deep(66))))


@pytest.mark.parametrize(
    "broken", ["no JSON", "[]", '{"a": {"$time": "no time"}}', '{"a": {"$bytes": 7}}', '{"a": {"$decimal": "x"}}']
)
def test_what_somebody_else_wrote_into_a_row_is_an_error_that_is_expected(broken):
    with pytest.raises((ValueError, TypeError, ArithmeticError)):
        row((1, "id", "e", "k", b"", "", "", broken, "", 0))
    with pytest.raises((ValueError, TypeError)):
        row((1, "id", "e", "k", b"", "", '{"no_such": 1}', "", "", 0))


def test_a_time_of_day_wins_over_a_wait():
    moment = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp() * 1000)
    assert values(Entry(Message(), wait_ms=5, at_ms=moment))[-2:] == (None, moment)
    assert values(Entry(Message(), wait_ms=5))[-2:] == (5, None)
    assert values(Entry(Message(), wait_ms=0))[-2:] == (None, None)
