"""Claims about queues that delay by themselves: what they are told, and what is decided with what they count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from layout_stage import CHARGE, ORDER

from carom.brokers.rabbitmq import versions
from carom.core import message as names
from carom.core.effects import Ack, Fail, Publish
from carom.core.outcome import Failed, Interrupted, Reject, Retry
from carom.core.retry import RetryPolicy
from carom.core.settlement import Moment, Plan, admit, settle
from carom.core.wire import Address
from carom.errors import Unsupported
from carom.layouts import Choice, Native, Shared, choose
from carom.layouts.native import ladder

LINEAR = Plan("charge", ("order.created",), RetryPolicy.linear("1s", attempts=4, max_delay="2s"))
OF = Native("carom", "shop", (LINEAR, Plan("mail", ("mail.*",), RetryPolicy.delays("5s", "1s"))))
MOMENT = Moment(7)
FAILED = Failed(OSError("down"))


def arrived(headers=None, *, redelivered=False, alone=False):
    return OF.wire.read(replace(ORDER, headers=headers or {}), "charge", redelivered=redelivered, alone=alone)


def failed(times, **more):
    """Return a delivery after so many failures, as RabbitMQ 4.3 counts them."""
    return arrived({"x-delivery-count": times, "x-acquired-count": times, **more}, redelivered=True)


def settled(arrival, outcome=FAILED):
    return settle(outcome, arrival, LINEAR, OF, MOMENT)


def test_a_queue_whose_policy_fits_is_told_how_to_delay_and_another_is_not():
    charge = dict(OF.topology.queue("charge").arguments)
    assert {name: value for name, value in charge.items() if "delayed" in name} == {
        "x-delayed-retry-type": "failed",
        "x-delayed-retry-min": 1_000,
        "x-delayed-retry-max": 2_000,
    }
    assert OF.topology.queue("mail") == Shared("carom", "shop", OF.plans).topology.queue("mail")


def test_what_goes_to_the_queue_at_once_goes_as_ever():
    assert OF.queue_address("charge") == Address("carom.return", "charge")
    assert OF.suspects == "carom.suspects.app"


def test_there_are_delay_queues_for_copies_alone():
    waits = {queue.ttl_ms for queue in OF.topology.queues if queue.ttl_ms is not None}
    assert waits == set(OF.delays("charge")) == {1_000, 2_000, 5_000}
    alone = Native("carom", "shop", (LINEAR,))
    assert alone.delays("charge") == (2_000,)
    assert {queue.ttl_ms for queue in alone.topology.queues if queue.ttl_ms} == {2_000}


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        (RetryPolicy.fixed("5s", attempts=3), (5_000, 5_000)),
        (RetryPolicy.linear("1s", attempts=5), (1_000, 4_000)),
        (RetryPolicy.delays("1s", "2s", "2s"), (1_000, 2_000)),
        (RetryPolicy.delays("1s", "4s"), None),
        (RetryPolicy.delays("2s", "1s"), None),
        (RetryPolicy.delays("0s", "1s"), None),
        (RetryPolicy.delays(), None),
        (RetryPolicy.fixed("5s", attempts=3, jitter=0.1), None),
        (RetryPolicy.fixed("5s", attempts=3).on(KeyError, ("1s",)), None),
        (RetryPolicy.custom(lambda attempt, error: 1, attempts=3), None),
        (RetryPolicy.fixed("5s", attempts=101), None),
    ],
)
def test_equal_steps_up_to_a_limit_fit(policy, found):
    assert ladder(Plan("q", (), policy)) == found


def test_a_failure_goes_back_as_one_and_the_last_is_published_with_its_reason():
    for times in range(3):
        settlement = settled(failed(times) if times else arrived())
        assert (settlement.effects, settlement.fate) == ((Fail(),), "retried")
        assert settlement.delay_ms == min(1_000 * (times + 1), 2_000)
    (publish, ack) = settled(failed(3)).effects
    assert isinstance(publish, Publish)
    assert isinstance(ack, Ack)
    assert (publish.message.exchange, publish.message.headers[names.REASON]) == ("carom.dead", "exhausted")
    assert publish.message.headers[names.ATTEMPT] == 4


def test_what_was_handed_back_is_no_attempt():
    assert arrived({"x-acquired-count": 5}, redelivered=True).attempt == 1
    assert settled(arrived(), Interrupted()).fate == "handed back"


def test_a_count_that_a_publisher_wrote_is_not_believed():
    forged = arrived({"x-delivery-count": 3})
    assert forged.attempt == 1
    assert settled(forged).effects == (Fail(),)
    (publish, _) = settled(forged, Retry(after_ms=2_000, reason="", error=None)).effects
    assert publish.message.exchange == "carom.delay.2s"


def test_a_wait_that_the_queue_would_not_keep_is_a_copy():
    (publish, _) = settled(failed(1), Retry(after_ms=5_000, reason="", error=None)).effects
    assert publish.message.exchange == "carom.delay.5s"
    assert publish.message.headers[names.ATTEMPT] == 3
    again = OF.wire.read(publish.message, "charge")
    assert again.attempt == 3
    (copy, _) = settled(again).effects  # its count began anew, so the queue would wait too short
    assert copy.message.exchange == "carom.delay.2s"


def test_what_comes_back_more_often_than_it_was_tried_is_a_suspect():
    arrival = failed(4)
    assert (arrival.attempt, arrival.crashes, arrival.returned) == (4, 2, True)
    apart = admit(arrival, LINEAR, OF, MOMENT)
    assert apart is not None
    assert apart.fate == "set apart"
    condemned = admit(arrival, replace(LINEAR, crash_limit=2), OF, MOMENT)
    assert condemned is not None
    assert condemned.reason == "crash-loop"


def test_a_suspect_is_read_and_retried_as_ever():
    suspect = {names.QUEUE: "charge", names.CRASHES: 2, names.ATTEMPT: 2, "x-delivery-count": 1}
    arrival = arrived(suspect, redelivered=True, alone=True)
    assert (arrival.attempt, arrival.crashes) == (2, 3)
    (publish, _) = settled(arrival).effects
    assert publish.message.exchange == "carom.delay.2s"


def test_a_rejection_and_another_policy_are_copies_as_ever():
    assert settled(arrived(), Reject("no")).effects[0].message.exchange == "carom.dead"
    other = settle(FAILED, OF.wire.read(ORDER, "mail"), OF.plans[1], OF, MOMENT)
    assert other.effects[0].message.exchange == "carom.delay.5s"


@pytest.mark.parametrize("server", ["3.10.8", "3.13.7", "4.2.9"])
def test_servers_that_would_ignore_it_are_refused_with_a_sentence(server):
    with pytest.raises(Unsupported, match=r"x-delayed-retry-type, which is ignored before 4\.3"):
        versions.check(OF.topology, server)


def test_servers_from_4_3_on_are_not():
    versions.check(OF.topology, "4.3.1")


MANY = Plan("many", ("m",), RetryPolicy.exponential("1s", factor=1.5, attempts=30, max_delay="10d"))
SECONDS = Plan("many", ("m",), RetryPolicy.linear("7s", attempts=40).on(KeyError, ("1s",)))


@pytest.mark.parametrize(
    ("server", "plans", "name", "why"),
    [
        ("4.3.1", (LINEAR,), "native", "RabbitMQ 4.3.1 delays by itself, and every policy waits in equal steps"),
        ("4.3.1", (LINEAR, CHARGE), "native", "the policies of charge wait in equal steps"),
        ("4.3.1", (CHARGE,), "shared", "but in equal steps, and no policy here waits so"),
        ("4.2.0", (LINEAR,), "shared", "RabbitMQ 4.2.0 does not delay by itself"),
        ("", (LINEAR,), "shared", "a server that does not say its version does not delay by itself"),
        ("3.10.8", (SECONDS,), "binary", "the policies ask for 40 distinct delays, and 28 queues make any of them"),
        ("3.10.8", (MANY,), "shared", "it means the same everywhere"),
    ],
)
def test_a_layout_is_chosen_by_the_server_and_the_policies_and_says_why(server, plans, name, why):
    choice = choose(server, plans)
    assert isinstance(choice, Choice)
    assert choice.name == name
    assert why in choice.why
