"""Claims about topologies: what can be joined, what is refused and why, and how two of them differ."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carom.core.topology import (
    Binding,
    Change,
    Difference,
    Exchange,
    Queue,
    Topology,
    arguments,
    at_least_once,
    diff,
    problems,
    quorum,
    sentences,
    union,
    validate,
)
from carom.errors import TopologyError


def shared(*names: str, delays: tuple[int, ...] = (2_000, 5_000)) -> Topology:
    """Return the default layout as it is drawn."""
    waiting = {f"carom.delay.{delay}": delay for delay in delays}
    return Topology(
        exchanges=(
            Exchange("events"),
            Exchange("carom.dead", "direct"),
            Exchange("carom.return", "direct", alternate="carom.lost"),
            Exchange("carom.lost", "fanout"),
            *(Exchange(name, "fanout") for name in waiting),
        ),
        queues=(
            *(quorum(name, delivery_limit=50, **at_least_once("carom.dead", name)) for name in names),
            *(quorum(f"{name}.dlq") for name in names),
            *(quorum(name, message_ttl=ttl, **at_least_once("carom.return")) for name, ttl in waiting.items()),
            quorum("carom.lost"),
        ),
        bindings=(
            *(Binding("events", name, f"{name}.#") for name in names),
            *(Binding("carom.return", name, name) for name in names),
            *(Binding("carom.dead", f"{name}.dlq", name) for name in names),
            *(Binding(name, name) for name in waiting),
            Binding("carom.lost", "carom.lost"),
        ),
    )


def dying(name: str, exchange: str, key: str | None = None, ttl: int = 1_000) -> Queue:
    """Return a classic queue whose messages expire into an exchange."""
    values = {"x-message-ttl": ttl, "x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": key}
    return Queue(name, arguments=arguments(values))


def only(topology: Topology) -> str:
    """Return the one problem a topology has."""
    (problem,) = problems(topology)
    return problem


def alone(queue: Queue) -> Topology:
    return Topology((Exchange("dead", "fanout"),), (queue, Queue("dlq")), (Binding("dead", "dlq"),))


# What is sound


@pytest.mark.parametrize("names", [("billing.charge",), ("a", "b", "c.d")])
def test_the_default_layout_is_sound(names):
    topology = shared(*names)
    assert validate(topology) is topology


def test_a_layout_of_queues_alone_is_sound():
    validate(
        Topology(
            (Exchange("events"),),
            (
                quorum("q", **at_least_once("", "q.dlq")),
                quorum("q.delay_2s", message_ttl=2_000, **at_least_once("", "q")),
                quorum("q.dlq"),
            ),
            (Binding("events", "q", "#"),),
        )
    )


def test_a_delay_queue_behind_a_fanout_may_use_the_default_exchange_as_the_way_back():
    validate(
        Topology(
            (Exchange("delay", "fanout"), Exchange("dlx", "direct")),
            (
                quorum("delay", message_ttl=10_000, dead_letter_exchange=""),
                quorum("q", dead_letter_exchange="dlx", dead_letter_routing_key="q"),
                quorum("q.dlq"),
            ),
            (Binding("delay", "delay"), Binding("dlx", "q.dlq", "q")),
        )
    )


def test_levels_of_delay_that_hand_on_by_topic_are_sound():
    levels = [
        quorum(f"level-{n}", message_ttl=1_000 << n, **at_least_once(f"level-{n - 1}" if n else "delivery"))
        for n in range(8)
    ]
    validate(
        Topology(
            (*(Exchange(level.name) for level in levels), Exchange("delivery", alternate="lost"), Exchange("lost")),
            (*levels, quorum("orders"), quorum("lost")),
            (
                *(Binding(f"level-{n}", f"level-{n}", "*." * (7 - n) + "1.#") for n in range(8)),
                *(Binding(f"level-{n}", f"level-{n - 1}", "*." * (7 - n) + "0.#", "exchange") for n in range(1, 8)),
                Binding("level-0", "delivery", "*." * 7 + "0.#", "exchange"),
                Binding("delivery", "orders", "#.orders"),
                Binding("lost", "lost", "#"),
            ),
        )
    )


def test_names_and_keys_may_be_255_bytes_long():
    validate(
        Topology((Exchange("é" * 127 + "x"),), (Queue("y" * 255),), (Binding("é" * 127 + "x", "y" * 255, "k" * 255),))
    )


# Names, kinds, arguments


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        (Topology((Exchange(""),)), "exchange '' has no name"),
        (Topology(queues=(Queue(""),)), "queue '' has no name"),
        (Topology((Exchange("amq.mine"),)), "exchange 'amq.mine' starts with 'amq.', which belongs to the broker"),
        (Topology(queues=(Queue("amq.gen-1"),)), "queue 'amq.gen-1' starts with 'amq.'"),
        (Topology((Exchange("é" * 128),)), "of 256 bytes, and a broker takes 255"),
        (Topology(queues=(Queue("q" * 256),)), "of 256 bytes, and a broker takes 255"),
        (Topology((Exchange("e", "x-delayed-message"),)), "exchange 'e' is of kind 'x-delayed-message'"),
        (Topology((Exchange("e", alternate="gone"),)), "alternate exchange 'gone', which does not exist"),
    ],
)
def test_a_name_or_kind_no_broker_takes_is_refused(topology, said):
    assert said in only(topology)


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        (Queue("q", arguments=arguments({"x-queue-type": "mirrored"})), "'mirrored', which does not exist: use one of"),
        (Queue("q", durable=False, arguments=arguments({"x-queue-type": "quorum"})), "quorum queue and not durable"),
        (Queue("q", arguments=arguments({"x-message-ttl": -1})), "x-message-ttl -1, which a broker does not take"),
        (Queue("q", arguments=arguments({"x-message-ttl": "5"})), "x-message-ttl '5', which is not a whole number"),
        (Queue("q", arguments=arguments({"x-message-ttl": True})), "x-message-ttl True, which is not a whole number"),
        (Queue("q", arguments=arguments({"x-message-ttl": 315_360_000_001})), "from 0 to 315360000000"),
        (Queue("q", arguments=arguments({"x-expires": 0})), "x-expires 0, which a broker does not take"),
        (Queue("q", arguments=arguments({"x-max-length": -1})), "x-max-length -1"),
        (Queue("q", arguments=arguments({"x-max-length-bytes": 2**63})), "x-max-length-bytes"),
        (quorum("q", delivery_limit=-2), "x-delivery-limit -2, which a broker does not take"),
        (Queue("q", arguments=arguments({"x-delivery-limit": 5})), "x-delivery-limit 5 and is a classic queue"),
        (quorum("q", overflow="block"), "x-overflow 'block', which means nothing: use one of drop-head"),
        (quorum("q", dead_letter_routing_key="k"), "a dead letter key and no dead letter exchange"),
        (quorum("q", dead_letter_exchange="gone"), "dead letters to exchange 'gone', which does not exist"),
        (quorum("q", dead_letter_exchange="dead", dead_letter_routing_key="k" * 256), "dead letter key of 256 bytes"),
        (quorum("q", dead_letter_exchange="dead", dead_letter_strategy="always"), "'always', which means nothing"),
        (
            Queue("q", arguments=arguments({"x-queue-type": "stream", "x-message-ttl": 5})),
            "x-message-ttl 5 and is a stream queue, which a broker refuses: make it classic or quorum",
        ),
    ],
)
def test_a_queue_no_broker_takes_is_refused(queue, said):
    assert said in only(alone(queue))


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        (
            quorum("q", dead_letter_exchange="dead", dead_letter_strategy="at-least-once"),
            "without x-overflow 'reject-publish': the broker would fall back to at-most-once without a word",
        ),
        (
            quorum("q", dead_letter_strategy="at-least-once", overflow="reject-publish"),
            "asks for at-least-once dead lettering and has no dead letter exchange",
        ),
        (
            Queue("q", arguments=arguments({f"x-{k.replace('_', '-')}": v for k, v in at_least_once("dead").items()})),
            "x-dead-letter-strategy 'at-least-once' and is a classic queue, which a broker refuses: make it quorum",
        ),
    ],
)
def test_at_least_once_that_a_broker_would_not_keep_is_refused(queue, said):
    assert said in only(alone(queue))


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream", ""])
def test_every_kind_of_queue_may_be_declared(kind):
    queue = Queue("q", arguments=arguments({"x-queue-type": kind, "x-max-length-bytes": 5}))
    assert problems(alone(queue)) == ()


# Bindings and dead ends


def bound(*bindings: Binding) -> Topology:
    exchanges = (Exchange("e"), Exchange("h", "headers"), Exchange("f", "fanout"))
    each = (Binding("e", "q", "#"), Binding("h", "q"), Binding("f", "q"))
    return Topology(exchanges, (Queue("q"),), (*each, *bindings))


@pytest.mark.parametrize(
    ("binding", "said"),
    [
        (Binding("gone", "q", "k"), "exchange 'gone' does not exist"),
        (Binding("e", "gone", "k"), "queue 'gone' does not exist"),
        (Binding("e", "q", "k", to="exchange"), "exchange 'q' does not exist"),
        (Binding("", "q", "k"), "binds the default exchange, which a broker refuses"),
        (Binding("e", "", "k", to="exchange"), "binds the default exchange, which a broker refuses"),
        (Binding("e", "q", "k" * 256), "has a key of 256 bytes"),
        (Binding("h", "q", arguments=(("x-match", "some"),)), "x-match 'some', which means nothing: use one of all,"),
        (Binding("h", "q", arguments=(("x-match", True),)), "x-match True, which means nothing"),
    ],
)
def test_a_binding_that_cannot_be_made_is_refused(binding, said):
    assert said in only(bound(binding))


def test_arguments_that_only_a_headers_exchange_reads_are_no_problem_elsewhere():
    assert problems(bound(Binding("e", "q", "k", arguments=(("x-match", "some"), ("a", 1))))) == ()
    assert problems(bound(Binding("h", "q", arguments=(("a", 1), ("x-match", "any-with-x"))))) == ()


def test_an_exchange_that_nothing_is_bound_to_is_named():
    topology = Topology((Exchange("e"), Exchange("used")), (Queue("q"),), (Binding("used", "q", "#"),))
    assert "exchange 'e': nothing is bound to it" in only(topology)


def test_an_unbound_exchange_with_an_alternate_is_no_problem():
    topology = Topology(
        (Exchange("e", alternate="used"), Exchange("used")), (Queue("q"),), (Binding("used", "q", "#"),)
    )
    assert problems(topology) == ()


def test_a_publishers_topology_has_no_queues_and_that_is_no_problem():
    assert problems(Topology((Exchange("e"),))) == ()


@pytest.mark.parametrize(
    "queue",
    [
        dying("q", "", "gone"),
        dying("q", "direct", "gone"),
        dying("q", "topic", "gone"),
    ],
)
def test_dead_letters_with_a_key_nobody_wants_are_a_dead_end(queue):
    topology = Topology(
        (Exchange("direct", "direct"), Exchange("topic")),
        (queue, Queue("dlq")),
        (Binding("direct", "dlq", "q"), Binding("topic", "dlq", "q.*")),
    )
    assert re.search("'q' sends its dead letters to exchange '.*' with key 'gone', where no queue", only(topology))


@pytest.mark.parametrize("exchange", ["fanout", "headers", "topic", "alternate"])
def test_dead_letters_that_some_queue_may_want_are_no_dead_end(exchange):
    topology = Topology(
        (
            Exchange("fanout", "fanout"),
            Exchange("headers", "headers"),
            Exchange("topic"),
            Exchange("alternate", "direct", alternate="fanout"),
        ),
        (dying("q", exchange, "any.key"), Queue("dlq")),
        (
            Binding("fanout", "dlq"),
            Binding("headers", "dlq", arguments=(("a", 1),)),
            Binding("topic", "dlq", "any.#"),
            Binding("alternate", "dlq", "none"),
        ),
    )
    assert problems(topology) == ()


@pytest.mark.parametrize(
    ("binding", "fine"),
    [
        (Binding("direct", "q", "dlq"), True),
        (Binding("direct", "q", "order.created"), False),
        (Binding("topic", "q", "order.*"), False),
        (Binding("topic", "q", "*"), True),
        (Binding("fanout", "q"), True),
        (Binding("headers", "q", arguments=(("a", 1),)), True),
    ],
)
def test_dead_letters_that_keep_their_key_need_a_queue_of_that_name_in_the_default_exchange(binding, fine):
    waiting = Queue("q", arguments=arguments({"x-dead-letter-exchange": ""}))
    kind = binding.source
    topology = Topology((Exchange(kind, kind),), (waiting, Queue("dlq")), (binding,))
    assert problems(topology) == () if fine else "no queue has such a name" in only(topology)


# Loops


def loop(*names: str) -> str:
    return f"dead letters go round with nobody deciding it: {' -> '.join(names)};"


def test_a_queue_that_expires_into_itself_is_a_loop():
    assert loop("q", "q") in only(Topology(queues=(dying("q", ""),)))
    assert loop("q", "q") in only(Topology(queues=(dying("q", "", "q"),)))


@pytest.mark.parametrize(
    "main",
    [
        quorum("main", dead_letter_exchange="", dead_letter_routing_key="wait"),
        quorum("main", dead_letter_exchange="", dead_letter_routing_key="wait", delivery_limit=5),
        dying("main", "", "wait"),
        Queue(
            "main",
            arguments=arguments(
                {"x-max-length": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"},
            ),
        ),
        quorum(
            "main",
            dead_letter_exchange="",
            dead_letter_routing_key="wait",
            delivery_limit=1_000_000,
            max_length_bytes=5,
            overflow="drop-head",
        ),
    ],
)
def test_a_main_queue_whose_own_dead_letters_wait_and_come_back_is_a_loop(main):
    assert loop("main", "wait", "main") in only(Topology(queues=(main, dying("wait", "", "main"))))


@pytest.mark.parametrize(
    "main",
    [
        Queue("main", arguments=arguments({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"})),
        quorum("main", dead_letter_exchange="", dead_letter_routing_key="wait", delivery_limit=1_000_000),
        Queue(
            "main",
            arguments=arguments(
                {
                    "x-max-length": 5,
                    "x-overflow": "reject-publish",
                    "x-dead-letter-exchange": "",
                    "x-dead-letter-routing-key": "wait",
                },
            ),
        ),
    ],
)
def test_a_way_back_that_only_a_rejection_opens_is_no_loop(main):
    assert problems(Topology(queues=(main, dying("wait", "", "main")))) == ()


def test_a_dead_letter_queue_that_expires_back_into_its_main_queue_is_a_loop():
    main = quorum("main", **at_least_once("", "main.dlq"))
    assert loop("main", "main.dlq", "main") in only(Topology(queues=(main, dying("main.dlq", "", "main"))))


def test_two_queues_that_overflow_into_each_other_are_a_loop():
    def full(name: str, other: str) -> Queue:
        values = {"x-max-length": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": other}
        return Queue(name, arguments=arguments(values))

    assert loop("a", "b", "a") in only(Topology(queues=(full("a", "b"), full("b", "a"))))


def test_a_loop_through_the_shared_return_is_found_by_the_name_the_queue_is_bound_by():
    sound = shared("main")
    looped = quorum("main", **at_least_once("carom.delay.2000", "main"))
    queues = tuple(looped if queue.name == "main" else queue for queue in sound.queues)
    assert loop("main", "carom.delay.2000", "main") in only(Topology(sound.exchanges, queues, sound.bindings))


def test_a_loop_through_the_exchange_that_feeds_the_queue_is_found_by_its_own_key():
    topology = Topology((Exchange("events"),), (dying("q", "events"),), (Binding("events", "q", "order.*"),))
    assert loop("q", "q") in only(topology)


def test_a_loop_that_every_key_takes_is_found_behind_a_fanout():
    topology = Topology((Exchange("all", "fanout"),), (dying("q", "all"),), (Binding("all", "q"),))
    assert loop("q", "q") in only(topology)


def test_a_loop_is_found_with_a_key_that_another_queue_gave():
    topology = Topology(
        (Exchange("all", "fanout"), Exchange("picky", "direct")),
        (dying("first", "all", "special"), dying("second", "picky"), dying("third", "all")),
        (Binding("all", "second"), Binding("picky", "third", "special")),
    )
    assert loop("second", "third", "second") in only(topology)


def test_a_loop_that_only_some_unknown_keys_would_take_is_not_claimed():
    topology = Topology(
        (Exchange("in", "fanout"), Exchange("events")),
        (dying("q", "events"), Queue("dlq")),
        (Binding("in", "q"), Binding("events", "dlq", "#"), Binding("events", "in", "again.*", to="exchange")),
    )
    assert problems(topology) == ()


def test_each_loop_is_named_once_and_ways_beside_it_are_left_out():
    topology = Topology(
        (Exchange("all", "fanout"),),
        (dying("a", "all"), dying("b", "", "a"), dying("c", "", "d"), Queue("d")),
        (Binding("all", "b"), Binding("all", "c"), Binding("all", "d")),
    )
    assert loop("a", "b", "a") in only(topology)


def test_a_long_chain_that_ends_is_no_loop():
    chain = [dying(f"q{n}", "", f"q{n + 1}") for n in range(300)]
    assert problems(Topology(queues=(*chain, Queue("q300")))) == ()


# All at once


def test_every_problem_is_named_at_once():
    topology = Topology(
        (Exchange("amq.e"), Exchange("e"), Exchange("e", "fanout")),
        (dying("q", "gone", ttl=-5), dying("r", "", "r")),
        (Binding("nowhere", "nobody", "k"),),
    )
    with pytest.raises(TopologyError) as caught:
        validate(topology)
    assert len(caught.value.problems) == len(set(caught.value.problems)) == 9
    assert str(caught.value).count("\n  - ") == 9
    assert caught.value.problems == problems(topology)


@given(
    st.builds(
        Topology,
        st.lists(
            st.builds(
                Exchange,
                st.sampled_from("ab"),
                st.sampled_from(["direct", "topic", "fanout", "headers", "odd"]),
                alternate=st.sampled_from([None, "a", "b", "c", ""]),
            ),
            max_size=3,
        ).map(tuple),
        st.lists(
            st.builds(
                dying, st.sampled_from("qr"), st.sampled_from(["", "a", "b", "c"]), st.sampled_from([None, "q", "x"])
            ),
            max_size=3,
        ).map(tuple),
        st.lists(
            st.builds(
                Binding,
                st.sampled_from(["a", "b", "c", ""]),
                st.sampled_from(["q", "r", "a", "b", ""]),
                st.sampled_from(["", "q", "#", "*.#"]),
                st.sampled_from(["queue", "exchange"]),
            ),
            max_size=5,
        ).map(tuple),
    )
)
def test_any_topology_is_judged_and_judged_alike_when_it_is_put_together_with_itself(topology):
    found = problems(topology)
    assert all(isinstance(problem, str) for problem in found)
    if not found:
        assert union(topology, topology) == topology
        assert not diff(topology, union(topology, topology))


# Union


def test_the_same_thing_twice_is_one_thing():
    assert union(shared("a"), shared("a"), shared("b")) == shared("a", "b")
    assert len(union(shared("a"), shared("a")).bindings) == len(shared("a").bindings)
    assert union() == Topology()


def test_a_topology_is_the_same_in_any_order():
    one = Topology((Exchange("a"), Exchange("b")), (Queue("q"),))
    other = Topology((Exchange("b"), Exchange("a")), (Queue("q"), Queue("q")))
    assert one == other
    assert hash(one) == hash(other)
    assert one != Topology((Exchange("a"),))
    assert one != "a topology"


def test_all_contradictions_of_a_union_are_named_with_both_values():
    one = Topology((Exchange("e", "topic"),), (quorum("q", message_ttl=1_000), quorum("same")))
    other = Topology(
        (Exchange("e", "fanout", alternate="x"),), (Queue("q", durable=False), quorum("same"), quorum("same"))
    )
    with pytest.raises(TopologyError) as caught:
        union(one, other, other)
    assert caught.value.problems == (
        "exchange 'e' is declared twice, with type 'topic' and 'fanout': keep one of them",
        "exchange 'e' is declared twice, with alternate-exchange not set and 'x': keep one of them",
        "queue 'q' is declared twice, with durable True and False: keep one of them",
        "queue 'q' is declared twice, with x-message-ttl 1000 and not set: keep one of them",
        "queue 'q' is declared twice, with x-queue-type 'quorum' and 'classic': keep one of them",
    )


def test_a_contradiction_inside_one_topology_is_a_problem_too():
    one, other = (Queue("q", arguments=arguments({"x-max-length": length})) for length in (1, 2))
    said = only(Topology(queues=(one, one, other)))
    assert said == "queue 'q' is declared twice, with x-max-length 1 and 2: keep one of them"


# Difference


def test_nothing_differs_from_itself_whatever_the_broker_adds_of_its_own():
    wanted = shared("a")
    brokers_own = Topology(
        (Exchange(""), Exchange("amq.topic")), (), (Binding("", "a", "a"), Binding("", "a.dlq", "a.dlq"))
    )
    difference = diff(wanted, union(brokers_own, wanted))
    assert not difference
    assert difference == Difference()
    assert sentences(difference) == ()


def test_a_queue_without_a_kind_is_a_classic_queue():
    kind = Queue("q", arguments=arguments({"x-queue-type": "classic"}))
    assert not diff(Topology(queues=(Queue("q"),)), Topology(queues=(kind,)))


def test_what_is_missing_extra_and_changed_is_told_apart():
    wanted = Topology(
        (Exchange("e"), Exchange("f", "fanout", alternate="e")),
        (quorum("q", message_ttl=2_000), quorum("new"), Queue("flag", arguments=arguments({"x-flag": True}))),
        (Binding("e", "q", "a.#"), Binding("f", "e", to="exchange")),
    )
    actual = Topology(
        (Exchange("e", "direct", durable=False, internal=True), Exchange("old")),
        (
            quorum("q", message_ttl=1_000, max_length=5),
            Queue("gone"),
            Queue("flag", arguments=arguments({"x-flag": 1})),
        ),
        (Binding("e", "q", "b", arguments=(("x-match", "all"),)), Binding("amq.topic", "q", "c")),
    )
    difference = diff(wanted, actual)
    assert difference
    assert difference == Difference(
        missing_exchanges=(Exchange("f", "fanout", alternate="e"),),
        missing_queues=(quorum("new"),),
        missing_bindings=wanted.bindings,
        changed=(
            Change("exchange", "e", "type", "topic", "direct"),
            Change("exchange", "e", "durable", wanted=True, actual=False),
            Change("exchange", "e", "internal", wanted=False, actual=True),
            Change("queue", "q", "x-message-ttl", 2_000, 1_000),
            Change("queue", "q", "x-max-length", None, 5),
            Change("queue", "flag", "x-flag", wanted=True, actual=1),
        ),
        extra_exchanges=(Exchange("old"),),
        extra_queues=(Queue("gone"),),
        extra_bindings=actual.bindings,
    )
    assert sentences(difference) == (
        "fanout exchange 'f' is missing",
        "quorum queue 'new' is missing",
        "the binding of queue 'q' to 'e' with key 'a.#' is missing",
        "the binding of exchange 'e' to 'f' with key '' is missing",
        "exchange 'e': type should be 'topic' and is 'direct'",
        "exchange 'e': durable should be True and is False",
        "exchange 'e': internal should be False and is True",
        "queue 'q': x-message-ttl should be 2000 and is 1000",
        "queue 'q': x-max-length should be not set and is 5",
        "queue 'flag': x-flag should be True and is 1",
        "topic exchange 'old' is there and not wanted",
        "classic queue 'gone' is there and not wanted",
        "the binding of queue 'q' to 'e' with key 'b' and {'x-match': 'all'} is there and not wanted",
        "the binding of queue 'q' to 'amq.topic' with key 'c' is there and not wanted",
    )


# Values


def test_things_are_found_by_name():
    topology = shared("a")
    assert topology.queue("a.dlq") == quorum("a.dlq")
    assert topology.queue("b") is None
    assert topology.exchange("events") == Exchange("events")
    assert topology.exchange("a") is None


def test_a_queue_tells_its_arguments():
    queue = quorum("q", message_ttl=5, **at_least_once("dead", "k"))
    assert (queue.kind, queue.ttl_ms, queue.dead_letter_exchange, queue.dead_letter_key) == ("quorum", 5, "dead", "k")
    plain = Queue("q", arguments=arguments({"x-message-ttl": True, "x-unset": None}))
    assert (plain.kind, plain.ttl_ms, plain.dead_letter_exchange, plain.dead_letter_key) == (
        "classic",
        None,
        None,
        None,
    )
    assert plain.argument("x-unset") is None
