"""Claims about messages and their headers: reading never raises, limits hold whatever comes."""

import dataclasses
import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carom.core import effects, message, outcome
from carom.core.message import (
    DEPTH_LIMIT,
    Message,
    clip,
    count,
    counted_by_broker,
    crashes,
    foreign,
    name,
    trail,
    unwritable,
    weight,
)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
OURS = [value for key, value in vars(message).items() if isinstance(value, str) and value.startswith(message.OURS)]


@given(st.dictionaries(st.sampled_from([*OURS, "x-delivery-count"]), anything), st.booleans())
def test_reading_headers_never_raises_whatever_they_are(headers, redelivered):
    read = Message(headers=headers)
    assert 1 <= read.attempt <= message.COUNT_LIMIT
    assert len(read.trail) <= message.TRAIL_LIMIT
    assert len(read.replay_of.encode()) <= message.NAME_LIMIT
    assert 0 <= crashes(headers, redelivered=redelivered) <= 2 * message.COUNT_LIMIT
    assert counted_by_broker(headers) in (True, False)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, 3), (0, 1), (-5, 1), (10**30, 1_000_000), ("3", 1), (True, 1), (2.5, 1), (None, 1), ([3], 1)],
)
def test_an_absurd_attempt_is_clamped_or_ignored(value, expected):
    assert Message(headers={message.ATTEMPT: value}).attempt == expected


def test_a_message_without_headers_is_a_first_attempt_of_nothing():
    assert Message().attempt == 1
    assert Message().trail == ()
    assert Message().replay_of == ""


def test_a_message_is_immutable_and_persistent_by_default():
    sent = Message(body=b"1")
    assert sent.delivery_mode == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        sent.body = b"2"


def test_a_count_is_never_less_than_asked():
    assert count(None) == 0
    assert count(None, least=1) == 1
    assert count(7) == 7


@pytest.mark.parametrize("odd", ["é" * 128, "x" * 256, "\udc80", b"x", 5, None, "x" * 10_000_000])
def test_what_cannot_be_a_name_on_the_wire_is_empty(odd):
    assert name(odd) == ""


def test_a_name_of_255_bytes_is_a_name():
    assert name("é" * 127 + "x") == "é" * 127 + "x"


def test_the_trail_keeps_the_newest_ids_and_leaves_out_what_is_none():
    assert trail({message.TRAIL: [f"id-{n}" for n in range(40)]}) == tuple(f"id-{n}" for n in range(8, 40))
    assert trail({message.TRAIL: ("a", "", 5, None, "b", "x" * 97, "\udc80", "é" * 49)}) == ("a", "b")
    assert trail({message.TRAIL: "abc"}) == ()


def test_a_first_delivery_has_no_crashes_whatever_a_publisher_claims():
    assert crashes({"x-delivery-count": 19}, redelivered=False) == 0
    assert crashes({}, redelivered=False) == 0


def test_crashes_are_those_carom_wrote_down_and_those_the_broker_counts_since():
    assert crashes({message.CRASHES: 2}, redelivered=False) == 2
    assert crashes({message.CRASHES: 2, "x-delivery-count": 3}, redelivered=True) == 5


def test_a_redelivery_nobody_counts_is_one_crash():
    assert crashes({}, redelivered=True) == 1
    assert crashes({message.CRASHES: 2}, redelivered=True) == 3
    assert crashes({"x-delivery-count": "7"}, redelivered=True) == 1


@pytest.mark.parametrize(("value", "counted"), [(0, True), (4, True), ("4", False), (True, False), (None, False)])
def test_the_broker_counts_with_an_integer(value, counted):
    assert counted_by_broker({"x-delivery-count": value}) is counted


def test_foreign_headers_are_those_of_the_user_alone():
    headers = {
        "x-death": [], "x-first-death-queue": "q", "x-last-death-reason": "expired", "x-delivery-count": 1,
        "x-acquired-count": 1, "x-opt-deaths": [], "CC": [], "BCC": [], message.ATTEMPT: 2, "carom-future": 1,
        "x-tenant": "a", "cc": "b", "traceparent": "c", "": "d",
    }  # fmt: skip
    assert foreign(headers) == {"x-tenant": "a", "cc": "b", "traceparent": "c", "": "d"}


