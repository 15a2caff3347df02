"""The embedded engine declares, routes, delivers and takes back as RabbitMQ was seen to do."""

import pytest
from engine_calls import NOW, bodies, classic, deaths, drained, engine_with, send, take

from carom.brokers.embedded.engine import Engine
from carom.core.effects import CONFIRMED, Returned
from carom.core.topology import Binding, Exchange, Queue, Topology, at_least_once, quorum
from carom.errors import BrokerError, TopologyMismatch, Unsupported
from carom.ports import Depth

# --- declaring


def test_declaring_twice_changes_nothing():
    topology = Topology(
        (Exchange("x", alternate="lost"), Exchange("lost", "fanout")),
        (quorum("q", message_ttl=5),),
        (Binding("x", "q", "k"), Binding("x", "lost", "#", "exchange")),
    )
    engine = Engine()
    engine.declare(topology, NOW)
    before = engine.snapshot()
    engine.declare(topology, NOW + 1)
    assert engine.snapshot() == before
    assert engine.topology() == topology
    assert engine.compare(topology) == ()


def test_classic_is_the_queue_type_that_need_not_be_said():
    engine = engine_with(Queue("q"))
    engine.declare(Topology(queues=(classic("q", queue_type="classic"),)), NOW)
    assert len(engine.topology().queues) == 1


def test_a_mismatch_names_every_difference_with_both_values_and_declares_nothing():
    engine = engine_with(quorum("q", message_ttl=5), exchanges=(Exchange("x", "topic"),))
    wanted = Topology(
        (Exchange("x", "fanout"), Exchange("new")),
        (quorum("q", message_ttl=6, max_length=1),),
        (Binding("nowhere", "q"), Binding("x", "nothing")),
    )
    with pytest.raises(TopologyMismatch) as caught:
        engine.declare(wanted, NOW)
    text = str(caught.value)
    assert len(caught.value.differences) == 5
    assert "exchange 'x': kind is 'topic' on the broker and 'fanout' in the declaration" in text
    assert "queue 'q': x-message-ttl is 5 on the broker and 6 in the declaration" in text
    assert "queue 'q': x-max-length is not set on the broker and 1 in the declaration" in text
    assert "there is no exchange 'nowhere'" in text
    assert "there is no queue 'nothing'" in text
    assert "new" not in {exchange.name for exchange in engine.topology().exchanges}


def test_comparing_names_what_is_missing():
    engine = engine_with(quorum("q"), exchanges=(Exchange("x"),))
    wanted = Topology((Exchange("x"), Exchange("y")), (quorum("q"), quorum("r")), (Binding("x", "q", "k"),))
    assert engine.compare(wanted) == (
        "exchange 'y' does not exist",
        "queue 'r' does not exist",
        "binding from 'x' to queue 'q' with key 'k' does not exist",
    )


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (quorum("q", single_active_consumer=True), "x-single-active-consumer"),
        (quorum("q", expires=1000), "x-expires"),
        (quorum("q", max_priority=3), "x-max-priority"),
        (classic("q", max_priority=3), "x-max-priority"),
        (classic("q", queue_type="stream"), "stream"),
        (classic("q", delivery_limit=3), "x-delivery-limit"),
        (classic("q", dead_letter_strategy="at-least-once"), "x-dead-letter-strategy"),
        (quorum("q", overflow="reject-publish-dlx"), "x-overflow"),
        (quorum("q", delivery_limit="3"), "x-delivery-limit"),
        (quorum("q", message_ttl=-1), "x-message-ttl"),
        (quorum("q", message_ttl=True), "x-message-ttl"),
        (quorum("q", message_ttl=315_360_000_001), "x-message-ttl"),
        (quorum("q", dead_letter_exchange=1), "x-dead-letter-exchange"),
        (quorum("q", dead_letter_routing_key="k"), "x-dead-letter-routing-key"),
        (Queue("q", durable=False, arguments=quorum("q").arguments), "durable"),
        (Queue(""), "name"),
        (Queue("amq.gen"), "amq."),
        (Queue("q" * 256), "255"),
        (Exchange("x", "x-delayed-message"), "x-delayed-message"),
        (Exchange(""), "name"),
        (Binding("", "q"), "default exchange"),
        (Binding("x", "", "", "exchange"), "default exchange"),
        (Binding("x", "q", "k" * 256), "255"),
        (Binding("x", "q", "k", "nothing"), "queue or an exchange"),
    ],
)
def test_what_is_not_interpreted_is_refused_by_name(part, named):
    topology = Topology(
        (part,) if isinstance(part, Exchange) else (),
        (part,) if isinstance(part, Queue) else (),
        (part,) if isinstance(part, Binding) else (),
    )
    with pytest.raises(Unsupported, match=named):
        Engine().declare(topology, NOW)


