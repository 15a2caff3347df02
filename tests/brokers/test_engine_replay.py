"""The same calls always make the same state, and a state goes to bytes and back without a difference."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from engine_calls import NOW, classic, engine_with, send
from hypothesis import given
from hypothesis import strategies as st

from carom.brokers.embedded.engine import RETRY_MS, Engine
from carom.brokers.embedded.packing import extension
from carom.core.effects import CONFIRMED, NACKED
from carom.core.message import Message
from carom.core.topology import Binding, Exchange, Topology, at_least_once, quorum
from carom.errors import BrokerError, ConfigurationError

HEADERS = {
    "none": None,
    "bool": True,
    "int": -(2**63),
    "beyond": 2**70,
    "float": 1.5,
    "text": "ä\x00",
    "bytes": b"\xff\x00",
    "when": datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=timezone(timedelta(hours=2))),
    "naive": datetime(2026, 1, 1),  # noqa: DTZ001 - a naive one must not become another
    "amount": Decimal("1.50"),
    "list": [1, [None, {"deep": Decimal(2), "at": datetime(2026, 1, 1, tzinfo=UTC)}], b""],
    "table": {"a": {"b": [True]}},
}


def test_every_kind_of_header_survives_a_snapshot_exactly():
    engine = engine_with(quorum("q"))
    message = Message(
        body=bytes(range(256)),
        routing_key="q",
        id="i",
        correlation_id="c",
        content_type="t",
        content_encoding="e",
        type="y",
        app_id="a",
        reply_to="r",
        user_id="u",
        expiration="9999",
        timestamp=2**40,
        priority=3,
        delivery_mode=1,
        headers=HEADERS,
    )
    engine.publish(message, NOW)
    (restored,) = Engine.restore(engine.snapshot()).contents("q")
    assert restored == message
    assert {name: type(value) for name, value in restored.headers.items()} == {
        name: type(value) for name, value in HEADERS.items()
    }
    assert restored.headers["when"].utcoffset() == timedelta(hours=2)


def test_a_buffer_becomes_bytes_and_what_amqp_does_not_have_is_refused():
    engine = engine_with(quorum("q"))
    send(engine, "q", 1, headers={"buffer": bytearray(b"ab"), "tuple": (1,)})
    assert Engine.restore(engine.snapshot()).contents("q")[0].headers == {"buffer": b"ab", "tuple": [1]}
    send(engine, "q", 2, headers={"odd": object()})
    with pytest.raises(TypeError, match="object"):
        engine.snapshot()


def test_a_state_of_a_newer_version_is_refused():
    state = Engine().snapshot()
    assert state[1] == 1
    with pytest.raises(ConfigurationError, match="version 2"):
        Engine.restore(state[:1] + b"\x02" + state[2:])


def test_a_value_of_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="unknown kind 9"):
        extension(9, memoryview(b"x"))


def test_pinned_dead_letters_and_those_behind_them_survive_a_snapshot():
    engine = engine_with(quorum("q", **at_least_once("dead")))
    send(engine, "q", *range(40))
    for _ in range(35):
        engine.settle("me", engine.get("me", "q", NOW).tag, "refuse", NOW)
    restored = Engine.restore(engine.snapshot())
    assert restored.contents("q") == engine.contents("q")
    assert restored.next_due_ms() == NOW + RETRY_MS
    restored.declare(Topology((Exchange("dead", "fanout"),), (quorum("d"),), (Binding("dead", "d"),)), NOW)
    restored.tick(NOW + RETRY_MS)
    assert len(restored.contents("d")) == 35


def test_what_a_cancelled_consumer_holds_is_still_its_own_after_a_snapshot():
    engine = engine_with(quorum("q"))
    engine.consume("s", "c", "q", 1, NOW)
    send(engine, "q", 1)
    engine.cancel("s", "c", NOW)
    restored = Engine.restore(engine.snapshot())
    assert restored.unsettled("s") == engine.unsettled("s")
    assert restored.unsettled("s")[0].consumer == "c"
    assert restored.settle("s", 1, "hand_back", NOW)
    assert len(restored.contents("q")) == 1


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x98\x02\x93\x90\x90\x90\x00\x00\x90\x90\x80\x90"])
def test_bytes_that_are_no_state_are_refused(data):
    with pytest.raises(ConfigurationError, match="state"):
        Engine.restore(data)


LAYOUT = Topology(
    (Exchange("x"), Exchange("dead", "fanout")),
    (
        quorum("main", delivery_limit=2, **at_least_once("dead")),
        quorum("delay", message_ttl=50, **at_least_once("", "main")),
        quorum("stuck", message_ttl=20, **at_least_once("", "nothing")),
        quorum("small", max_length=2, dead_letter_exchange="dead"),
        quorum("full", max_length=2, overflow="reject-publish"),
        classic("old", max_length=3, dead_letter_exchange="dead", dead_letter_routing_key="old"),
        quorum("dlq"),
    ),
    (Binding("dead", "dlq"), *(Binding("x", name, "#") for name in ("main", "small", "old"))),
)
QUEUES = ("main", "delay", "stuck", "small", "full", "old", "dlq")
steps = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from((*QUEUES, "x")), st.sampled_from(("", "0", "30"))),
    st.tuples(st.just("consume"), st.sampled_from(("a", "b")), st.sampled_from(QUEUES), st.integers(0, 3)),
    st.tuples(st.just("cancel"), st.sampled_from(("a", "b")), st.sampled_from(QUEUES)),
    st.tuples(st.just("get"), st.sampled_from(("a", "b")), st.sampled_from(QUEUES)),
    st.tuples(st.just("settle"), st.integers(0, 20), st.sampled_from(("ack", "hand_back", "refuse"))),
    st.tuples(st.just("end"), st.sampled_from(("a", "b"))),
    st.tuples(st.just("tick"), st.sampled_from((0, 10, 25, 60, RETRY_MS))),
    st.tuples(st.just("purge"), st.sampled_from(QUEUES)),
    st.tuples(st.just("delete"), st.sampled_from(("small", "dlq"))),
    st.tuples(st.just("declare")),
)


class Run:
    """The calls of one example on one engine, and all it answered."""

    def __init__(self):
        self.engine, self.now, self.sent, self.answers = Engine(), NOW, 0, []
        self.engine.declare(LAYOUT, NOW)

    def step(self, verb, *details):
        engine, now = self.engine, self.now
        try:
            self.answers.append(getattr(self, verb)(engine, now, *details))
        except BrokerError as error:
            self.answers.append(str(error))
        self.answers.append((engine.handed, engine.ended, engine.next_due_ms()))
        engine.handed, engine.ended = [], []

    def publish(self, engine, now, to, expiration):
        self.sent += 1
        exchange, key = (to, "k") if to == "x" else ("", to)
        body = str(self.sent).encode()
        return engine.publish(Message(body=body, exchange=exchange, routing_key=key, expiration=expiration), now)

    def consume(self, engine, now, session, queue, prefetch):
        engine.consume(session, queue, queue, prefetch, now)

    def cancel(self, engine, now, session, queue):
        engine.cancel(session, queue, now)

    def get(self, engine, now, session, queue):
        return engine.get(session, queue, now)

    def settle(self, engine, now, index, verb):
        held = [(session, one.tag) for session in ("a", "b") for one in engine.unsettled(session)]
        return bool(held) and engine.settle(*held[index % len(held)], verb, now)

    def end(self, engine, now, session):
        engine.end(session, now)

    def tick(self, engine, now, later):
        self.now = now + later
        engine.tick(self.now)
        due = engine.next_due_ms()
        assert due is None or due > self.now

    def purge(self, engine, now, queue):
        return engine.purge(queue, now)

    def delete(self, engine, now, queue):
        return engine.delete_queue(queue, now)

    def declare(self, engine, now):
        engine.declare(LAYOUT, now)


@given(st.lists(steps, max_size=40), st.integers(1, 5))
def test_an_engine_restored_at_any_time_goes_on_exactly_as_the_first(calls, every):
    straight, broken = Run(), Run()
    for number, call in enumerate(calls):
        straight.step(*call)
        broken.step(*call)
        if number % every == 0:
            broken.engine = Engine.restore(broken.engine.snapshot())
    assert broken.answers == straight.answers
    assert broken.engine.snapshot() == straight.engine.snapshot()


LOSSLESS = Topology(
    queues=(
        quorum("main", delivery_limit=2, **at_least_once("", "dlq")),
        quorum("delay", message_ttl=50, **at_least_once("", "main")),
        quorum("stuck", message_ttl=20, **at_least_once("", "nothing")),
        quorum("dlq", **at_least_once("nowhere")),  # without it, what is refused there is lost by declaration
    )
)
moves = steps.filter(lambda call: call[0] in {"publish", "consume", "cancel", "get", "settle", "end", "tick"})


@given(st.lists(moves, max_size=40))
def test_at_least_once_loses_and_doubles_no_message(calls):
    run = Run()
    run.engine = engine = Engine()
    engine.declare(LOSSLESS, NOW)
    taken, acked = set(), set()
    for verb, *details in calls:
        held = {one.message.body: one.tag for session in ("a", "b") for one in engine.unsettled(session)}
        run.step(verb, *details)
        if verb == "publish" and run.answers[-2] is CONFIRMED:
            taken.add(str(run.sent).encode())
        if verb == "settle" and details[1] == "ack" and held:
            left = {tag for session in ("a", "b") for tag in engine.held.get(session, {})}
            acked |= {body for body, tag in held.items() if tag not in left}
    there = [message.body for queue in engine.queues for message in engine.contents(queue)]
    there += [one.message.body for session in ("a", "b") for one in engine.unsettled(session)]
    assert sorted(there) == sorted(taken - acked)
    assert NACKED not in run.answers
