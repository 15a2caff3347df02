"""Claims about the layout that gives every queue delay queues of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carom.core.retry import RetryPolicy
from carom.core.routing import route
from carom.core.settlement import Plan
from carom.core.topology import Binding, Exchange, Queue, at_least_once, problems, quorum
from carom.core.wire import Address
from carom.errors import TopologyError
from carom.layouts.per_queue import PerQueue
from carom.layouts.shared import DELIVERY_LIMIT, UNLIMITED

ORDERS = Plan("orders", ("order.created", "order.paid"), RetryPolicy.delays(2, "1m30s"))
MAIL = Plan("mail", ("order.*",), RetryPolicy.delays(2, 5))
SILENT = Plan("silent")
EVERY = (ORDERS, MAIL, SILENT)

policies = st.one_of(
    st.lists(st.integers(0, 90_000).map(lambda ms: ms / 1000), max_size=5).map(lambda d: RetryPolicy.delays(*d)),
    st.just(RetryPolicy.custom(lambda attempt, error: 1, attempts=3)),
)
names = st.lists(st.from_regex(r"[a-z]{1,9}(\.[a-z]{1,9})?", fullmatch=True), unique=True, max_size=4)


def queue(of: PerQueue, name: str) -> Queue:
    found = of.topology.queue(name)
    assert found is not None
    return found


def reached(of: PerQueue, to: Address) -> set[str]:
    return set(route(of.topology, to.exchange, to.routing_key))


def after_expiry(of: PerQueue, name: str) -> set[str]:
    expired = queue(of, name)
    return set(route(of.topology, expired.dead_letter_exchange or "", expired.dead_letter_key or ""))


def test_the_topology_is_as_drawn():
    dead = at_least_once("", "orders.dlq")
    back = at_least_once("", "orders")
    of = PerQueue(exchange="shop", plans=(ORDERS,))
    assert of.topology.exchanges == (Exchange("shop", "topic"),)
    assert of.topology.queues == (
        quorum("orders", delivery_limit=DELIVERY_LIMIT, **dead),
        quorum("orders.dlq", delivery_limit=UNLIMITED),
        quorum("orders.delay_2s", message_ttl=2_000, **back),
        quorum("orders.delay_1m30s", message_ttl=90_000, **back),
        quorum("carom.suspects.app", delivery_limit=DELIVERY_LIMIT, **at_least_once("", "carom.suspects.app.dlq")),
        quorum("carom.suspects.app.dlq", delivery_limit=UNLIMITED),
    )
    assert of.topology.bindings == (
        Binding("shop", "orders", "order.created"),
        Binding("shop", "orders", "order.paid"),
    )


def test_every_queue_has_its_own_delays_alone():
    of = PerQueue(plans=EVERY)
    assert [of.delays(plan.queue) for plan in EVERY] == [(2_000, 90_000), (2_000, 5_000), ()]
    assert reached(of, of.delay_address("orders", 2_000)) == {"orders.delay_2s"}
    assert reached(of, of.delay_address("mail", 2_000)) == {"mail.delay_2s"}


def test_a_retry_does_not_pass_the_exchange_where_others_listen():
    of = PerQueue(plans=EVERY)
    assert set(route(of.topology, "events", "order.created")) == {"orders", "mail"}
    assert reached(of, of.queue_address("orders")) == after_expiry(of, "orders.delay_2s") == {"orders"}


def test_what_the_broker_lets_die_goes_where_dead_letters_stay():
    of = PerQueue(plans=EVERY)
    for plan in EVERY:
        assert after_expiry(of, plan.queue) == reached(of, of.dead_address(plan.queue)) == {f"{plan.queue}.dlq"}
        assert queue(of, f"{plan.queue}.dlq").dead_letter_exchange is None


@given(names, st.lists(policies, min_size=4, max_size=4))
def test_every_address_of_any_plans_leads_to_exactly_one_queue_and_nothing_can_be_dropped(queues, retries):
    plans = tuple(Plan(name, (name,), retry) for name, retry in zip(queues, retries, strict=False))
    of = PerQueue("ns", "my events", plans)
    assert problems(of.topology) == ()
    for plan in plans:
        assert reached(of, of.queue_address(plan.queue)) == {plan.queue}
        assert reached(of, of.dead_address(plan.queue)) == {f"{plan.queue}.dlq"}
        assert {delay for delay in plan.retry.possible_delays() if delay} <= set(of.delays(plan.queue))
        for delay in of.delays(plan.queue):
            (waiting,) = reached(of, of.delay_address(plan.queue, delay))
            assert queue(of, waiting).ttl_ms == delay
            assert after_expiry(of, waiting) == {plan.queue}
    for each in of.topology.queues:
        assert each.kind == "quorum"
        assert not {"x-expires", "x-max-length", "x-max-length-bytes"} & set(dict(each.arguments))
        if each.dead_letter_exchange is not None:
            assert each.argument("x-dead-letter-strategy") == "at-least-once"


def test_without_listeners_there_is_only_the_exchange_to_publish_to():
    assert PerQueue().topology.exchanges == (Exchange("events", "topic"),)
    assert not PerQueue().topology.queues


@pytest.mark.parametrize(
    ("plans", "complaint"),
    [
        ((Plan("orders"), Plan("orders.dlq")), "queue 'orders.dlq' is declared twice"),
        ((ORDERS, Plan("orders.delay_2s")), "queue 'orders.delay_2s' is declared twice"),
        ((Plan("q" * 252),), "of 256 bytes, and a broker takes 255: make it shorter"),
        ((Plan("q" * 250, retry=RetryPolicy.delays(2)),), "'q+.delay_2s' has a name of 259 bytes"),
        ((Plan("q", ("k" * 256,)),), "key of 256 bytes"),
        ((Plan(""),), "has no name"),
        ((Plan("amq.q"),), "belongs to the broker"),
    ],
)
def test_names_that_cannot_work_are_refused_with_a_sentence(plans, complaint):
    with pytest.raises(TopologyError, match=complaint):
        PerQueue(plans=plans)


def test_a_layout_is_a_value():
    assert PerQueue(plans=EVERY) == PerQueue(plans=EVERY)
    assert hash(PerQueue(plans=EVERY)) == hash(PerQueue(plans=EVERY))
    assert PerQueue(plans=EVERY) != PerQueue(exchange="shop", plans=EVERY)
