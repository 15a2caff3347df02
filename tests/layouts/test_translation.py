"""A message that is moved to another layout is the same message there: its attempt, address, ids and payload stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from layout_stage import EVERY, STEADY, Laid
from test_wires import MOMENT, messages

from carom.core import message as names
from carom.core.effects import Publish
from carom.core.migration import STAND_IN, Move
from carom.core.nippy import Keyword, thaw
from carom.core.outcome import Failed, Reject
from carom.core.routing import route
from carom.core.settlement import settle
from carom.layouts import Binary, FreeFlow, Kbairak, Shared, WaitQueue
from carom.layouts.translation import Translation, signs, translation

FOREIGN = [
    "async_worker",
    "freeflow",
    "freeflow-nest-queue",
    "goqueue",
    "goqueue-tenfold",
    "kbairak",
    "wait_queue-copies",
]
every = pytest.mark.parametrize("laid", [EVERY[name] for name in FOREIGN], ids=FOREIGN)
FAILED = Failed(TimeoutError("the bank does not answer"))


def listened(laid):
    return tuple(dict.fromkeys(plan.queue for plan in laid.layout.plans))


def to_shared(laid: Laid) -> Translation:
    old = laid.layout
    found = translation(old, Shared("carom", "shop", old.plans), listened(laid))
    assert found is not None
    return found


def published(laid, outcome=FAILED, sent=None):
    """Return the copy that the old layout publishes when the first attempt at a message ends so."""
    wire, queue = laid.layout.wire, laid.plan.queue
    settlement = settle(outcome, wire.read(sent or wire.outgoing(laid.message), queue), laid.plan, laid.layout, MOMENT)
    return next(effect.message for effect in settlement.effects if isinstance(effect, Publish))


def lies(laid, copy):
    """Return where a copy lies."""
    return min(route(laid.layout.topology, copy.exchange, copy.routing_key, copy.headers))


def only(found):
    (copy,) = found
    return copy


def told(copy, laid, wire):
    """Return what a handler sees of it, and check that it is the message it was."""
    arrival = wire.read(copy, laid.plan.queue)
    seen = wire.seen(arrival)
    assert (seen.id, seen.correlation_id) == (laid.message.id, laid.message.correlation_id)
    assert (arrival.exchange, arrival.routing_key) == (laid.message.exchange, laid.message.routing_key)
    assert seen.headers["tenant"] == "acme" or "tenant" not in laid.message.headers
    if seen.content_type == "application/x-nippy":
        assert thaw(seen.body) == {Keyword("id"): 1}
    else:
        assert seen.body == laid.message.body
    return arrival


@every
def test_what_is_ready_comes_to_the_stand_in_as_it_was_published(laid):
    queue = laid.plan.queue
    first = laid.layout.wire.outgoing(laid.message)
    copy = only(to_shared(laid).copies(first, Move(queue, STAND_IN + queue, certain=True)))
    assert copy.exchange == STAND_IN + queue
    assert told(copy, laid, Shared().wire).attempt == 1
    assert not signs(laid.layout.wire) & copy.headers.keys()


@every
def test_what_waits_comes_to_its_queue_and_waits_on_at_its_attempt(laid):
    copy = published(laid)
    queue = lies(laid, copy)
    carried = to_shared(laid).carried
    assert queue in carried.away
    there = laid.layout.topology.queue(queue)
    assert there is not None
    waits_ms = int(copy.expiration) if copy.expiration else there.ttl_ms
    moved = only(to_shared(laid).copies(copy, Move(queue, "", certain=True)))
    assert (moved.exchange, moved.routing_key) == ("carom.return", laid.plan.queue)
    arrival = told(moved, laid, Shared().wire)
    assert (arrival.attempt, arrival.wait_ms) == (2, waits_ms)
    beside = only(to_shared(laid).copies(copy, Move(queue, "", certain=True, standing=(laid.plan.queue,))))
    assert beside.exchange == STAND_IN + laid.plan.queue


@every
def test_what_is_dead_keeps_its_reason_and_can_be_put_back(laid):
    letter = published(laid, Reject("no such account"))
    of = to_shared(laid)
    queue = next(name for name in sorted(of._dead) if of._dead[name] == laid.plan.queue)
    move = Move(queue, STAND_IN + queue) if queue in of.carried.rewritten else Move(queue, "", certain=True)
    copy = only(of.copies(letter, move))
    assert copy.exchange == (move.exchange or "carom.dead")
    headers = copy.headers
    assert (headers[names.REASON], headers[names.DEATHS], headers[names.ATTEMPT]) == ("rejected", 1, 1)
    assert headers[names.ERROR] == letter.headers[names.ERROR]
    assert headers[names.FAILED_AT] == MOMENT.now_ms
    assert told(copy, laid, Shared().wire).attempt == 1
    again = only(of.copies(copy, Move(STAND_IN + queue, "back", certain=False)))
    assert replace(again, exchange=copy.exchange) == copy


@every
def test_nothing_is_translated_twice(laid):
    of, queue = to_shared(laid), laid.plan.queue
    for message in (laid.layout.wire.outgoing(laid.message), published(laid)):
        once = only(of.copies(message, Move(queue, "e", certain=True)))
        assert only(of.copies(once, Move(STAND_IN + queue, "e"))) == once


@every
def test_what_was_sent_meanwhile_is_told_by_what_is_on_it(laid):
    of, stand_in = to_shared(laid), Move(STAND_IN + laid.plan.queue, "back")
    theirs = laid.layout.wire.outgoing(laid.message)
    if laid.plan.queue != "shop_instant_queue":  # there the key is that of the queue
        assert told(only(of.copies(laid.message, stand_in)), laid, Shared().wire).attempt == 1
    assert told(only(of.copies(theirs, stand_in)), laid, Shared().wire).attempt == 1


@every
def test_the_way_back_is_a_way_too(laid):
    shared = Laid(Shared("carom", "shop", laid.layout.plans), laid.plan, laid.message)
    of = translation(shared.layout, laid.layout, listened(laid))
    assert of is not None
    copy = published(shared)
    moved = only(of.copies(copy, Move(lies(shared, copy), "", certain=True)))
    arrival = told(moved, laid, laid.layout.wire)
    assert (arrival.attempt, arrival.wait_ms) == (2, 2_000 if laid.plan is not STEADY else 5_000)
    assert only(of.copies(moved, Move(STAND_IN + laid.plan.queue, moved.exchange))).body == moved.body


@every
@given(messages)
def test_whatever_is_moved_stays_one_message_that_can_travel(laid, message):
    of, queue = to_shared(laid), laid.plan.queue
    for certain in (True, False):
        for copy in of.copies(message, Move(queue, "e", certain=certain)):
            assert copy.exchange == "e"
            assert names.weight(copy.headers) <= names.HEADERS_LIMIT
            assert Shared().wire.read(copy, queue).attempt >= 1


def test_what_broke_workers_stays_suspect_and_what_says_no_queue_is_moved_as_it_is():
    laid = EVERY["kbairak"]
    wire, of = laid.layout.wire, to_shared(laid)
    arrival = replace(wire.read(wire.outgoing(laid.message), "charge"), crashes=3)
    suspect = wire.recounted(arrival, laid.layout.suspect_address("charge"))
    move = Move(of.old.suspects, "e", certain=True)
    moved = only(of.copies(suspect, move))
    assert (moved.routing_key, Shared().wire.read(moved, "charge").crashes) == ("charge", 3)
    assert of.copies(laid.message, move) == ()


def test_what_the_broker_buried_gets_the_broker_s_reason():
    laid = EVERY["kbairak"]
    sent = laid.layout.wire.outgoing(laid.message)
    buried = replace(sent, headers={**sent.headers, "x-first-death-reason": "delivery_limit", "x-delivery-count": "2"})
    headers = only(to_shared(laid).copies(buried, Move("charge.dlq", "e"))).headers
    assert (headers[names.REASON], headers[names.ATTEMPT], headers[names.KEY]) == ("delivery_limit", 2, "order.created")


def test_a_retry_of_somebody_else_s_worker_goes_where_it_would_have_gone():
    kbairak, freeflow = EVERY["kbairak"], EVERY["freeflow"]
    theirs = replace(kbairak.message, exchange="", routing_key="charge", headers={"x-delivery-count": "2"})
    moved = only(to_shared(kbairak).copies(theirs, Move("shop.delay_2s", "", certain=True)))
    assert Shared().wire.read(moved, "charge").attempt == 2
    others = replace(theirs, routing_key="somebody.else")
    assert to_shared(kbairak).copies(others, Move("shop.delay_2s", "", certain=True)) == ()
    of = to_shared(freeflow)
    fanned = of.copies(freeflow.message, Move("shop.order.retry.30s", "", certain=True))
    assert {copy.routing_key for copy in fanned} == {"charge", "mail"}, "on that wire every queue of the domain gets it"


def test_layouts_that_write_alike_need_no_translation():
    plans = EVERY["shared"].layout.plans
    assert translation(Shared(plans=plans), Binary(plans=plans), ("charge",)) is None
    assert translation(Kbairak(exchange="a"), Kbairak(exchange="a"), ()) is None


def test_a_wire_is_known_by_its_headers():
    assert signs(WaitQueue().wire) == {"message_id", "correlation_id", "causation_id"}
    assert signs(Shared().wire) == frozenset()
    assert "x-retry-count" in signs(FreeFlow().wire)