@given(st.text(st.characters()), st.integers(3, 64))
def test_clipped_text_fits_and_says_that_it_was_cut(text, limit):
    clipped = clip(text, limit)
    written = text.encode("utf-8", errors="backslashreplace")
    assert len(clipped.encode()) <= limit
    assert clipped == written.decode() if len(written) <= limit else clipped.endswith("…")


def test_lone_surrogates_are_written_out():
    assert clip("\udc80", 100) == "\\udc80"


def wire_size(value) -> int:
    """Return what a value takes on the wire, its type octet included."""
    if isinstance(value, str | bytes):
        return 5 + len(value.encode("utf-8", errors="backslashreplace") if isinstance(value, str) else value)
    if isinstance(value, dict):
        keys = [key.encode("utf-8", errors="backslashreplace") for key in value]
        return 5 + sum(1 + len(key) for key in keys) + sum(map(wire_size, value.values()))
    if isinstance(value, list):
        return 5 + sum(map(wire_size, value))
    return 1 if value is None else 2 if isinstance(value, bool) else 9


@given(anything)
def test_a_header_never_weighs_more_on_the_wire_than_we_say(value):
    assert weight(value) >= wire_size(value)


def test_weighing_survives_any_depth_and_a_list_that_contains_itself():
    deep: list = []
    for _ in range(50_000):
        deep = [deep]
    endless: list = ["x" * 100_000]
    endless.append(endless)
    assert weight(deep) > message.HEADERS_LIMIT
    assert weight(endless) > message.HEADERS_LIMIT


def test_outcomes_and_effects_are_values():
    assert outcome.Reject("no") == outcome.Reject("no", why="rejected")
    assert outcome.Retry(after_ms=5) != outcome.Retry()
    assert outcome.Done() == outcome.Done()
    assert outcome.Discard().reason == ""
    assert outcome.Interrupted() == outcome.Interrupted()
    error = ValueError("x")
    assert outcome.Failed(error) == outcome.Failed(error)
    assert effects.Publish(Message(id="1")) == effects.Publish(Message(id="1"))
    assert effects.Confirmed() == effects.CONFIRMED
    assert effects.Nacked() == effects.NACKED
    assert effects.Returned() == effects.Returned(312, "NO_ROUTE")
    assert effects.Unknown("lost") != effects.Unknown()


def nested(depth):
    value = "deep"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, -(2**63), 2**63 - 1, 1.5, "é", "\udc80", b"\xff", bytearray(b"x"), (1, [2]), {"a": {"b": None}}),
        *(datetime(1970, 1, 1, tzinfo=UTC), Decimal("-12.50"), Decimal(-(2**31)), Decimal("0E+99"), Decimal("1E+9")),
        nested(DEPTH_LIMIT),
    ],
)
def test_what_amqp_has_a_form_for_can_be_carried(value):
    assert unwritable({"h": value}) == ""


@pytest.mark.parametrize(
    ("value", "misfit"),
    [
        (object(), "a object"),
        ({1}, "a set"),
        (date(2026, 1, 1), "a date"),
        (memoryview(b"x"), "a memoryview"),
        ([1, {"deep": {2}}], "a set"),
        ({1: 2}, "a name that is not text of at most 255 bytes"),
        ({"é" * 128: 2}, "a name that is not text of at most 255 bytes"),
        ("\ud800", "half a character"),
        (2**63, "an integer beyond 64 bits"),
        ([10**5000], "an integer beyond 64 bits"),
        (math.nan, "a float that is no number"),
        (datetime(1969, 12, 31, tzinfo=UTC), "a time before 1970"),
        (Decimal("sNaN"), "a decimal that 32 bits do not hold"),
        (Decimal(2**31), "a decimal that 32 bits do not hold"),
        (Decimal("1E+11"), "a decimal that 32 bits do not hold"),
        (Decimal("1.00000000000000000000000000000000000001"), "a decimal that 32 bits do not hold"),
        (nested(DEPTH_LIMIT + 1), f"what is nested more than {DEPTH_LIMIT} deep"),
    ],
)
def test_what_amqp_has_no_form_for_is_named(value, misfit):
    assert unwritable({"h": value}) == misfit


def test_headers_that_contain_themselves_cannot_be_carried():
    endless = []
    endless.append(endless)
    assert "nested" in unwritable({"h": endless})
