"""Claims about every wire: whatever a message holds, it is read, its copies can travel, and it stays what it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_stage import EVERY, ORDER

from carom.core import message as names
from carom.core.durations import LONGEST_MS
from carom.core.effects import Publish
from carom.core.freezing import freeze
from carom.core.message import COUNT_LIMIT, HEADERS_LIMIT, Message, weight
from carom.core.nippy import Keyword
from carom.core.outcome import Failed, Reject, Retry
from carom.core.routing import route
from carom.core.settlement import Moment, admit, settle
from carom.core.wire import Note

NOW = 1_700_000_000_000
MOMENT = Moment(NOW, 0.0, "host-1")
KNOWN = (
    *(names.ATTEMPT, names.QUEUE, names.EXCHANGE, names.KEY, names.WAIT, names.CRASHES, names.REASON, names.TRAIL),
    *("x-delivery-count", "x-acquired-count", "x-death", "x-original-routing-key", "x-outbox-tracking-ids"),
    *("x-outbox-track-ids", "x-retry-count", "x-original-exchange", "eventId", "correlationId"),
    *("goqueue-retry-count", "goqueue-message-id", "goqueue-app-id", "goqueue-original-topic-name"),
    *("goqueue-original-action-name", "goqueue-published-timestamp", "causation_id", "correlation_id"),
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.binary(max_size=9), st.just("charge")
)
values = st.recursive(
    st.one_of(scalars, st.sampled_from(["3", "1", '["a","b"]', "[" * 9000, '{"a":1}', "[1]", '""'])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["count", "queue", "reason", "exchange", "routing-keys"]), inner, max_size=5),
    ),
    max_leaves=6,
)
headers = st.dictionaries(st.one_of(st.sampled_from(KNOWN), st.text(max_size=5)), values, max_size=6)
JOBS = ("job-name", "args", "current-iteration", "retry-max", "retry-timeout-ms")
frozen = st.dictionaries(
    st.sampled_from(JOBS).map(Keyword), st.one_of(st.integers(), st.text(max_size=4), st.none()), max_size=5
).map(freeze)
bodies = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"", b"null", b"{}", b"[", b'{"pattern":"a","data":{}}', b'{"data":null}', b"[" * 9000, b"1" * 5000]
    ),
)
messages = st.builds(
    Message,
    body=bodies,
    exchange=st.sampled_from(["", "shop", "elsewhere"]),
    routing_key=st.text(max_size=6),
    id=st.sampled_from(["", "id-1"]),
    correlation_id=st.sampled_from(["", "flow-1"]),
    content_type=st.sampled_from(["", "application/json", "application/x-nippy"]),
    timestamp=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
    headers=headers,
)
every = pytest.mark.parametrize("laid", EVERY.values(), ids=EVERY)


@every
@given(messages, st.booleans(), st.booleans(), st.booleans())
def test_any_message_is_read_and_what_follows_from_it_goes_somewhere(laid, message, redelivered, counts, alone):
    layout, plan = laid.layout, laid.plan
    arrival = layout.wire.read(message, plan.queue, redelivered=redelivered, counts=counts, alone=alone)
    assert 1 <= arrival.attempt <= COUNT_LIMIT
    assert 0 <= arrival.crashes <= 2 * COUNT_LIMIT
    assert 0 <= arrival.wait_ms <= LONGEST_MS
    seen = layout.wire.seen(arrival)
    assert seen.attempt == arrival.attempt
    failures = (Failed(ValueError("no")), Reject("no"), Retry(after_ms=90_000, reason="later", error=None))
    settlements = [settle(outcome, arrival, plan, layout, MOMENT) for outcome in failures]
    settlements.append(admit(arrival, plan, layout, MOMENT))
    for effect in (effect for settlement in settlements if settlement for effect in settlement.effects):
        if isinstance(effect, Publish):
            copy = effect.message
            assert route(layout.topology, copy.exchange, copy.routing_key, copy.headers)
            assert weight(copy.headers) <= HEADERS_LIMIT
            assert copy.delivery_mode == 2
            again = layout.wire.read(copy, plan.queue)
            assert again.attempt in {arrival.attempt, min(arrival.attempt + 1, COUNT_LIMIT), 1}


@every
@given(messages)
def test_any_message_can_be_announced(laid, message):
    assert isinstance(laid.layout.wire.outgoing(replace(message, routing_key="order.created")), Message)


@every
def test_what_was_announced_is_what_a_handler_sees(laid):
    wire = laid.layout.wire
    sent = wire.outgoing(laid.message)
    seen = wire.seen(wire.read(sent, laid.plan.queue))
    assert (seen.exchange, seen.routing_key) == (laid.message.exchange, laid.message.routing_key)
    assert seen.id == laid.message.id
    assert seen.body == laid.message.body or seen.content_type == "application/x-nippy"
    again = wire.outgoing(replace(seen, headers=names.foreign(seen.headers)))
    assert again.body == sent.body


@every
def test_a_dead_letter_of_any_weight_can_travel_or_the_broker_makes_it(laid):
    heavy = replace(laid.message, headers={"large": "x" * 100_000, "larger": "y" * 100_000, "small": "kept"})
    wire, queue = laid.layout.wire, laid.plan.queue
    arrival = wire.read(heavy, queue)
    letter = wire.dead(arrival, laid.layout.dead_address(queue), Note(NOW, "", "exhausted", error="no"))
    declared = laid.layout.topology.queue(queue)
    if letter is None:
        assert declared is not None
        assert declared.dead_letter_exchange is not None
    else:
        assert letter.headers["small"] == "kept"
        assert weight(letter.headers) <= HEADERS_LIMIT
    settlement = settle(Failed(ValueError("no")), arrival, laid.plan, laid.layout, MOMENT)
    assert settlement.fate in {"dead", "retried"}
    postponed = settle(Failed(ValueError("no")), replace(arrival, wait_ms=5), laid.plan, laid.layout, MOMENT)
    assert postponed.effects == settlement.effects
    held = admit(replace(arrival, wait_ms=5), laid.plan, laid.layout, MOMENT)
    assert held is not None
    assert (held.fate, held.reason) in {("dead", "oversized"), ("waiting", "")}


@every
def test_ancestors_and_the_origin_of_a_replay_travel_along(laid):
    sent = laid.layout.wire.outgoing(replace(ORDER, headers={names.TRAIL: ["a", "b"], names.REPLAY_OF: "r"}))
    arrival = laid.layout.wire.read(sent, laid.plan.queue)
    copy = laid.layout.wire.recounted(arrival, laid.layout.queue_address(laid.plan.queue))
    assert copy is not None
    seen = laid.layout.wire.seen(laid.layout.wire.read(copy, laid.plan.queue))
    assert seen.replay_of == "r"
    assert seen.trail == ("a", "b")
