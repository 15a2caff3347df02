"""Claims about the wait queue, where they are its own: refusals are counted by the broker, and end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from layout_stage import ORDER

from carom.core import message as names
from carom.core.effects import Publish, Refuse
from carom.core.outcome import Failed, Retry
from carom.core.retry import RetryPolicy
from carom.core.settlement import Moment, Plan, settle
from carom.core.soundness import loops
from carom.core.topology import at_least_once, quorum
from carom.errors import ConfigurationError
from carom.layouts import WaitQueue, wait_queue

PLAN = Plan("charge", ("order.created",), RetryPolicy.fixed("30s", attempts=3))
OF = WaitQueue("carom", "shop", (PLAN,))
FAILED = Failed(OSError("down"))


def refused(count, *, queue="charge", **more):
    """Return the headers of a message that a queue refused so often, as the broker writes them."""
    waited = {
        "queue": "charge.retry",
        "reason": "expired",
        "count": count,
        "exchange": "",
        "routing-keys": ["charge.retry"],
    }
    death = {
        "queue": queue,
        "reason": "rejected",
        "count": count,
        "exchange": "shop",
        "routing-keys": ["order.created"],
    }
    return {"x-death": [waited, {**death, **more}]}


def arrived(headers, **how):
    message = replace(ORDER, exchange="", routing_key="charge", headers=headers)
    return OF.wire.read(message, "charge", **how)


def settled(arrival, outcome=FAILED, of=OF):
    return settle(outcome, arrival, PLAN, of, Moment(7))


def test_the_topology_is_as_drawn():
    theirs = [queue for queue in OF.topology.queues if not queue.name.startswith("carom.")]
    assert theirs == [
        quorum("charge", delivery_limit=1_000_000, **at_least_once("", "charge.retry")),
        quorum("charge.retry", message_ttl=30_000, **at_least_once("", "charge")),
        quorum("charge.dlq", delivery_limit=1_000_000),
    ]


def test_nothing_that_dies_by_itself_goes_round():
    assert list(loops(OF.topology)) == []


def test_without_retries_what_is_refused_is_dead():
    of = WaitQueue("carom", "shop", (Plan("charge", ("order.created",)),))
    assert of.topology.queue("charge.retry") is None
    assert of.topology.queue("charge").dead_letter_key == "charge.dlq"


def test_an_attempt_is_one_more_than_the_queues_refusals():
    assert arrived({}).attempt == 1
    assert arrived(refused(2)).attempt == 3
    assert arrived(refused(2, queue="another")).attempt == 1
    assert arrived(refused(2, reason="expired")).attempt == 1
    assert arrived({"x-death": "junk"}).attempt == 1
    assert arrived({"x-death": ["junk", {"queue": "charge", "reason": "rejected", "count": "many"}]}).attempt == 2


@pytest.mark.parametrize(
    ("refusals", "counted", "crashes", "returned"),
    [(0, 1, 1, True), (2, 2, 0, False), (2, 3, 1, True), (3, 1, 0, False)],
)
def test_refusals_that_a_newer_broker_counts_as_hand_outs_are_no_crashes(refusals, counted, crashes, returned):
    headers = {**(refused(refusals) if refusals else {}), "x-delivery-count": counted}
    arrival = arrived(headers, redelivered=True)
    assert (arrival.attempt, arrival.crashes, arrival.returned) == (refusals + 1, crashes, returned)
    assert not arrival.uncounted


def test_where_it_was_first_published_is_read_from_its_first_death():
    arrival = arrived(refused(1))
    assert (arrival.exchange, arrival.routing_key) == ("shop", "order.created")
    without = arrived(refused(1, **{"routing-keys": []}))
    assert (without.exchange, without.routing_key) == ("", "charge")


def test_a_failure_is_refused_and_the_last_is_published_with_its_reason():
    first = settled(arrived({}))
    assert (first.effects, first.fate, first.delay_ms, first.error) == ((Refuse(),), "retried", 30_000, "down")
    last = settled(arrived(refused(2)))
    (publish, _) = last.effects
    assert isinstance(publish, Publish)
    letter = publish.message
    assert (letter.routing_key, letter.id, letter.correlation_id) == ("charge.dlq", ORDER.id, ORDER.correlation_id)
    assert (letter.headers[names.ATTEMPT], letter.headers[names.REASON]) == (3, "exhausted")
    assert "x-death" not in letter.headers


def test_a_wait_beyond_the_queues_own_is_a_copy_in_several_turns():
    (publish, _) = settled(arrived(refused(1)), Retry(after_ms=70_000, reason="", error=None)).effects
    assert publish.message.routing_key == "charge.retry"
    assert publish.message.headers[names.WAIT] == 40_000
    back = OF.wire.read(publish.message, "charge")
    assert (back.attempt, back.routing_key, back.wait_ms) == (3, "order.created", 40_000)


def test_what_was_counted_before_a_copy_is_counted_on():
    (publish, _) = settled(arrived(refused(1)), Retry(after_ms=70_000, reason="", error=None)).effects
    again = replace(publish.message, headers={**publish.message.headers, **refused(2)})
    assert OF.wire.read(again, "charge").attempt == 5


def test_a_suspect_that_failed_is_a_copy():
    (publish, _) = settled(arrived({}, alone=True)).effects
    assert publish.message.routing_key == "charge.retry"


def test_copies_refuses_nothing():
    of = wait_queue(copies=True).build("carom", "shop", (PLAN,), "app")
    arrival = of.wire.read(ORDER, "charge")
    (publish, _) = settled(arrival, of=of).effects
    assert (publish.message.routing_key, publish.message.headers[names.ATTEMPT]) == ("charge.retry", 2)


def test_a_queue_cannot_have_two_waits():
    several = Plan("charge", ("k",), RetryPolicy.delays("1s", "5s"))
    with pytest.raises(ConfigurationError, match="'charge' is to wait 1s, 5s, and in the layout wait_queue"):
        WaitQueue(plans=(several,))


def test_ids_are_in_the_headers_and_so_is_the_direct_cause():
    caused = replace(ORDER, headers={names.TRAIL: ["first", "cause"]})
    sent = OF.wire.outgoing(caused)
    assert sent.headers["causation_id"] == "cause"
    assert (sent.headers["message_id"], sent.headers["correlation_id"]) == (ORDER.id, ORDER.correlation_id)
    assert "causation_id" not in OF.wire.outgoing(ORDER).headers
