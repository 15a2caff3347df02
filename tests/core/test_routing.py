"""Claims about routing: exactly AMQP 0-9-1 as RabbitMQ does it, and never slow."""

import functools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carom.core.routing import matcher, matches, route, router
from carom.core.topology import Binding, Exchange, Queue, Topology
from carom.errors import ConfigurationError

words = st.sampled_from(["", "a", "b", "ab", "xy", "é", "\n", "(", "[a]", "\\"])
keys = st.lists(words, max_size=7).map(".".join)
patterns = st.lists(st.one_of(words, st.sampled_from(["*", "#"])), max_size=7).map(".".join)


def textbook(binding_key: str, routing_key: str) -> bool:
    """Match as the definition is written: by cases, one word at a time."""

    @functools.cache
    def fits(pattern: tuple[str, ...], key: tuple[str, ...]) -> bool:
        if not pattern:
            return not key
        if pattern[0] == "#":
            return fits(pattern[1:], key) or (bool(key) and fits(pattern, key[1:]))
        return bool(key) and pattern[0] in ("*", key[0]) and fits(pattern[1:], key[1:])

    def split(text: str) -> tuple[str, ...]:
        return tuple(text.split(".")) if text else ()

    return fits(split(binding_key), split(routing_key))


@given(patterns, keys)
@example("a.#.b.#.b", "a.b.b")
@example("#.a.b.#.c", "a.a.b.x.c")
@example("*.#.*", "a")
@example("#", "")
@example("*", "")
@example(".#", "")
def test_a_topic_matches_as_the_textbook_says(binding_key, routing_key):
    assert matches("topic", binding_key, routing_key) is textbook(binding_key, routing_key)


@given(st.text("a.#*", max_size=12), st.text("a.", max_size=10))
def test_a_topic_of_any_dots_and_wildcards_matches_as_the_textbook_says(binding_key, routing_key):
    assert matches("topic", binding_key, routing_key) is textbook(binding_key, routing_key)


@pytest.mark.parametrize(
    ("binding_key", "routing_key", "expected"),
    [
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "ab", False),
        ("a.*", "a", False),
        ("a.*", "a.", True),
        ("a.*.b", "a..b", True),
        ("a..b", "a..b", True),
        ("a.b", "a..b", False),
        ("*.*.*", "a..b", True),
        ("*", "", False),
        ("", "", True),
        ("", ".", False),
        ("#.#", "", True),
        ("#.created", "order.created", True),
        ("#.created", "created", True),
        ("#.created", "recreated", False),
        ("order.created", "order.created", True),
        ("order.created", "order_created", False),
        ("a*", "ab", False),
        ("a#", "a", False),
        ("a.*", "a.b\n", True),
        ("a.b.*", "a.b.c\nd", True),
    ],
)
def test_what_a_topic_means_is_settled_case_by_case(binding_key, routing_key, expected):
    assert matches("topic", binding_key, routing_key) is expected


def test_a_hostile_topic_is_answered_though_backtracking_would_outlive_us():
    hostile = ".".join(["#", "a"] * 60 + ["x"])
    assert len(hostile) <= 255
    wants = matcher("topic", hostile)
    assert not any(wants(".".join(["a"] * count), {}) for count in range(128))
    assert wants(".".join(["a"] * 60 + ["x"]), {})
    assert not matches("topic", "#.#.#.#.x", ".".join(["a"] * 128))


def test_a_direct_exchange_wants_the_very_key():
    assert matches("direct", "a.*", "a.*")
    assert not matches("direct", "a.*", "a.b")


def test_a_fanout_wants_everything():
    assert matches("fanout", "whatever", "else")


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({"a": "1", "b": 2}, {"a": "1", "b": 2, "c": 3}, True),
        ({"a": "1", "b": 2}, {"a": "1"}, False),
        ({"x-match": "all", "a": "1", "b": 2}, {"a": "1", "b": 3}, False),
        ({"x-match": "any", "a": "1", "b": 2}, {"a": "0", "b": 2}, True),
        ({"x-match": "any", "a": "1"}, {"b": "1"}, False),
        ({"x-match": "all"}, {}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({}, {"a": 1}, True),
        ({"a": None}, {"a": object()}, True),
        ({"a": None}, {}, False),
        ({"a": True}, {"a": True}, True),
        ({"a": True}, {"a": 1}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": "é"}, {"a": "é".encode()}, True),
        ({"a": "e"}, {"a": "é".encode()}, False),
        ({"a": 1}, {"a": b"1"}, False),
        ({"x-match": "all", "x-a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": 2}, False),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"x-a": 1, "b": 2}, True),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": 1}, True),
        ({"x-match": "any-with-x"}, {"x-match": "any-with-x"}, False),
    ],
)
def test_a_headers_exchange_compares_as_rabbitmq_does(arguments, headers, expected):
    assert matches("headers", "", "any key", tuple(arguments.items()), headers) is expected


def test_an_exchange_of_an_unknown_kind_is_refused_with_the_kinds_there_are():
    with pytest.raises(ConfigurationError, match=r"'x-delayed-message'.*direct, fanout, headers, topic"):
        matcher("x-delayed-message", "a")


HOUSE = Topology(
    exchanges=(
        Exchange("events", "topic", alternate="lost"),
        Exchange("copies", "fanout"),
        Exchange("back", "direct", alternate="lost"),
        Exchange("by-size", "headers"),
        Exchange("lost", "fanout"),
        Exchange("round", "topic", alternate="about"),
        Exchange("about", "fanout", alternate="round"),
        Exchange("strange", "x-modulus-hash"),
    ),
    queues=(Queue("orders"), Queue("audit"), Queue("lost")),
    bindings=(
        Binding("events", "orders", "order.*"),
        Binding("events", "copies", "#.created", to="exchange"),
        Binding("copies", "audit"),
        Binding("copies", "orders"),
        Binding("copies", "copies", to="exchange"),
        Binding("back", "orders", "orders"),
        Binding("by-size", "audit", arguments=(("size", 1),)),
        Binding("lost", "lost"),
        Binding("strange", "audit"),
        Binding("missing", "audit"),
        Binding("lost", "no such queue"),
    ),
)


@pytest.mark.parametrize(
    ("exchange", "key", "reached"),
    [
        ("events", "order.paid", {"orders"}),
        ("events", "order.created", {"orders", "audit"}),
        ("events", "user.created", {"orders", "audit"}),
        ("events", "user.paid", {"lost"}),
        ("back", "orders", {"orders"}),
        ("back", "gone", {"lost"}),
        ("", "audit", {"audit"}),
        ("", "gone", set()),
        ("by-size", "", set()),
        ("round", "", set()),
        ("strange", "", set()),
        ("missing", "", set()),
    ],
)
def test_a_message_reaches_every_queue_that_wants_it_once(exchange, key, reached):
    assert route(HOUSE, exchange, key) == reached


def test_headers_route_too():
    assert router(HOUSE)("by-size", "", {"size": 1}) == {"audit"}
