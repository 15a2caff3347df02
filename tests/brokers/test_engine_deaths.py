"""Messages expire, overflow and die in the embedded engine as RabbitMQ was seen to do it."""

from datetime import UTC, datetime

import pytest
from engine_calls import NOW, bodies, classic, deaths, drained, engine_with, send, take

from carom.brokers.embedded.engine import RETRY_MS
from carom.core.effects import CONFIRMED, NACKED
from carom.core.topology import Binding, Exchange, Topology, at_least_once, quorum
from carom.ports import Depth

# --- expiry


@pytest.mark.parametrize(("expiration", "due"), [("", 100), ("40", 40), ("400", 100)])
def test_the_shorter_of_queue_and_message_decides_when_it_expires(expiration, due):
    engine = engine_with(
        quorum("q", message_ttl=100, dead_letter_exchange="", dead_letter_routing_key="d"), quorum("d")
    )
    assert engine.next_due_ms() is None
    send(engine, "q", 1, expiration=expiration)
    assert engine.next_due_ms() == NOW + due
    engine.tick(NOW + due - 1)
    assert bodies(engine, "d") == []
    engine.tick(NOW + due)
    assert bodies(engine, "d") == ["1"]
    assert engine.next_due_ms() is None


def test_a_message_expires_only_at_the_head():
    engine = engine_with(quorum("q", dead_letter_exchange="", dead_letter_routing_key="d"), quorum("d"))
    send(engine, "q", "long", expiration="1000")
    send(engine, "q", "short", expiration="10")
    engine.tick(NOW + 999)
    assert bodies(engine, "d") == []
    engine.tick(NOW + 1000)
    assert bodies(engine, "d") == ["long", "short"]


def test_what_is_in_somebodys_hands_never_expires_and_returns_with_its_old_expiry():
    engine = engine_with(quorum("q", message_ttl=100))
    send(engine, "q", 1)
    handed = take(engine, "q")
    engine.tick(NOW + 500)
    assert engine.depths(["q"])["q"] == Depth(0, 1, 0)
    engine.settle("me", handed.tag, "hand_back", NOW + 500)
    engine.tick(NOW + 500)
    assert engine.depths(["q"])["q"] == Depth(0, 0, 0)


def test_a_ttl_of_zero_reaches_only_a_consumer_that_waits():
    engine = engine_with(quorum("q", message_ttl=0))
    engine.consume("s", "c", "q", 1, NOW)
    send(engine, "q", 1, 2)
    assert drained(engine) == [("c", "1")]
    assert engine.depths(["q"])["q"] == Depth(0, 1, 1)


def test_an_expired_message_is_never_delivered_however_late_the_clock_is():
    engine = engine_with(quorum("q", message_ttl=10))
    send(engine, "q", 1)
    assert take(engine, "q", now=NOW + 10) is None
    send(engine, "q", 2)
    engine.consume("s", "c", "q", 1, NOW + 10)
    assert drained(engine) == []


def test_a_long_jump_of_the_clock_expires_earliest_first_over_all_queues():
    layout = {"dead_letter_exchange": "", "dead_letter_routing_key": "d"}
    engine = engine_with(
        quorum("slow", message_ttl=30, **layout), quorum("fast", message_ttl=20, **layout), quorum("d")
    )
    for number in range(3):
        send(engine, "slow", f"slow{number}", now=NOW + number * 20)
        send(engine, "fast", f"fast{number}", now=NOW + number * 20)
    engine.tick(NOW + 1000)
    assert bodies(engine, "d") == ["fast0", "slow0", "fast1", "slow1", "fast2", "slow2"]


# --- dead-lettering


