"""Claims about Carom's wire: what is believed of a delivery, what a copy keeps and leaves behind, what it weighs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pika.data import decode_table, encode_table
from pika.spec import BasicProperties

from carom.core import message as names
from carom.core import wire
from carom.core.durations import LONGEST_MS
from carom.core.message import Message
from carom.core.wire import Address, Arrival, Note

NOW = 1_700_000_000_000
FRAME = 128 * 1024 - 8 - 14
"""What a frame of AMQP holds by default, without its own seven and one bytes and what a content header begins with."""
QUEUE = "billing.charge"
TO = Address("carom.delay.2s", QUEUE)
NOTE = Note(NOW, "host-1", "exhausted", "builtins.ValueError", "no such account", "trace")
OURS = [value for key, value in vars(names).items() if isinstance(value, str) and value.startswith(names.OURS)]
BROKERS = (
    "x-death",
    "x-first-death-queue",
    "x-first-death-exchange",
    "x-first-death-reason",
    "x-last-death-queue",
    "x-last-death-exchange",
    "x-last-death-reason",
    "x-delivery-count",
    "x-acquired-count",
    "x-opt-deaths",
    "CC",
    "BCC",
)

short = st.text(max_size=60)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text()
    | st.binary()
    | st.integers(0, 2**33).map(lambda second: datetime.fromtimestamp(second, UTC))
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(short, inner, max_size=4), max_leaves=8
)
"""Everything a header may hold on the wire."""
absurd = values | st.floats() | st.integers() | st.just((1, 2)) | st.just(Decimal("NaN"))
"""And what no client should ever hand us."""
hostile = st.dictionaries(
    st.sampled_from([*OURS, *BROKERS]), absurd | st.integers(-3, 7) | st.sampled_from([QUEUE, "other"]), max_size=12
)
users = st.dictionaries(short.filter(lambda key: key not in BROKERS and not key.startswith(("x-", names.OURS))), values)

messages = st.builds(
    Message,
    body=st.binary(),
    exchange=short,
    routing_key=short,
    id=short,
    correlation_id=short,
    content_type=short,
    content_encoding=short,
    type=short,
    app_id=short,
    reply_to=short,
    user_id=short,
    expiration=st.sampled_from(["", "0", "60000"]),
    timestamp=st.none() | st.integers(0, 2**40),
    priority=st.none() | st.integers(0, 255),
    delivery_mode=st.sampled_from([1, 2]),
    headers=st.builds(lambda ours, theirs: {**ours, **theirs}, hostile, users),
)
arrivals = st.builds(
    lambda message, redelivered, counts: wire.read(message, QUEUE, redelivered=redelivered, counts=counts),
    messages,
    st.booleans(),
    st.booleans(),
)

Copying = Callable[[Arrival], Message | None]
COPIES: dict[str, Copying] = {
    "retried": lambda arrival: wire.retried(arrival, TO, NOTE, 1),
    "held": lambda arrival: wire.held(arrival, TO, 1),
    "recounted": lambda arrival: wire.recounted(arrival, TO),
    "dead": lambda arrival: wire.dead(arrival, TO, NOTE),
}
every_copy = pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)


def from_queue(attempt: object = 2, **headers: object) -> Message:
    """Return a message as it comes back to its queue; ``first_failed_at`` becomes carom-first-failed-at."""
    ours = {names.OURS + name.replace("_", "-"): value for name, value in headers.items()}
    origin = {names.EXCHANGE: "events", names.KEY: "order.created"}
    return Message(
        exchange="carom.return",
        routing_key=QUEUE,
        headers={names.QUEUE: QUEUE, names.ATTEMPT: attempt, **origin, **ours},
    )


def made(copy: Message | None) -> Message:
    assert copy is not None
    return copy


def encoded(headers: Mapping[str, object]) -> bytes:
    pieces: list[bytes] = []
    encode_table(pieces, dict(headers))
    return b"".join(pieces)


def properties(message: Message) -> bytes:
    return b"".join(
        BasicProperties(
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            headers=dict(message.headers),
            delivery_mode=message.delivery_mode,
            priority=255,
            correlation_id=message.correlation_id,
            reply_to=message.reply_to,
            message_id=message.id,
            timestamp=2**40,
            type=message.type,
            app_id=message.app_id,
        ).encode()
    )


# Reading


def test_a_message_without_headers_is_a_first_attempt_from_where_it_was_published():
    message = Message(exchange="events", routing_key="order.created")
    assert wire.read(message, QUEUE) == Arrival(message, QUEUE, 1, 0, "events", "order.created")


def test_what_carom_wrote_for_this_queue_is_read():
    message = from_queue(3, wait=700, first_failed_at=NOW, crashes=2)
    assert wire.read(message, QUEUE) == Arrival(
        message,
        QUEUE,
        attempt=3,
        crashes=2,
        exchange="events",
        routing_key="order.created",
        wait_ms=700,
        first_failed_at=NOW,
    )


def test_what_another_queue_counted_is_not_believed():
    message = replace(from_queue(3, wait=700, crashes=9, first_failed_at=NOW), exchange="events", routing_key="k")
    assert wire.read(message, "other") == Arrival(message, "other", 1, 0, "events", "k")


def test_a_dead_letter_that_somebody_put_back_starts_anew_and_remembers_where_it_came_from():
    arrival = wire.read(from_queue(4, reason="crash-loop", crashes=5, first_failed_at=NOW), QUEUE)
    assert (arrival.attempt, arrival.crashes) == (1, 0)
    assert (arrival.exchange, arrival.routing_key, arrival.first_failed_at) == ("events", "order.created", NOW)
    assert wire.seen(arrival).attempt == 1
    assert names.REASON not in made(wire.retried(arrival, TO, NOTE)).headers


@pytest.mark.parametrize("attempt", [-1, 0, "4", 2.5, math.nan, True, None, [4], {"a": 4}, b"4"])
def test_an_absurd_attempt_is_the_first(attempt):
    assert wire.read(from_queue(attempt), QUEUE).attempt == 1


def test_a_huge_attempt_and_a_huge_wait_are_bounded():
    arrival = wire.read(from_queue(10**30, wait=10**30, crashes=10**30, first_failed_at=10**30), QUEUE)
    assert arrival.attempt == arrival.crashes == names.COUNT_LIMIT
    assert arrival.wait_ms == LONGEST_MS
    assert datetime.fromtimestamp(arrival.first_failed_at / 1000, UTC).year == 9999


def test_a_redelivery_is_counted_by_a_quorum_queue_and_not_by_a_classic_one():
    known = {names.QUEUE: QUEUE, names.CRASHES: 1}
    counted = Message(headers={**known, "x-delivery-count": 3})
    assert (wire.read(counted, QUEUE, redelivered=True).crashes, wire.read(counted, QUEUE).crashes) == (2, 1)
    assert not wire.read(counted, QUEUE, redelivered=True).uncounted
    assert wire.read(counted, QUEUE, redelivered=True, alone=True).crashes == 4
    uncounted = wire.read(Message(headers=known), QUEUE, redelivered=True)
    assert (uncounted.crashes, uncounted.uncounted) == (2, True)
    assert wire.read(Message(), QUEUE, redelivered=True) == Arrival(
        Message(), QUEUE, 1, 1, "", "", returned=True, uncounted=True
    )


@pytest.mark.parametrize("forged", [{"x-delivery-count": 0}, {"x-delivery-count": 99}, {"x-acquired-count": 1}])
def test_a_classic_queue_does_not_count_whatever_a_publisher_claims(forged):
    arrival = wire.read(Message(headers=forged), QUEUE, redelivered=True, counts=False)
    assert (arrival.crashes, arrival.uncounted) == (1, True)
    assert made(wire.recounted(arrival, TO)).headers == {
        names.QUEUE: QUEUE, names.EXCHANGE: "", names.KEY: "", names.ATTEMPT: 1, names.CRASHES: 1
    }  # fmt: skip


def test_what_was_only_handed_back_has_not_crashed_where_the_broker_tells_them_apart():
    handed_back = wire.read(Message(headers={"x-acquired-count": 4}), QUEUE, redelivered=True)
    assert (handed_back.crashes, handed_back.uncounted) == (0, False)
    lost = wire.read(Message(headers={"x-acquired-count": 4, "x-delivery-count": 1}), QUEUE, redelivered=True)
    assert (lost.crashes, lost.uncounted) == (1, False)


@given(messages, st.booleans(), st.booleans(), st.booleans())
def test_reading_is_total_and_what_it_says_is_sane(message, redelivered, counts, alone):
    arrival = wire.read(message, QUEUE, redelivered=redelivered, counts=counts, alone=alone)
    assert arrival.message is message
    assert 1 <= arrival.attempt <= names.COUNT_LIMIT
    assert 0 <= arrival.crashes <= 2 * names.COUNT_LIMIT
    assert 0 <= arrival.wait_ms <= LONGEST_MS
    assert 0 <= arrival.first_failed_at < 2**63
    assert redelivered or not arrival.uncounted
    seen = wire.seen(arrival)
    assert seen.attempt == arrival.attempt
    assert (seen.exchange, seen.routing_key) == (arrival.exchange, arrival.routing_key)


# What a handler sees


def test_a_handler_sees_the_first_address_and_its_true_attempt():
    came_back = wire.read(from_queue(3), QUEUE)
    assert (wire.seen(came_back).exchange, wire.seen(came_back).routing_key) == ("events", "order.created")
    assert wire.seen(came_back).attempt == 3
    elsewhere = wire.read(replace(from_queue(3), exchange="events", routing_key="k"), "other")
    assert (wire.seen(elsewhere).attempt, wire.seen(elsewhere).routing_key) == (1, "k")


def test_a_message_that_is_what_it_says_is_not_copied_for_its_handler():
    message = Message(exchange="events", routing_key="order.created", headers={"x-tenant": "a"})
    assert wire.seen(wire.read(message, QUEUE)) is message


# Copies


def test_a_retry_is_the_next_attempt_of_this_queue():
    copy = made(wire.retried(wire.read(Message(exchange="events", routing_key="k"), QUEUE), TO, NOTE))
    assert (copy.exchange, copy.routing_key) == (TO.exchange, TO.routing_key)
    assert copy.headers == {
        names.QUEUE: QUEUE, names.EXCHANGE: "events", names.KEY: "k", names.ATTEMPT: 2, names.FIRST_FAILED_AT: NOW,
        names.FAILED_AT: NOW, names.HOST: "host-1", names.ERROR_TYPE: "builtins.ValueError",
        names.ERROR: "no such account", names.ERROR_TRACE: "trace",
    }  # fmt: skip


def test_the_first_failure_is_remembered_and_the_last_one_is_told():
    first = made(wire.retried(wire.read(Message(), QUEUE), TO, NOTE))
    second = made(wire.retried(wire.read(first, QUEUE), TO, Note(NOW + 5, error="other")))
    assert (second.headers[names.FIRST_FAILED_AT], second.headers[names.FAILED_AT]) == (NOW, NOW + 5)
    assert second.headers[names.ERROR] == "other"
    assert names.ERROR_TRACE not in second.headers


def test_what_waits_on_keeps_its_attempt_and_what_was_written_of_its_failure():
    failed = made(wire.retried(wire.read(Message(), QUEUE), TO, NOTE, 10_000))
    held = made(wire.held(wire.read(failed, QUEUE), TO, 3_000))
    assert held.headers == {**failed.headers, names.WAIT: 3_000}
    assert names.WAIT not in made(wire.held(wire.read(held, QUEUE), TO)).headers


def test_a_recounted_copy_differs_in_nothing_but_its_crashes():
    failed = made(wire.retried(wire.read(Message(), QUEUE), TO, NOTE))
    recounted = made(wire.recounted(wire.read(failed, QUEUE, redelivered=True), TO))
    assert recounted == replace(failed, headers={**failed.headers, names.CRASHES: 1})


def test_a_dead_letter_has_its_reason_and_its_crashes_if_it_had_any():
    dead = made(wire.dead(wire.read(from_queue(4), QUEUE), TO, NOTE))
    assert (dead.headers[names.REASON], dead.headers[names.ATTEMPT]) == ("exhausted", 4)
    assert names.CRASHES not in dead.headers
    assert made(wire.dead(wire.read(from_queue(4, crashes=2), QUEUE), TO, NOTE)).headers[names.CRASHES] == 2


def test_every_life_of_a_message_counts_its_own_attempts_and_no_two_attempts_have_one_ordinal():
    arrival = wire.read(Message(), QUEUE)
    seen = []
    for _life in range(3):
        for _attempt in range(3):
            seen.append(arrival.ordinal)
            dead = made(wire.dead(arrival, TO, NOTE))
            arrival = wire.read(made(wire.retried(arrival, TO, NOTE)), QUEUE)
        arrival = wire.read(dead, QUEUE)
        assert arrival.attempt == 1
    assert seen == sorted(set(seen))
    assert arrival.deaths == 3


def test_what_goes_on_waiting_or_is_counted_anew_stays_in_its_life():
    arrival = wire.read(from_queue(2, reason="exhausted", deaths=4), QUEUE)
    for copy in (wire.held(arrival, TO), wire.recounted(arrival, TO)):
        again = wire.read(made(copy), QUEUE)
        assert (again.deaths, again.ordinal) == (4, arrival.ordinal)
    assert made(wire.dead(arrival, TO, NOTE)).headers[names.DEATHS] == 5


def test_a_dead_letter_without_a_count_has_died_once_and_another_queues_count_is_not_believed():
    assert wire.read(from_queue(3, reason="exhausted"), QUEUE).deaths == 1
    assert wire.read(from_queue(3, deaths=7), "another").deaths == 0


@given(arrivals)
def test_an_ordinal_is_a_positive_number_of_at_most_31_bits(arrival):
    assert 0 < arrival.ordinal < 2**31


def test_ancestors_and_the_dead_letter_it_replays_travel_on():
    arrival = wire.read(Message(headers={names.TRAIL: ["a", 5, "b"], names.REPLAY_OF: "c"}), QUEUE)
    for copy in COPIES.values():
        assert made(copy(arrival)).headers[names.TRAIL] == ["a", "b"]
        assert made(copy(arrival)).headers[names.REPLAY_OF] == "c"


@every_copy
@given(arrivals)
def test_a_copy_keeps_body_ids_properties_and_foreign_headers_to_the_byte(copy, arrival):
    first = arrival.message
    again = made(copy(arrival))
    kept = replace(first, exchange=TO.exchange, routing_key=TO.routing_key, headers=again.headers)
    assert again == replace(kept, user_id="", expiration="", delivery_mode=2)
    theirs = {key: value for key, value in again.headers.items() if not key.startswith(names.OURS)}
    assert repr(theirs) == repr({key: value for key, value in first.headers.items() if key in theirs})
    left = set(first.headers) - set(theirs)
    assert all(key in BROKERS or key.startswith(names.OURS) for key in left)
    assert not set(theirs) & set(BROKERS)


@every_copy
@given(arrivals)
def test_nothing_forged_travels_on_unless_it_was_read_and_written_anew(copy, arrival):
    written = {key: value for key, value in made(copy(arrival)).headers.items() if key.startswith(names.OURS)}
    assert set(written) <= set(OURS)
    assert written[names.QUEUE] == QUEUE
    assert written[names.ATTEMPT] in {arrival.attempt, arrival.attempt + 1}
    counts = (names.ATTEMPT, names.WAIT, names.CRASHES, names.DEATHS, names.FIRST_FAILED_AT, names.FAILED_AT)
    for key, value in written.items():
        if key == names.TRAIL:
            assert all(type(item) is str and item for item in value)
        else:
            assert type(value) is (int if key in counts else str)
            assert key not in counts or 0 <= value < 2**63
    raw = encoded(written)
    assert decode_table(raw, 0) == (written, len(raw))


@given(messages, st.lists(st.sampled_from(list(COPIES)), max_size=8))
def test_any_number_of_copies_changes_nothing_that_belongs_to_the_user(first, copies):
    message = first
    for name in copies:
        message = made(COPIES[name](wire.read(replace(message, headers={**message.headers, "x-death": [1]}), QUEUE)))
    dead = made(COPIES["dead"](wire.read(message, QUEUE)))
    origin = wire.read(first, QUEUE)
    assert (dead.headers[names.EXCHANGE], dead.headers[names.KEY]) == (origin.exchange, origin.routing_key)
    assert repr(names.foreign(dead.headers)) == repr(names.foreign(first.headers))
    changed = {"exchange", "routing_key", "headers", "user_id", "expiration", "delivery_mode"}
    for field in set(Message.__slots__) - changed:
        assert getattr(dead, field) == getattr(first, field)


def test_a_header_whose_name_is_no_utf8_is_the_users_and_stays():
    headers: dict[object, object] = {b"\xff": "kept", "x-opt-a": 1}
    arrival = wire.read(Message(headers=headers), QUEUE)  # type: ignore[arg-type]  # some clients hand such names on as bytes
    assert made(wire.dead(arrival, TO, NOTE)).headers[b"\xff"] == "kept"  # type: ignore[index]  # as above


# Weight


def heaviest(foreign: Mapping[str, object] | None = None) -> Arrival:
    """Return an arrival whose every name and id is as long as the wire allows."""
    ids = ["é" * 48] * names.TRAIL_LIMIT
    headers = {
        **(foreign or {}), names.QUEUE: "é" * 127, names.EXCHANGE: "é" * 127, names.KEY: "é" * 127,
        names.ATTEMPT: 10**9, names.TRAIL: ids, names.REPLAY_OF: "é" * 127, names.CRASHES: 10**9,
        names.FIRST_FAILED_AT: 2**63, names.HOST: "é" * 9_000, names.ERROR: "é" * 9_000,
        names.ERROR_TYPE: "é" * 9_000, names.ERROR_TRACE: "é" * 9_000,
    }  # fmt: skip
    long = "é" * 127
    message = Message(
        exchange=long, routing_key=long, id=long, correlation_id=long, content_type=long, content_encoding=long,
        type=long, app_id=long, reply_to=long, user_id=long, headers=headers,
    )  # fmt: skip
    return wire.read(message, "é" * 127, redelivered=True)


@every_copy
def test_all_of_caroms_headers_at_their_longest_weigh_less_than_16_kib(copy):
    arrival = heaviest()
    long = "\U0001f422" * 50_000
    written = made(copy(arrival)), made(wire.dead(arrival, TO, Note(2**62, long, long, long, long, long)))
    for message in written:
        assert len(encoded(message.headers)) < names.OURS_LIMIT
        assert len(message.headers[names.TRAIL]) == names.TRAIL_LIMIT


@given(arrivals, st.lists(st.text(), min_size=5, max_size=5), st.sampled_from([1, 300, 20_000]))
def test_no_error_makes_caroms_headers_heavier_than_16_kib(arrival, texts, times):
    host, reason, kind, text, trace = (part * times for part in texts)
    note = Note(NOW, host, reason, kind, text, trace)
    for copy in (made(wire.retried(arrival, TO, note, LONGEST_MS)), made(wire.dead(arrival, TO, note))):
        ours = {key: value for key, value in copy.headers.items() if key.startswith(names.OURS)}
        assert len(encoded(ours)) < names.OURS_LIMIT


@given(values)
@example({"": Decimal("-0.001"), "é" * 127: [None, True, datetime(1970, 1, 1, tzinfo=UTC)]})
@example([[[[]]], {}, {"": {}}])
def test_the_weight_of_headers_is_never_less_than_they_take_on_the_wire(value):
    assert names.weight({"name": value}) >= len(encoded({"name": value}))


def test_what_is_expendable_goes_before_a_message_becomes_too_heavy():
    room = names.HEADERS_LIMIT - names.OURS_LIMIT
    everything = made(wire.dead(heaviest({"a": "x" * room}), TO, NOTE))
    assert {names.ERROR_TRACE, names.ERROR, names.TRAIL} <= set(everything.headers)
    lost = []
    for extra in range(0, names.OURS_LIMIT, 256):
        copy = wire.dead(heaviest({"a": "x" * (room + extra)}), TO, replace(NOTE, error="e" * 2000, trace="t" * 6000))
        assert copy is None or len(properties(copy)) <= FRAME
        keys = (names.ERROR_TRACE, names.ERROR, names.TRAIL)
        lost.append("too heavy" if copy is None else [key for key in keys if key not in copy.headers])
    assert [state for index, state in enumerate(lost) if index == 0 or state != lost[index - 1]] == [
        [],
        [names.ERROR_TRACE],
        [names.ERROR_TRACE, names.ERROR],
        [names.ERROR_TRACE, names.ERROR, names.TRAIL],
        "too heavy",
    ]


@every_copy
def test_foreign_headers_that_leave_no_room_for_ours_make_no_copy(copy):
    assert copy(heaviest({"a": "x" * names.HEADERS_LIMIT})) is None


@every_copy
def test_whatever_is_published_fits_a_frame_together_with_what_the_broker_adds(copy):
    queue, death = "é" * 127, {"count": 1, "reason": "expired", "queue": "é" * 127, "exchange": "é" * 127}
    died = {"x-death": [{**death, "time": datetime(1970, 1, 1, tzinfo=UTC), "routing-keys": [queue]}]}
    first = {f"x-{which}-death-{what}": queue for which in ("first", "last") for what in ("queue", "exchange")}
    for less in range(0, names.OURS_LIMIT, 128):
        again = copy(heaviest({"blob": b"x" * (names.HEADERS_LIMIT - less)}))
        if again is not None:
            assert len(properties(replace(again, headers={**again.headers, **died, **first}))) <= FRAME
