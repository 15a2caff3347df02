"""Claims about FreeFlow's layout and its wire, where they are its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from layout_stage import ORDER

from carom.core.outcome import Failed
from carom.core.retry import RetryPolicy
from carom.core.routing import route
from carom.core.settlement import Moment, Plan, settle
from carom.core.topology import Binding, Exchange, Queue, arguments
from carom.layouts import FreeFlow, freeflow

TIERS = RetryPolicy.delays("30s", "5m", "30m")
USERS = Plan("freeflow.users.queue", ("user.*", "auth.*"), TIERS)
AUDIT = Plan("freeflow.audit.queue", ("#",), TIERS)
EXACT = Plan("welcome", ("user.created", "user.created.twice"), TIERS)
EVERY = (USERS, AUDIT, EXACT)
CREATED = replace(ORDER, exchange="freeflow.events", routing_key="user.created")
LOGIN = replace(ORDER, exchange="freeflow.events", routing_key="auth.login")


def retried(layout, plan, message):
    (publish, _) = settle(Failed(OSError()), layout.wire.read(message, plan.queue), plan, layout, Moment(0)).effects
    return publish.message


def reached(layout, message):
    """Return the queues that a retry comes back to."""
    (waiting,) = route(layout.topology, message.exchange, message.routing_key)
    queue = layout.topology.queue(waiting)
    return set(route(layout.topology, queue.dead_letter_exchange, queue.dead_letter_key))


def test_the_topology_is_declared_as_its_definitions_declare_it():
    of = FreeFlow(plans=(USERS,))
    assert of.topology.exchanges == (
        Exchange("freeflow.events", "topic"),
        Exchange("freeflow.events.retry", "direct"),
        Exchange("freeflow.events.dlx", "direct"),
    )
    dead = {"x-dead-letter-exchange": "freeflow.events.dlx", "x-dead-letter-routing-key": "dlq"}
    assert of.topology.queue("freeflow.users.queue") == Queue(
        "freeflow.users.queue", arguments=arguments({"x-queue-type": "classic", **dead})
    )
    assert of.topology.queue("freeflow.events.dlq") == Queue(
        "freeflow.events.dlq",
        arguments=arguments({"x-queue-type": "classic", "x-message-ttl": 604_800_000, "x-max-length": 100_000}),
    )
    assert of.topology.queue("freeflow.auth.retry.5m") == Queue(
        "freeflow.auth.retry.5m",
        arguments=arguments(
            {
                "x-queue-type": "classic",
                "x-message-ttl": 300_000,
                "x-max-length": 10_000,
                "x-dead-letter-exchange": "freeflow.events",
                "x-dead-letter-routing-key": "auth.retry",
            }
        ),
    )
    waiting = {queue.name for queue in of.topology.queues if ".retry." in queue.name}
    tiers = ("30s", "5m", "30m")
    assert waiting == {f"freeflow.{domain}.retry.{tier}" for domain in ("user", "auth") for tier in tiers}
    assert Binding("freeflow.events.retry", "freeflow.user.retry.30s", "user.30s") in of.topology.bindings
    assert not any(binding.key == "user.retry" for binding in of.topology.bindings)


def test_a_retry_goes_by_the_domain_of_its_own_key_and_comes_back_to_everybody_who_is_bound_there():
    of = FreeFlow(plans=EVERY)
    assert retried(of, USERS, CREATED).routing_key == "user.30s"
    assert retried(of, USERS, LOGIN).routing_key == "auth.30s"
    assert retried(of, AUDIT, CREATED).routing_key == "audit.30s"
    assert retried(of, EXACT, CREATED).routing_key == "user.30s"
    assert reached(of, retried(of, USERS, CREATED)) == {"freeflow.users.queue", "freeflow.audit.queue", "welcome"}
    assert reached(of, retried(of, USERS, LOGIN)) == {"freeflow.users.queue", "freeflow.audit.queue"}
    assert reached(of, retried(of, AUDIT, CREATED)) == {"freeflow.audit.queue"}


def test_returning_to_the_queue_disturbs_nobody():
    of = freeflow(return_to="queue").build("carom", "freeflow.events", EVERY, "app")
    for plan in EVERY:
        assert reached(of, retried(of, plan, CREATED)) == {plan.queue}
    assert not [queue.name for queue in of.topology.queues if queue.name.startswith("freeflow.user.retry")]


def test_a_queue_without_keys_has_a_domain_of_its_own():
    of = FreeFlow(plans=(Plan("carom.later", retry=TIERS),))
    assert reached(of, retried(of, of.plans[0], CREATED)) == {"carom.later"}


@pytest.mark.parametrize(("count", "attempt"), [(None, 1), (0, 1), (2, 3), ("2", 1), (-1, 1)])
def test_retries_are_counted_as_a_number(count, attempt):
    message = replace(CREATED, headers={} if count is None else {"x-retry-count": count})
    assert FreeFlow(plans=EVERY).wire.read(message, USERS.queue).attempt == attempt


def test_a_retry_carries_count_key_and_exchange():
    copy = retried(FreeFlow(plans=EVERY), USERS, CREATED)
    ours = ("x-retry-count", "x-original-routing-key", "x-original-exchange")
    assert [copy.headers[name] for name in ours] == [1, "user.created", "freeflow.events"]


def test_everything_a_user_says_in_headers_becomes_text():
    headers = {"n": 7, "on": True, "none": None, "raw": b"\0", "text": "t"}
    sent = FreeFlow().wire.outgoing(replace(CREATED, headers=headers))
    assert dict(sent.headers) == {
        "eventId": ORDER.id,
        "correlationId": ORDER.correlation_id,
        "n": "7",
        "on": "true",
        "none": "null",
        "raw": "b'\\x00'",
        "text": "t",
    }


def test_nests_envelope_is_put_on_and_taken_off_and_survives_a_retry():
    of = freeflow(nest=True).build("carom", "freeflow.events", EVERY, "app")
    sent = of.wire.outgoing(CREATED)
    assert sent.body == b'{"pattern":"user.created","data":{"id":1}}'
    assert of.wire.seen(of.wire.read(sent, USERS.queue)).body == b'{"id":1}'
    assert retried(of, USERS, sent).body == sent.body
    assert of.wire.seen(of.wire.read(CREATED, USERS.queue)).body == CREATED.body


def test_a_dead_letter_is_shown_to_them_and_kept_by_us():
    of = FreeFlow(plans=EVERY)
    to = of.dead_address(USERS.queue)
    assert route(of.topology, to.exchange, to.routing_key) == {
        "freeflow.users.queue.dlq",
        "freeflow.events.dlq",
    }


def test_without_listeners_there_is_only_the_exchange_to_publish_to():
    assert FreeFlow().topology.exchanges == (Exchange("freeflow.events", "topic"),)
