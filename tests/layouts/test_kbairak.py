"""Claims about kbairak's layout and its wire, where they are its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from layout_stage import CHARGE, EVERY, MAIL, ORDER

from carom.core import message as names
from carom.core.message import COUNT_LIMIT
from carom.core.retry import RetryPolicy
from carom.core.settlement import Plan
from carom.core.topology import Binding, Exchange, Queue, arguments, quorum
from carom.core.wire import Note
from carom.layouts import Kbairak
from carom.layouts.kbairak import KbairakWire

WIRE = KbairakWire("shop")


def attempt(headers, *, redelivered=False):
    return WIRE.read(replace(ORDER, headers=headers), "charge", redelivered=redelivered).attempt


def test_the_topology_is_declared_as_its_worker_declares_it():
    of = Kbairak("carom", "shop", (CHARGE,))
    assert set(of.topology.exchanges) == {
        Exchange("shop", "topic"),
        Exchange("shop.dlx", "direct"),
        Exchange("shop.delay_2s", "fanout"),
        Exchange("shop.delay_5s", "fanout"),
    }
    theirs = [queue for queue in of.topology.queues if not queue.name.startswith("carom.")]
    assert theirs == [
        quorum("charge", dead_letter_exchange="shop.dlx", dead_letter_routing_key="charge"),
        Queue("charge.dlq", arguments=arguments({"x-queue-type": "quorum"})),
        quorum("shop.delay_2s", message_ttl=2_000, dead_letter_exchange=""),
        quorum("shop.delay_5s", message_ttl=5_000, dead_letter_exchange=""),
    ]
    assert Binding("shop.dlx", "charge.dlq", "charge") in of.topology.bindings
    assert Binding("shop.delay_2s", "shop.delay_2s", "") in of.topology.bindings


def test_delays_are_named_as_people_write_them_and_shared():
    plans = (Plan("a", ("a",), RetryPolicy.delays("1m30s", 0, "250ms")), MAIL)
    of = Kbairak("carom", "outbox", plans)
    names_of_delays = {exchange.name for exchange in of.topology.exchanges if ".delay_" in exchange.name}
    assert names_of_delays == {"outbox.delay_250ms", "outbox.delay_5s", "outbox.delay_1m30s"}
    assert of.delays("a") == of.delays("mail") == (250, 5_000, 90_000)


def test_without_listeners_there_is_only_the_exchange_to_publish_to():
    assert Kbairak(exchange="shop").topology.exchanges == (Exchange("shop", "topic"),)
    assert not Kbairak().topology.queues


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 1),
        ({"x-delivery-count": "3"}, 3),
        ({"x-delivery-count": "0"}, 1),
        ({"x-delivery-count": "-3"}, 1),
        ({"x-delivery-count": "³"}, 1),
        ({"x-delivery-count": "9" * 5000}, COUNT_LIMIT),
        ({"x-delivery-count": 4}, 1),
        ({"x-delivery-count": 1, names.ATTEMPT: 3}, 3),
        ({"x-delivery-count": "3", names.ATTEMPT: 2}, 3),
    ],
)
def test_an_attempt_is_counted_in_text_and_the_brokers_own_count_is_not_taken_for_it(headers, expected):
    assert attempt(headers) == expected


def test_a_worker_that_is_lost_does_not_reset_the_attempts():
    first = WIRE.read(WIRE.outgoing(ORDER), "charge")
    to = Kbairak("carom", "shop", (CHARGE,)).delay_address("charge", 2_000)
    second = WIRE.retried(first, to, Note(1))
    assert second is not None
    overwritten = replace(second, headers={**second.headers, "x-delivery-count": 1})
    back = WIRE.read(overwritten, "charge", redelivered=True)
    assert (back.attempt, back.crashes, back.returned) == (2, 1, True)


def test_its_identity_is_the_last_tracking_id_whatever_message_id_its_client_invented():
    theirs = replace(ORDER, id="invented", correlation_id="", headers={"x-outbox-tracking-ids": '["a", "b", "c"]'})
    seen = WIRE.seen(WIRE.read(theirs, "charge"))
    assert (seen.id, seen.trail, seen.correlation_id) == ("c", ("a", "b"), "a")
    older = replace(theirs, headers={"x-outbox-track-ids": '["o"]'})
    assert WIRE.seen(WIRE.read(older, "charge")).id == "o"


@pytest.mark.parametrize("junk", ["", "[", "{}", "[]", "[1, null]", '[""]', "[" * 20_000, 7, '["' + "x" * 300 + '"]'])
def test_tracking_ids_that_are_none_leave_the_message_its_own(junk):
    seen = WIRE.seen(WIRE.read(replace(ORDER, headers={"x-outbox-tracking-ids": junk}), "charge"))
    assert seen.id == ORDER.id


def test_everything_it_announces_says_json_and_carries_its_chain():
    sent = WIRE.outgoing(
        replace(ORDER, body=b"\0", content_type="application/octet-stream", headers={names.TRAIL: ["p"]})
    )
    assert sent.content_type == "application/json"
    assert dict(sent.headers) == {"x-outbox-tracking-ids": f'["p", "{ORDER.id}"]'}


def test_an_attempt_outlives_a_broker_that_counts_over_it_also_on_what_waits_or_is_suspect():
    laid = EVERY["kbairak"]
    wire = laid.layout.wire
    arrival = replace(wire.read(wire.outgoing(laid.message), "charge"), attempt=2, crashes=1)
    to = laid.layout.queue_address("charge")
    for copy in (wire.held(arrival, to), wire.recounted(arrival, to)):
        overwritten = replace(copy, headers={**copy.headers, "x-delivery-count": 1})
        assert wire.read(overwritten, "charge", redelivered=True).attempt == 2
