"""Claims about the default layout: what exists on the broker, and that every address leads to one queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carom.core.retry import RetryPolicy
from carom.core.routing import route
from carom.core.settlement import Plan
from carom.core.topology import Binding, Exchange, Queue, at_least_once, problems, quorum, union
from carom.core.wire import Address
from carom.errors import ConfigurationError, TopologyError
from carom.layouts import (
    Binary,
    Choice,
    Chosen,
    GoQueue,
    Native,
    PerQueue,
    Shared,
    as_auto,
    chosen,
    layout,
    sampled,
)
from carom.layouts.shared import DELIVERY_LIMIT, LADDER_MS, UNLIMITED

CHARGE = Plan("billing.charge", ("order.created", "order.paid"), RetryPolicy.delays(2, 5))
MAIL = Plan("mail.send", ("order.*",), RetryPolicy.delays(2, "1m"))
AUDIT = Plan("audit", ("#",))
SILENT = Plan("silent")
EVERY = (CHARGE, MAIL, AUDIT, SILENT)

policies = st.one_of(
    st.lists(st.integers(0, 90_000).map(lambda ms: ms / 1000), max_size=5).map(lambda d: RetryPolicy.delays(*d)),
    st.builds(RetryPolicy.exponential, st.just("1s"), attempts=st.integers(1, 6), jitter=st.sampled_from([0, 0.3])),
    st.just(RetryPolicy.custom(lambda attempt, error: 1, attempts=3)),
)
names = st.lists(st.from_regex(r"[a-z]{1,9}(\.[a-z]{1,9})?", fullmatch=True), unique=True, max_size=4)


def queue(of: Shared, name: str) -> Queue:
    found = of.topology.queue(name)
    assert found is not None
    return found


def reached(of: Shared, to: Address) -> set[str]:
    return set(route(of.topology, to.exchange, to.routing_key))


def after_expiry(of: Shared, name: str, key: str) -> set[str]:
    """Return where a message with this key goes when it expires in a queue."""
    expired = queue(of, name)
    own = expired.dead_letter_key
    return set(route(of.topology, expired.dead_letter_exchange or "", key if own is None else own))


def test_the_topology_is_as_drawn():
    of = Shared(plans=(CHARGE,))
    dead = at_least_once("carom.dead", "billing.charge")
    back = at_least_once("carom.return")
    assert set(of.topology.exchanges) == {
        Exchange("events", "topic"),
        Exchange("carom.dead", "direct", alternate="carom.lost"),
        Exchange("carom.return", "direct", alternate="carom.lost"),
        Exchange("carom.lost", "fanout"),
        Exchange("carom.suspects.app", "fanout"),
        Exchange("carom.delay.2s", "fanout"),
        Exchange("carom.delay.5s", "fanout"),
    }
    assert set(of.topology.queues) == {
        quorum("billing.charge", delivery_limit=DELIVERY_LIMIT, **dead),
        quorum("billing.charge.dlq", delivery_limit=UNLIMITED),
        quorum("carom.suspects.app", delivery_limit=DELIVERY_LIMIT, **at_least_once("carom.dead")),
        quorum("carom.delay.2s", message_ttl=2_000, **back),
        quorum("carom.delay.5s", message_ttl=5_000, **back),
        quorum("carom.lost", delivery_limit=UNLIMITED),
    }
    assert set(of.topology.bindings) == {
        Binding("events", "billing.charge", "order.created"),
        Binding("events", "billing.charge", "order.paid"),
        Binding("carom.return", "billing.charge", "billing.charge"),
        Binding("carom.dead", "billing.charge.dlq", "billing.charge"),
        Binding("carom.suspects.app", "carom.suspects.app"),
        Binding("carom.delay.2s", "carom.delay.2s"),
        Binding("carom.delay.5s", "carom.delay.5s"),
        Binding("carom.lost", "carom.lost"),
    }


def test_queues_share_a_delay_and_each_gets_its_own_back():
    of = Shared(plans=EVERY)
    assert of.delays("billing.charge") == of.delays("audit") == (2_000, 5_000, 60_000)
    assert of.delay_address("billing.charge", 2_000).exchange == of.delay_address("mail.send", 2_000).exchange
    for plan in EVERY:
        address = of.delay_address(plan.queue, 2_000)
        assert reached(of, address) == {"carom.delay.2s"}
        assert after_expiry(of, "carom.delay.2s", address.routing_key) == {plan.queue}


def test_a_retry_does_not_pass_the_exchange_where_others_listen():
    of = Shared(plans=EVERY)
    assert set(route(of.topology, "events", "order.created")) == {"billing.charge", "mail.send", "audit"}
    assert reached(of, of.queue_address("billing.charge")) == {"billing.charge"}


def test_a_queue_without_keys_is_reached_by_name_alone():
    of = Shared(plans=(SILENT,))
    assert reached(of, of.queue_address("silent")) == {"silent"}
    assert set(route(of.topology, "events", "silent")) == set()


def test_what_the_broker_lets_die_goes_where_dead_letters_stay():
    of = Shared(plans=EVERY)
    for plan in EVERY:
        dead = {f"{plan.queue}.dlq"}
        assert after_expiry(of, plan.queue, "whatever.it.was") == reached(of, of.dead_address(plan.queue)) == dead
        assert queue(of, f"{plan.queue}.dlq").dead_letter_exchange is None


def test_a_suspect_keeps_the_name_of_its_queue_and_dies_among_its_dead_letters():
    of = Shared(plans=EVERY, app="billing")
    for plan in EVERY:
        address = of.suspect_address(plan.queue)
        assert reached(of, address) == {of.suspects} == {"carom.suspects.billing"}
        assert after_expiry(of, of.suspects, address.routing_key) == {f"{plan.queue}.dlq"}


def test_a_retry_whose_queue_is_gone_is_kept_where_it_can_be_seen():
    of = Shared(plans=(CHARGE,))
    assert after_expiry(of, "carom.delay.2s", "a.queue.that.was.deleted") == {"carom.lost"}
    assert queue(of, "carom.lost").ttl_ms is None


@given(names, st.lists(policies, min_size=4, max_size=4))
def test_every_address_of_any_plans_leads_to_exactly_one_queue_and_nothing_can_be_dropped(queues, retries):
    plans = tuple(Plan(name, (name,), retry) for name, retry in zip(queues, retries, strict=False))
    of = Shared("ns", "my.events", plans)
    assert problems(of.topology) == ()
    for plan in plans:
        assert reached(of, of.queue_address(plan.queue)) == {plan.queue}
        assert reached(of, of.dead_address(plan.queue)) == {f"{plan.queue}.dlq"}
        wanted = {delay for delay in plan.retry.possible_delays() if delay}
        assert wanted <= set(of.delays(plan.queue))
        for delay in of.delays(plan.queue):
            (waiting,) = reached(of, of.delay_address(plan.queue, delay))
            assert queue(of, waiting).ttl_ms == delay
            assert after_expiry(of, waiting, plan.queue) == {plan.queue}
    for each in of.topology.queues:
        assert each.kind == "quorum"
        assert not {"x-expires", "x-max-length", "x-max-length-bytes"} & set(dict(each.arguments))
        if each.dead_letter_exchange is not None:
            assert each.argument("x-dead-letter-strategy") == "at-least-once"


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        (RetryPolicy.delays(), ()),
        (RetryPolicy.delays(5, 2, 5), (2_000, 5_000)),
        (RetryPolicy.delays(0, 0), LADDER_MS),
        (RetryPolicy.delays(0, "2s"), (2_000,)),
        (RetryPolicy.custom(lambda attempt, error: 7, attempts=3), LADDER_MS),
        (RetryPolicy.delays("2s").on(KeyError, RetryPolicy.fixed("1m", attempts=30)), (2_000, 60_000)),
        (
            RetryPolicy.delays("2s").on(KeyError, RetryPolicy.custom(lambda attempt, error: 7, attempts=3)),
            tuple(sorted((2_000, *LADDER_MS))),
        ),
    ],
)
def test_every_delay_that_can_be_known_exists_and_a_ladder_where_it_cannot(retry, delays):
    plans = (Plan("q", ("k",), retry),)
    assert Shared(plans=plans).delays("q") == PerQueue(plans=plans).delays("q") == delays


def test_without_listeners_there_is_only_the_exchange_to_publish_to():
    assert set(Shared(exchange="shop").topology.exchanges) == {Exchange("shop", "topic")}
    assert not Shared().topology.queues


def test_two_services_of_one_namespace_and_two_namespaces_live_on_one_broker():
    one = Shared(plans=(CHARGE,)).topology
    assert problems(union(one, Shared(plans=(MAIL,)).topology)) == ()
    other = Shared("other", plans=(MAIL,)).topology
    ours = {thing.name for thing in (*one.exchanges, *one.queues)}
    assert ours & {thing.name for thing in (*other.exchanges, *other.queues)} == {"events"}


@pytest.mark.parametrize(
    ("plans", "complaint"),
    [
        ((Plan("orders"), Plan("orders.dlq")), "queue 'orders.dlq' is declared twice"),
        ((CHARGE, Plan("carom.delay.2s")), "queue 'carom.delay.2s' is declared twice"),
        ((Plan("carom.lost"),), "queue 'carom.lost' is declared twice"),
        ((Plan("q" * 252),), "of 256 bytes, and a broker takes 255: make it shorter"),
        ((Plan("é" * 126),), "of 256 bytes, and a broker takes 255: make it shorter"),
        ((Plan("q", ("k" * 256,)),), "key of 256 bytes"),
        ((Plan(""),), "has no name"),
        ((Plan("amq.q"),), "belongs to the broker"),
    ],
)
def test_names_that_cannot_work_are_refused_with_a_sentence(plans, complaint):
    with pytest.raises(TopologyError, match=complaint):
        Shared(plans=plans)


@pytest.mark.parametrize("exchange", ["", "carom.dead", "carom.return", "carom.lost", "carom.delay.2s", "amq.topic"])
def test_an_exchange_that_is_taken_already_is_refused(exchange):
    with pytest.raises(TopologyError):
        Shared("carom", exchange, (CHARGE,))


def test_a_namespace_that_leaves_no_room_is_refused():
    with pytest.raises(TopologyError, match="255"):
        Shared("n" * 250, plans=(CHARGE,))


def test_a_layout_is_a_value():
    assert Shared(plans=EVERY) == Shared(plans=EVERY)
    assert hash(Shared(plans=EVERY)) == hash(Shared(plans=EVERY))
    assert Shared(plans=EVERY) != Shared("other", plans=EVERY)


def test_a_layout_is_chosen_by_its_name_or_is_one_with_its_switches():
    assert layout("shared", "ns", "shop", EVERY) == Shared("ns", "shop", EVERY)
    assert layout("per_queue", "ns", "shop", EVERY) == PerQueue("ns", "shop", EVERY)
    assert as_auto(Choice("native", "")) == Chosen("auto", Native)
    own = Chosen("ours", Shared)
    assert chosen(own) is own
    assert layout(own, "ns", "shop", EVERY) == Shared("ns", "shop", EVERY)


def test_a_layout_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(ConfigurationError, match=r"no layout is called 'sharde': choose one of .*goqueue, kbairak"):
        layout("sharde", "ns", "shop", EVERY)


def test_the_places_that_are_published_to_can_be_counted_where_delays_cannot():
    assert sampled(Shared(plans=EVERY), "audit") == (2_000, 5_000, 60_000)
    any_delay = Binary(plans=EVERY)
    levels = {any_delay.delay_address("audit", delay).exchange for delay in sampled(any_delay, "audit")}
    assert levels == {f"carom.level.{level:02}" for level in range(28)}
    assert len(sampled(GoQueue(plans=EVERY), "audit")) < 64
