"""Claims about the layout of any delay, where they are its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carom.core.retry import RetryPolicy
from carom.core.routing import route
from carom.core.settlement import Plan
from carom.core.topology import Binding, Exchange, at_least_once, problems, quorum, union
from carom.errors import ConfigurationError, TopologyError
from carom.layouts import Binary, Shared, binary
from carom.layouts.binary import LEVELS, LONGEST_S, rounded, word

NAMES = ("orders", "eu.orders", "a*b", "a#b", "#", "50%.of", "carom.later")
PLANS = tuple(Plan(name, ("k",), RetryPolicy.delays("1s", "3h")) for name in NAMES)
OF = Binary(plans=PLANS, spread=0)


def way(of, to):
    """Follow a message to its queue: the seconds it waits, in how many queues, and where it arrives."""
    exchange, key, waited, hops = to.exchange, to.routing_key, 0, 0
    while True:
        (name,) = route(of.topology, exchange, key)
        queue = of.topology.queue(name)
        if queue.ttl_ms is None:
            return waited, hops, name
        waited, hops, exchange = waited + queue.ttl_ms // 1000, hops + 1, queue.dead_letter_exchange
        assert queue.dead_letter_key is None


def test_the_levels_are_as_drawn():
    of = Binary("ns", plans=PLANS[:1])
    assert [queue.name for queue in of.topology.queues if ".level." in queue.name] == [
        f"ns.level.{level:02}" for level in range(28)
    ]
    assert of.topology.queue("ns.level.03") == quorum("ns.level.03", message_ttl=8_000, **at_least_once("ns.level.02"))
    assert of.topology.queue("ns.level.00") == quorum("ns.level.00", message_ttl=1_000, **at_least_once("ns.due"))
    assert of.topology.exchange("ns.due") == Exchange("ns.due", "topic", alternate="ns.lost")
    for binding in (
        Binding("ns.level.27", "ns.level.27", "1.#"),
        Binding("ns.level.27", "ns.level.26", "0.#", "exchange"),
        Binding("ns.level.00", "ns.level.00", "*." * 27 + "1.#"),
        Binding("ns.level.00", "ns.due", "*." * 27 + "0.#", "exchange"),
        Binding("ns.due", "orders", "*." * 28 + "orders"),
    ):
        assert binding in of.topology.bindings


def test_a_delay_is_published_to_the_level_of_its_highest_bit():
    to = OF.delay_address("orders", 10_000)
    assert (to.exchange, to.routing_key) == ("carom.level.03", "0." * 24 + "1.0.1.0.orders")


@given(st.integers(1, LONGEST_S), st.sampled_from(NAMES))
def test_any_delay_leads_to_its_queue_and_no_other_after_exactly_so_long(seconds, name):
    assert way(OF, OF.delay_address(name, seconds * 1_000)) == (seconds, seconds.bit_count(), name)


@given(st.integers(1, LONGEST_S), st.sampled_from([0, 0.1, 0.2, 1]))
def test_a_delay_is_rounded_up_within_its_spread_to_fewer_queues(seconds, spread):
    chosen = rounded(seconds, spread)
    assert seconds <= chosen <= seconds * (1 + spread)
    assert chosen.bit_count() <= seconds.bit_count()


@pytest.mark.parametrize(("seconds", "chosen"), [(30, 32), (60, 64), (1000, 1024), (300, 320), (600, 640), (1, 1)])
def test_familiar_delays_take_a_queue_or_two(seconds, chosen):
    assert rounded(seconds, 0.1) == chosen


@given(st.integers(1, 2_000), st.integers(0, 100))
def test_no_number_within_the_spread_has_fewer_bits(seconds, percent):
    least = min(range(seconds, seconds + seconds * percent // 100 + 1), key=lambda one: (one.bit_count(), one))
    assert rounded(seconds, percent / 100) == least


def test_the_longest_delay_is_not_exceeded_by_rounding():
    assert rounded(LONGEST_S, 1) == LONGEST_S
    assert OF.delays("orders")[-1] == LONGEST_S * 1_000
    assert LEVELS == 28


def test_milliseconds_are_rounded_up_to_a_second():
    assert way(OF, OF.delay_address("orders", 1_001))[0] == 2


def test_what_nobody_is_bound_for_is_kept_where_it_can_be_seen():
    to = OF.delay_address("deleted", 1_000)
    (level,) = route(OF.topology, to.exchange, to.routing_key)
    onward = OF.topology.queue(level).dead_letter_exchange
    assert route(OF.topology, onward, to.routing_key) == {"carom.lost"}


def test_a_name_is_one_word_that_no_binding_reads_otherwise():
    assert word("50%.of*#") == "50%25%2Eof%2A%23"


def test_it_lives_beside_the_default_layout():
    assert problems(union(OF.topology, Shared(plans=(Plan("other", ("k",)),)).topology)) == ()


def test_a_name_that_leaves_no_room_for_the_bits_is_refused():
    with pytest.raises(TopologyError, match="has a key of 256 bytes"):
        Binary(plans=(Plan("q" * 200),))


@pytest.mark.parametrize("spread", [-0.1, 1.1, True])
def test_a_spread_that_cannot_be_is_refused(spread):
    with pytest.raises(ConfigurationError, match="say a number from 0 to 1"):
        binary(spread=spread).build("ns", "events", (), "app")


def test_without_listeners_there_is_only_the_exchange_to_publish_to():
    assert Binary().topology.exchanges == (Exchange("events", "topic"),)