# --- publishing and routing


def test_a_queue_gets_one_copy_however_many_paths_lead_to_it():
    engine = engine_with(
        quorum("q"),
        exchanges=(Exchange("x"), Exchange("y", "fanout")),
        bindings=(
            Binding("x", "q", "a.*"),
            Binding("x", "q", "#"),
            Binding("x", "q", "a.b"),
            Binding("x", "y", "#", "exchange"),
            Binding("y", "q"),
            Binding("y", "x", "", "exchange"),
        ),
    )
    assert send(engine, "a.b", 1, exchange="x") == [CONFIRMED]
    assert bodies(engine, "q") == ["1"]


def test_an_alternate_exchange_is_asked_only_when_nothing_at_all_is_bound_that_wants_the_message():
    exchanges = (Exchange("x", "topic", alternate="lost"), Exchange("end", "fanout"), Exchange("lost", "fanout"))
    engine = engine_with(quorum("q"), exchanges=exchanges, bindings=(Binding("lost", "q"),))
    assert send(engine, "a", 1, exchange="x") == [CONFIRMED]
    engine.declare(Topology(exchanges, bindings=(Binding("x", "end", "a", "exchange"),)), NOW)
    assert send(engine, "a", 2, exchange="x") == [Returned()]
    assert send(engine, "b", 3, exchange="x") == [CONFIRMED]
    assert bodies(engine, "q") == ["1", "3"]


def test_headers_decide_for_each_message_anew():
    engine = engine_with(
        quorum("q"),
        exchanges=(Exchange("h", "headers"),),
        bindings=(Binding("h", "q", arguments=(("kind", "a"), ("x-match", "all"))),),
    )
    assert send(engine, "k", 1, exchange="h", headers={"kind": "a"}) == [CONFIRMED]
    assert send(engine, "k", 2, exchange="h", headers={"kind": "b"}) == [Returned()]


def test_cc_routes_to_further_keys():
    engine = engine_with(quorum("a"), quorum("b"))
    assert send(engine, "nothing", 1, headers={"CC": ["a", "b"]}) == [CONFIRMED]
    assert bodies(engine, "a") == bodies(engine, "b") == ["1"]
    assert engine.contents("a")[0].routing_key == "nothing"


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"exchange": "missing"}, 404),
        ({"exchange": "internal"}, 403),
        ({"expiration": "soon"}, 406),
        ({"expiration": "-1"}, 406),
        ({"expiration": "315360000001"}, 406),
        ({"headers": {"CC": "q"}}, 406),
        ({"headers": {"BCC": ["q"]}}, 540),
        ({"id": "ä" * 128}, 406),
    ],
)
def test_what_would_close_a_channel_is_returned_and_concerns_nobody_else(properties, code):
    engine = engine_with(quorum("q"), exchanges=(Exchange("internal", "fanout", internal=True),))
    (result,) = send(engine, "q", 1, **properties)
    assert isinstance(result, Returned)
    assert result.code == code
    assert send(engine, "q", 2, id="ä" * 100) == [CONFIRMED]
    assert bodies(engine, "q") == ["2"]


def test_routes_are_forgotten_when_something_is_declared_or_deleted():
    engine = engine_with(exchanges=(Exchange("x", "direct"),))
    assert send(engine, "k", 1, exchange="x") == [Returned()]
    engine.declare(Topology((Exchange("x", "direct"),), (quorum("q"),), (Binding("x", "q", "k"),)), NOW)
    assert send(engine, "k", 2, exchange="x") == [CONFIRMED]
    assert engine.delete_queue("q", NOW) == 1
    assert send(engine, "k", 3, exchange="x") == [Returned()]
    assert engine.topology().bindings == ()


