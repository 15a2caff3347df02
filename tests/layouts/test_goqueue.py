"""Claims about goqueue's layout and its wire, where they are its own."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from layout_stage import CHARGE, ORDER

from carom.brokers.rabbitmq import content
from carom.core import message as names
from carom.core.durations import LONGEST_MS
from carom.core.effects import Publish
from carom.core.message import COUNT_LIMIT
from carom.core.outcome import Failed, Retry
from carom.core.retry import RetryPolicy
from carom.core.settlement import Moment, Plan, admit, settle
from carom.core.topology import Binding, Exchange, Queue, arguments, quorum
from carom.layouts import GoQueue, goqueue

OF = GoQueue("carom", "shop", (CHARGE,))
BACK = arguments({"x-dead-letter-exchange": "charge__retry_dlx"})
MOMENT = Moment(0)


def settled(layout, message, outcome):
    return settle(outcome, layout.wire.read(message, "charge"), layout.plans[0], layout, MOMENT)


def test_the_topology_is_declared_as_its_consumer_declares_it():
    theirs = [queue for queue in OF.topology.queues if not queue.name.startswith("carom.")]
    assert theirs == [
        Queue("charge"),
        quorum("charge.dlq", delivery_limit=1_000_000),
        Queue("charge__retry.1", arguments=BACK),
        Queue("charge__retry.2", arguments=BACK),
    ]
    assert OF.topology.exchanges == (
        Exchange("shop", "topic"),
        Exchange("charge__retry_exchange", "topic"),
        Exchange("charge__retry_dlx", "fanout"),
    )
    assert OF.topology.bindings == (
        Binding("shop", "charge", "order.created"),
        Binding("charge__retry_dlx", "charge", ""),
        Binding("charge__retry_exchange", "charge__retry.1", "charge__retry.1"),
        Binding("charge__retry_exchange", "charge__retry.2", "charge__retry.2"),
    )


def test_there_is_a_retry_queue_for_every_attempt_that_any_error_may_take():
    policy = RetryPolicy.delays("1s").on(KeyError, ("1s", "1s", "1s"))
    of = GoQueue(plans=(Plan("q", ("k",), policy),))
    assert [queue.name for queue in of.topology.queues if "__retry." in queue.name] == [
        "q__retry.1",
        "q__retry.2",
        "q__retry.3",
    ]


def test_headers_have_the_types_that_a_go_program_writes():
    sent = OF.wire.outgoing(replace(ORDER, headers={}))
    assert b"\x13goqueue-retry-countI\x00\x00\x00\x00" in content.encode(sent)
    copy = settled(OF, sent, Failed(OSError())).effects[0].message
    assert b"\x13goqueue-retry-countl\x00\x00\x00\x00\x00\x00\x00\x01" in content.encode(copy)
    assert (copy.exchange, copy.routing_key, copy.expiration) == ("charge__retry_exchange", "charge__retry.1", "2000")


def test_its_envelope_is_what_their_consumer_reads():
    sent = OF.wire.outgoing(ORDER)
    assert list(json.loads(sent.body)) == ["id", "action", "topic", "data", "timestamp"]
    assert json.loads(sent.body) == {
        "id": ORDER.id,
        "action": "order.created",
        "topic": "shop",
        "data": {"id": 1},
        "timestamp": "2023-11-14T22:13:20Z",
    }


def test_a_user_overrides_its_headers():
    assert (
        OF.wire.outgoing(replace(ORDER, headers={"goqueue-schema-version": "2"})).headers["goqueue-schema-version"]
        == "2"
    )


@pytest.mark.parametrize(
    ("count", "attempt"),
    [(0, 1), (2, 3), ("2", 3), ("x", 1), (-4, 1), (True, 1), ("9" * 5000, COUNT_LIMIT), (10**30, COUNT_LIMIT)],
)
def test_retries_are_counted_as_a_number_or_as_text(count, attempt):
    assert OF.wire.read(replace(ORDER, headers={"goqueue-retry-count": count}), "charge").attempt == attempt


def test_a_message_is_known_by_the_id_in_its_headers_or_its_envelope():
    theirs = replace(ORDER, id="", body=b'{"id": "from-go", "data": {"x": 1}}')
    assert OF.wire.read(theirs, "charge").message.id == "from-go"
    assert OF.wire.read(replace(theirs, headers={"goqueue-message-id": "h"}), "charge").message.id == "h"


def test_what_is_no_envelope_is_handed_on_as_it_is():
    plain = replace(ORDER, body=b"plain")
    assert OF.wire.seen(OF.wire.read(plain, "charge")).body == b"plain"


def test_a_retry_of_theirs_comes_back_with_its_origin():
    theirs = replace(
        ORDER,
        exchange="charge__retry_dlx",
        routing_key="charge__retry.1",
        headers={
            "goqueue-original-topic-name": "shop",
            "goqueue-original-action-name": "order.created",
            "goqueue-retry-count": 1,
        },
    )
    arrival = OF.wire.read(theirs, "charge")
    assert (arrival.attempt, arrival.exchange, arrival.routing_key) == (2, "shop", "order.created")


def test_the_last_failure_is_kept_and_not_sent_where_nothing_is():
    exhausted = settled(OF, replace(ORDER, headers={"goqueue-retry-count": 2}), Failed(OSError()))
    assert exhausted.fate == "dead"
    assert (exhausted.effects[0].message.exchange, exhausted.effects[0].message.routing_key) == ("", "charge.dlq")


def test_tenfold_waits_as_theirs_does():
    of = goqueue(tenfold=True).build("carom", "shop", (CHARGE,), "app")
    assert settled(of, ORDER, Failed(OSError())).effects[0].message.expiration == "20000"
    assert of.delays("charge")[-1] == LONGEST_MS // 10


def test_a_wait_that_is_forged_or_very_long_stays_within_the_queues_there_are():
    longest = settled(OF, ORDER, Retry(after_ms=LONGEST_MS, reason="", error=None)).effects[0].message
    assert longest.expiration == str(LONGEST_MS)
    forged = {"goqueue-retry-count": 77, names.QUEUE: "charge", names.WAIT: 5_000}
    waiting = admit(OF.wire.read(replace(ORDER, headers=forged), "charge"), CHARGE, OF, MOMENT)
    assert waiting is not None
    (publish, _) = waiting.effects
    assert isinstance(publish, Publish)
    assert publish.message.routing_key == "charge__retry.2"