def test_a_death_is_written_as_rabbitmq_writes_it():
    engine = engine_with(
        quorum("q", dead_letter_exchange="dead"),
        quorum("d"),
        exchanges=(Exchange("x"), Exchange("dead", "fanout")),
        bindings=(Binding("x", "q", "k"), Binding("dead", "d")),
    )
    given = {"id": "i", "delivery_mode": 1, "priority": 4, "headers": {"u": 1, "CC": ["other"]}}
    send(engine, "k", 1, exchange="x", expiration="50", **given)
    engine.tick(NOW + 50)
    (letter,) = engine.contents("d")
    died = datetime.fromtimestamp(NOW // 1000, UTC)
    assert letter.headers == {
        "u": 1,
        "CC": ["other"],
        "x-death": [
            {
                "count": 1,
                "reason": "expired",
                "queue": "q",
                "time": died,
                "exchange": "x",
                "routing-keys": ["k", "other"],
                "original-expiration": "50",
            }
        ],
        "x-first-death-exchange": "x",
        "x-first-death-queue": "q",
        "x-first-death-reason": "expired",
    }
    assert (letter.exchange, letter.routing_key, letter.expiration) == ("dead", "k", "")
    assert (letter.id, letter.delivery_mode, letter.priority) == ("i", 1, 4)


def test_a_key_of_the_queue_replaces_the_messages_and_its_copies():
    engine = engine_with(
        quorum("q", dead_letter_exchange="", dead_letter_routing_key="d"), quorum("d"), quorum("other")
    )
    send(engine, "q", 1, headers={"CC": ["nothing"]})
    engine.settle("me", take(engine, "q").tag, "refuse", NOW)
    (letter,) = engine.contents("d")
    assert letter.routing_key == "d"
    assert "CC" not in letter.headers
    assert letter.headers["x-death"][0]["routing-keys"] == ["q", "nothing"]


def test_deaths_of_one_queue_and_reason_are_one_entry_counted_and_newest_first():
    engine = engine_with(
        quorum("q", dead_letter_exchange="", dead_letter_routing_key="wait"),
        quorum("wait", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="q"),
    )
    send(engine, "q", 1)
    for turn in range(3):
        now = NOW + turn * 5000
        engine.settle("me", take(engine, "q", now=now).tag, "refuse", now)
        engine.tick(now + 10)
    (message,) = engine.contents("q")
    assert deaths(message) == [("wait", "expired", 3), ("q", "rejected", 3)]
    assert message.headers["x-death"][0]["time"] == datetime.fromtimestamp(NOW // 1000, UTC)
    assert message.headers["x-first-death-queue"] == "q"
    assert take(engine, "q", now=NOW + 20_000).redelivered is False


@pytest.mark.parametrize(
    "forged",
    ["junk", 7, ["junk", {"queue": 1, "reason": "rejected"}, {"queue": "q"}], None, []],
)
def test_forged_histories_are_read_without_harm(forged):
    engine = engine_with(quorum("q", dead_letter_exchange="", dead_letter_routing_key="d"), quorum("d"))
    send(engine, "q", 1, headers={"x-death": forged})
    engine.settle("me", take(engine, "q").tag, "refuse", NOW)
    assert deaths(engine.contents("d")[0]) == [("q", "rejected", 1)]


def test_a_forged_count_starts_again():
    engine = engine_with(quorum("q", dead_letter_exchange="", dead_letter_routing_key="d"), quorum("d"))
    forged = [{"queue": "other", "reason": "expired"}, {"queue": "q", "reason": "rejected", "count": "many"}]
    send(engine, "q", 1, headers={"x-death": forged})
    engine.settle("me", take(engine, "q").tag, "refuse", NOW)
    assert [event["count"] for event in engine.contents("d")[0].headers["x-death"] if event["queue"] == "q"] == [1]


def test_without_a_dead_letter_exchange_or_a_route_a_refused_message_is_gone():
    engine = engine_with(quorum("none"), quorum("lost", dead_letter_exchange="missing"))
    for queue in ("none", "lost"):
        send(engine, queue, 1)
        engine.settle("me", take(engine, queue).tag, "refuse", NOW)
        assert engine.depths([queue])[queue] == Depth(0, 0, 0)
        assert bodies(engine, queue) == []


def test_a_cycle_without_a_rejection_drops_the_message():
    engine = engine_with(
        quorum("a", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="b"),
        quorum("b", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="a"),
    )
    send(engine, "a", 1)
    engine.tick(NOW + 10)
    assert bodies(engine, "b") == ["1"]
    engine.tick(NOW + 20)
    assert bodies(engine, "a") == bodies(engine, "b") == []


def test_a_ttl_of_zero_that_leads_back_to_its_own_queue_ends():
    engine = engine_with(quorum("a", message_ttl=0, dead_letter_exchange=""))
    assert send(engine, "a", 1) == [CONFIRMED]
    assert bodies(engine, "a") == []


# --- at-least-once


def test_a_dead_letter_without_a_route_stays_and_is_tried_again_after_three_minutes():
    engine = engine_with(quorum("q", message_ttl=10, **at_least_once("dead")))
    send(engine, "q", 1)
    engine.tick(NOW + 10)
    assert bodies(engine, "q") == ["1"]
    assert engine.depths(["q"])["q"] == Depth(0, 0, 0)
    assert take(engine, "q", now=NOW + 10) is None
    assert engine.next_due_ms() == NOW + 10 + RETRY_MS
    engine.tick(NOW + 10 + RETRY_MS)
    assert bodies(engine, "q") == ["1"]
    engine.declare(Topology((Exchange("dead", "fanout"),), (quorum("d"),), (Binding("dead", "d"),)), NOW)
    engine.tick(NOW + 10 + 2 * RETRY_MS - 1)
    assert bodies(engine, "d") == []
    engine.tick(NOW + 10 + 2 * RETRY_MS)
    assert bodies(engine, "q") == []
    (letter,) = engine.contents("d")
    assert letter.headers["x-death"][0]["time"] == datetime.fromtimestamp((NOW + 10) // 1000, UTC)


def test_thirty_two_stuck_dead_letters_hold_up_all_that_follow():
    engine = engine_with(
        quorum("q", **at_least_once("dead")),
        quorum("d"),
        exchanges=(Exchange("dead"),),
        bindings=(Binding("dead", "d", "d"),),
    )
    send(engine, "q", *range(40))
    for _ in range(33):
        engine.settle("me", take(engine, "q").tag, "refuse", NOW)
    engine.declare(
        Topology(bindings=(Binding("dead", "d", "q"),), exchanges=(Exchange("dead"),), queues=(quorum("d"),)), NOW
    )
    engine.settle("me", take(engine, "q").tag, "refuse", NOW)
    assert bodies(engine, "d") == []
    engine.tick(NOW + RETRY_MS)
    assert bodies(engine, "d") == [str(number) for number in range(34)]


def test_a_full_target_keeps_the_letter_and_the_others_get_it_once():
    engine = engine_with(
        quorum("q", **at_least_once("dead")),
        classic("full", max_length=1, overflow="reject-publish"),
        quorum("free"),
        exchanges=(Exchange("dead", "fanout"),),
        bindings=(Binding("dead", "full"), Binding("dead", "free")),
    )
    send(engine, "full", "before")
    send(engine, "q", 1)
    engine.settle("me", take(engine, "q").tag, "refuse", NOW)
    assert (bodies(engine, "q"), bodies(engine, "free"), bodies(engine, "full")) == (["1"], ["1"], ["before"])
    engine.purge("full", NOW)
    engine.tick(NOW + RETRY_MS)
    assert (bodies(engine, "q"), bodies(engine, "free"), bodies(engine, "full")) == ([], ["1"], ["1"])


def test_letters_are_tried_again_each_at_its_own_time():
    engine = engine_with(quorum("q", **at_least_once("dead")))
    send(engine, "q", 1, 2)
    engine.settle("me", take(engine, "q").tag, "refuse", NOW)
    engine.settle("me", take(engine, "q").tag, "refuse", NOW + 50)
    engine.declare(Topology((Exchange("dead", "fanout"),), (quorum("d"),), (Binding("dead", "d"),)), NOW)
    engine.tick(NOW + RETRY_MS)
    assert bodies(engine, "d") == ["1"]
    assert engine.next_due_ms() == NOW + 50 + RETRY_MS


def test_a_cycle_is_pinned_where_at_most_once_would_drop_it():
    engine = engine_with(quorum("q", message_ttl=10, **at_least_once("")))
    send(engine, "q", 1)
    engine.tick(NOW + 10 * RETRY_MS)
    assert bodies(engine, "q") == ["1"]


def test_without_reject_publish_at_least_once_is_at_most_once():
    engine = engine_with(quorum("q", dead_letter_exchange="dead", dead_letter_strategy="at-least-once"))
    send(engine, "q", 1)
    engine.settle("me", take(engine, "q").tag, "refuse", NOW)
    assert bodies(engine, "q") == []


# --- limits


@pytest.mark.parametrize("declare", [quorum, classic])
@pytest.mark.parametrize("limit", [{"max_length": 2}, {"max_length_bytes": 2}])
def test_beyond_its_limits_a_queue_lets_the_oldest_die(declare, limit):
    engine = engine_with(declare("q", dead_letter_exchange="", dead_letter_routing_key="d", **limit), quorum("d"))
    assert send(engine, "q", *range(4)) == [CONFIRMED] * 4
    assert bodies(engine, "q") == ["2", "3"]
    assert [deaths(letter) for letter in engine.contents("d")] == [[("q", "maxlen", 1)]] * 2


def test_what_is_delivered_or_unsettled_does_not_count_until_it_returns():
    engine = engine_with(quorum("q", max_length=2))
    engine.consume("s", "c", "q", 3, NOW)
    send(engine, "q", *range(5))
    assert len(drained(engine)) == 3
    assert bodies(engine, "q") == ["3", "4"]
    engine.end("s", NOW)
    assert bodies(engine, "q") == ["3", "4"]


def test_queues_that_overflow_into_each_other_do_not_turn_for_ever():
    engine = engine_with(
        quorum("a", max_length=1, dead_letter_exchange="", dead_letter_routing_key="b"),
        quorum("b", max_length=1, dead_letter_exchange="", dead_letter_routing_key="a"),
    )
    send(engine, "a", 1, 2, 3)
    assert bodies(engine, "a") == ["3"]
    assert bodies(engine, "b") == ["2"]


def test_a_full_classic_queue_refuses_publishes_and_drops_dead_letters():
    engine = engine_with(
        classic("q", max_length=1, overflow="reject-publish"),
        quorum("source", dead_letter_exchange="", dead_letter_routing_key="q"),
    )
    assert send(engine, "q", 1, 2) == [CONFIRMED, NACKED]
    send(engine, "source", 3)
    engine.settle("me", take(engine, "source").tag, "refuse", NOW)
    assert bodies(engine, "q") == ["1"]


def test_a_full_quorum_queue_takes_one_more_and_opens_again_at_four_fifths():
    engine = engine_with(quorum("q", max_length=5, overflow="reject-publish"))
    assert send(engine, "q", *range(8)) == [CONFIRMED] * 6 + [NACKED] * 2
    results = []
    for number in range(3):
        engine.settle("me", take(engine, "q").tag, "ack", NOW)
        results += send(engine, "q", f"n{number}")
    assert results == [NACKED, CONFIRMED, CONFIRMED]
    assert engine.purge("q", NOW) == 5
    assert send(engine, "q", "again") == [CONFIRMED]


def test_at_most_once_dead_letters_enter_a_full_quorum_queue():
    engine = engine_with(
        quorum("q", max_length=0, overflow="reject-publish"),
        quorum("source", dead_letter_exchange="", dead_letter_routing_key="q"),
    )
    assert send(engine, "q", 1, 2) == [CONFIRMED, NACKED]
    send(engine, "source", 3)
    engine.settle("me", take(engine, "source").tag, "refuse", NOW)
    assert bodies(engine, "q") == ["1", "3"]


def test_pending_dead_letters_fill_their_queue():
    engine = engine_with(quorum("q", max_length=1, **at_least_once("dead")))
    assert send(engine, "q", 1) == [CONFIRMED]
    engine.settle("me", take(engine, "q").tag, "refuse", NOW)
    assert send(engine, "q", 2, 3) == [CONFIRMED, NACKED]
    engine.declare(Topology((Exchange("dead", "fanout"),), (quorum("d"),), (Binding("dead", "d"),)), NOW)
    engine.tick(NOW + RETRY_MS)
    assert send(engine, "q", 4) == [NACKED]
    engine.settle("me", take(engine, "q").tag, "ack", NOW)
    assert send(engine, "q", 5) == [CONFIRMED]


def test_one_refusing_queue_nacks_a_publish_that_the_others_keep():
    engine = engine_with(
        classic("full", max_length=0, overflow="reject-publish"),
        quorum("free"),
        exchanges=(Exchange("x", "fanout"),),
        bindings=(Binding("x", "full"), Binding("x", "free")),
    )
    assert send(engine, "k", 1, exchange="x") == [NACKED]
    assert bodies(engine, "free") == ["1"]


def test_reject_publish_dlx_dead_letters_what_it_refuses():
    engine = engine_with(
        classic("q", max_length=1, overflow="reject-publish-dlx", dead_letter_exchange="", dead_letter_routing_key="d"),
        quorum("d"),
    )
    assert send(engine, "q", 1, 2) == [CONFIRMED, NACKED]
    assert bodies(engine, "q") == ["1"]
    assert deaths(engine.contents("d")[0]) == [("q", "maxlen", 1)]