def test_remembered_routes_stay_bounded(monkeypatch):
    monkeypatch.setattr("carom.brokers.embedded.router.CACHE_LIMIT", 3)
    engine = engine_with(quorum("q"), exchanges=(Exchange("x"),), bindings=(Binding("x", "q", "a.*"),))
    for number in range(10):
        assert send(engine, f"a.{number}", number, exchange="x") == [CONFIRMED]
    assert len(engine.router._cache) <= 3


# --- delivering


def test_consumers_with_room_take_turns():
    engine = engine_with(quorum("q"))
    engine.consume("s", "one", "q", 2, NOW)
    engine.consume("s", "two", "q", 3, NOW)
    send(engine, "q", *range(8))
    given_out = drained(engine)
    assert given_out == [("one", "0"), ("two", "1"), ("one", "2"), ("two", "3"), ("two", "4")]
    assert engine.depths(["q", "nothing"]) == {"q": Depth(3, 5, 2), "nothing": None}
    assert engine.settle("s", 2, "ack", NOW)
    assert engine.settle("s", 1, "ack", NOW)
    assert drained(engine) == [("two", "5"), ("one", "6")]


def test_settling_while_there_is_room_does_not_jump_the_queue_of_consumers():
    engine = engine_with(quorum("q"))
    engine.consume("s", "one", "q", 2, NOW)
    engine.consume("s", "two", "q", 2, NOW)
    send(engine, "q", 1)
    engine.settle("s", 1, "ack", NOW)
    send(engine, "q", 2, 3, 4, 5)
    assert drained(engine) == [("one", "1"), ("two", "2"), ("one", "3"), ("two", "4"), ("one", "5")]


def test_a_prefetch_of_zero_is_two_thousand_on_a_quorum_queue_and_unbounded_on_a_classic_one():
    engine = engine_with(quorum("q"), classic("c"))
    for queue in ("q", "c"):
        engine.consume("s", queue, queue, 0, NOW)
        send(engine, queue, *range(2001))
    assert engine.depths(["q"])["q"] == Depth(1, 2000, 1)
    assert engine.depths(["c"])["c"] == Depth(0, 2001, 1)


def test_a_cancelled_consumer_gets_nothing_more_and_may_settle_what_it_has():
    engine = engine_with(quorum("q"))
    engine.consume("s", "c", "q", 1, NOW)
    send(engine, "q", 1, 2)
    engine.cancel("s", "c", NOW)
    engine.cancel("s", "c", NOW)
    assert drained(engine) == [("c", "1")]
    assert engine.settle("s", 1, "hand_back", NOW)
    assert not engine.settle("s", 1, "ack", NOW)
    assert drained(engine) == []
    assert bodies(engine, "q") == ["2", "1"]


def test_only_the_session_that_has_a_delivery_settles_it():
    engine = engine_with(quorum("q"))
    send(engine, "q", 1)
    handed = take(engine, "q")
    assert not engine.settle("another", handed.tag, "ack", NOW)
    assert [one.tag for one in engine.unsettled("me")] == [handed.tag]
    assert engine.settle("me", handed.tag, "ack", NOW)
    assert take(engine, "q") is None


@pytest.mark.parametrize("queue", ["nothing", "q"])
def test_a_consumer_that_cannot_start_is_an_error(queue):
    engine = engine_with(quorum("q"))
    engine.consume("s", "c", "q", 1, NOW)
    before = engine.snapshot()
    with pytest.raises(BrokerError, match=queue if queue == "nothing" else "'c' exists"):
        engine.consume("s", "c", queue, 1, NOW)
    with pytest.raises(BrokerError, match="-1"):
        engine.consume("s", "d", "q", -1, NOW)
    assert engine.snapshot() == before


def test_a_deleted_queue_ends_its_consumers_and_forgets_its_deliveries():
    engine = engine_with(quorum("q"), quorum("other"))
    engine.consume("s", "c", "q", 1, NOW)
    send(engine, "q", 1, 2)
    send(engine, "other", 3)
    kept = take(engine, "other", session="s")
    assert engine.delete_queue("q", NOW) == 1
    assert [(one.session, one.consumer, one.queue) for one in engine.ended] == [("s", "c", "q")]
    assert not engine.settle("s", 1, "ack", NOW)
    assert engine.settle("s", kept.tag, "ack", NOW)
    assert engine.delete_queue("q", NOW) == 0


def test_a_purge_forgets_what_is_ready_and_nothing_else():
    engine = engine_with(quorum("q"))
    send(engine, "q", 1, 2, 3)
    handed = take(engine, "q")
    assert engine.purge("q", NOW) == 2
    assert engine.settle("me", handed.tag, "hand_back", NOW)
    assert bodies(engine, "q") == ["1"]
    with pytest.raises(BrokerError, match="nothing"):
        engine.purge("nothing", NOW)


# --- coming back


@pytest.mark.parametrize(
    ("queue", "after_asking", "after_the_end"),
    [
        (quorum("q"), ["4", "5", "1", "0"], ["2", "3", "4", "5", "1", "0"]),
        (quorum("q", delivery_limit=9), ["1", "0", "4", "5"], ["1", "0", "2", "3", "4", "5"]),
        (classic("q"), ["0", "1", "4", "5"], ["0", "1", "2", "3", "4", "5"]),
    ],
    ids=["quorum", "quorum with a limit", "classic"],
)
def test_returned_messages_come_back_in_the_order_rabbitmq_gives_them(queue, after_asking, after_the_end):
    engine = engine_with(queue)
    send(engine, "q", *range(6))
    tags = [take(engine, "q").tag for _ in range(4)]
    engine.settle("me", tags[1], "hand_back", NOW)
    engine.settle("me", tags[0], "hand_back", NOW)
    assert bodies(engine, "q") == after_asking
    engine.end("me", NOW)
    assert bodies(engine, "q") == after_the_end


def test_a_classic_queue_puts_a_message_back_between_its_neighbours_or_at_the_end():
    engine = engine_with(classic("q"))
    send(engine, "q", *range(4))
    tags = [take(engine, "q").tag for _ in range(4)]
    for index in (0, 3, 1, 2):
        engine.settle("me", tags[index], "hand_back", NOW)
    assert bodies(engine, "q") == ["0", "1", "2", "3"]
    assert take(engine, "q").redelivered
    assert "x-delivery-count" not in engine.contents("q")[0].headers


def test_a_quorum_queue_counts_returns_in_a_header_that_overwrites_the_publishers():
    engine = engine_with(quorum("q"))
    send(engine, "q", 1, headers={"x-delivery-count": "7", "mine": 1})
    seen = []
    for _ in range(3):
        handed = take(engine, "q")
        seen.append((handed.redelivered, handed.message.headers))
        engine.settle("me", handed.tag, "hand_back", NOW)
    assert seen == [
        (False, {"x-delivery-count": "7", "mine": 1}),
        (True, {"x-delivery-count": 1, "mine": 1}),
        (True, {"x-delivery-count": 2, "mine": 1}),
    ]


@pytest.mark.parametrize("how", ["hand_back", "end"])
def test_one_return_beyond_the_delivery_limit_dead_letters(how):
    engine = engine_with(quorum("q", delivery_limit=2, **at_least_once("", "dlq")), quorum("dlq"))
    send(engine, "q", 1)
    deliveries = 0
    while handed := take(engine, "q"):
        deliveries += 1
        if how == "end":
            engine.end("me", NOW)
        else:
            engine.settle("me", handed.tag, "hand_back", NOW)
    assert deliveries == 3
    (letter,) = engine.contents("dlq")
    assert deaths(letter) == [("q", "delivery_limit", 1)]
    assert "x-delivery-count" not in letter.headers


def test_a_negative_delivery_limit_is_refused_because_versions_disagree_about_it():
    with pytest.raises(Unsupported, match="those before drop a message"):
        engine_with(quorum("q", delivery_limit=-1))


def test_what_a_session_had_goes_to_the_other_consumers_in_order():
    engine = engine_with(quorum("q", delivery_limit=9))
    engine.consume("dying", "c", "q", 3, NOW)
    send(engine, "q", 1, 2, 3)
    engine.consume("living", "d", "q", 2, NOW)
    drained(engine)
    engine.end("dying", NOW)
    assert drained(engine) == [("d", "1"), ("d", "2")]
    assert engine.depths(["q"])["q"] == Depth(1, 2, 1)
