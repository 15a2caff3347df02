"""Claims about the whole: what came in is done, waiting or dead, at every instant, whatever happens in between.

Settlements are performed on the embedded broker's engine, which is time as an argument and nothing else: handlers
end as Hypothesis likes, workers are lost with messages in their hands and between publishing and acknowledging.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carom.brokers.embedded.engine import Engine, Handed
from carom.core import message as names
from carom.core import wire
from carom.core.effects import CONFIRMED, Ack, HandBack, Publish
from carom.core.message import Message
from carom.core.outcome import Discard, Done, Failed, Interrupted, Outcome, Reject, Retry
from carom.core.retry import RetryPolicy
from carom.core.settlement import Layout, Moment, Plan, admit, settle
from carom.core.topology import Topology, arguments
from carom.errors import DecodeError
from carom.layouts import PerQueue, Shared

PLANS = (
    Plan("charge", ("order.created",), RetryPolicy.delays("2s", "5s"), crash_limit=3),
    Plan("mail", ("order.*", "user.#"), RetryPolicy.delays(0, "5s").on(KeyError, ("1m", "1m", "1m")), crash_limit=2),
    Plan("audit", ("#",)),
)
LAYOUTS = {"shared": Shared(plans=PLANS), "per_queue": PerQueue(plans=PLANS)}
HOMES = tuple(plan.queue for plan in PLANS)
SUSPECTS = "carom.suspects.app"
KEYS = ("order.created", "order.paid", "user", "user.left.today", "nobody.else")
MINUTE = 60_000

every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
every_kind = pytest.mark.parametrize("kind", ["quorum", "classic"])


def of_kind(topology: Topology, kind: str) -> Topology:
    """Return a topology with queues of another kind, as somebody may have declared them before us."""
    unknown = {"x-delivery-limit", "x-dead-letter-strategy", "x-queue-type"}
    if kind == "quorum":
        return topology
    bare = [
        replace(queue, arguments=arguments({k: v for k, v in queue.arguments if k not in unknown}))
        for queue in topology.queues
    ]
    return replace(topology, queues=tuple(bare))


@dataclass
class World:
    """A broker, its workers, and the books: which message is owed to which queue, and what became of it."""

    layout: Layout
    kind: str = "quorum"
    engine: Engine = field(default_factory=Engine)
    now: int = 1_700_000_000_000
    owed: Counter[tuple[str, str]] = field(default_factory=Counter)
    done: Counter[tuple[str, str]] = field(default_factory=Counter)
    twice: int = 0
    hands: list[Handed] = field(default_factory=list)
    published: dict[str, Message] = field(default_factory=dict)
    _ids: count[int] = field(default_factory=count)
    _workers: int = 0

    def __post_init__(self) -> None:
        self.engine.declare(of_kind(self.layout.topology, self.kind), self.now)

    def publish(self, key: str, headers: dict[str, object]) -> None:
        sent = Message(
            id=f"id-{next(self._ids)}", exchange="events", routing_key=key, headers=headers, body=key.encode()
        )
        assert self.engine.publish(sent, self.now) == CONFIRMED
        self.published[sent.id] = sent
        self.owed.update((home, sent.id) for home in HOMES if self.reaches(home, key))

    def reaches(self, home: str, key: str) -> bool:
        wants = {"charge": key == "order.created", "mail": key.startswith(("order.", "user")), "audit": True}
        return wants[home]

    def take(self, queue: str) -> None:
        if queue == SUSPECTS and any(handed.queue == SUSPECTS for handed in self.hands):
            return  # one at a time
        handed = self.engine.get(f"worker-{self._workers}", queue, self.now)
        if handed is not None:
            self.hands.append(handed)

    def handle(self, outcome: Outcome | None, fraction: float = 0.0, *, lost_before_ack: bool = False) -> None:
        """Settle the oldest message in the worker's hands; the worker may be lost between publish and ack.

        Without an outcome the handler does not come to an end: the message stays in the worker's hands.
        """
        if not self.hands:
            return
        handed = self.hands.pop(0)
        plan = next(plan for plan in PLANS if plan.queue == owed_to(handed.queue, handed.message))
        arrival = wire.read(
            handed.message,
            plan.queue,
            redelivered=handed.redelivered,
            counts=self.kind == "quorum",
            alone=handed.queue == SUSPECTS,
        )
        moment = Moment(self.now, fraction, "host")
        admitted = admit(arrival, plan, self.layout, moment)
        if admitted is None and outcome is None:
            self.hands.append(handed)
            return
        settlement = admitted or settle(outcome, arrival, plan, self.layout, moment)
        *before, last = settlement.effects
        for effect in before:
            assert isinstance(effect, Publish)
            assert self.engine.publish(effect.message, self.now) == CONFIRMED
        if lost_before_ack:
            self.twice += len(before)
            self.lose_the_worker()
            return
        if settlement.fate in {"done", "discarded"}:
            self.done[plan.queue, handed.message.id] += 1
        verb = "ack" if isinstance(last, Ack) else "hand_back" if isinstance(last, HandBack) else "refuse"
        assert self.engine.settle(handed.session, handed.tag, verb, self.now)

    def lose_the_worker(self) -> None:
        self.engine.end(f"worker-{self._workers}", self.now)
        self.hands.clear()
        self._workers += 1

    def advance(self, ms: int) -> None:
        """Let time pass, stopping wherever something happens by itself."""
        until = self.now + ms
        while (due := self.engine.next_due_ms()) is not None and due <= until:
            self.now = max(due, self.now)
            self.engine.tick(self.now)
            self.check()
        self.now = until

    def held(self) -> Counter[tuple[str, str]]:
        """Return what is anywhere on the broker, by the queue it is owed to."""
        found: Counter[tuple[str, str]] = Counter()
        for queue in self.layout.topology.queues:
            for message in self.engine.contents(queue.name):
                found[owed_to(queue.name, message), message.id] += 1
        found.update((owed_to(handed.queue, handed.message), handed.message.id) for handed in self.hands)
        return found

    def dead(self) -> Counter[tuple[str, str]]:
        queues = [queue.name for queue in self.layout.topology.queues if queue.name.endswith(".dlq")]
        return Counter((owed_to(name, each), each.id) for name in queues for each in self.engine.contents(name))

    def check(self) -> None:
        """In = done + waiting + dead. Nothing is ever missing; twice is only what a lost worker left twice."""
        there = self.held() + self.done
        assert not self.owed - there
        assert (there - self.owed).total() <= self.twice
        assert set(there) == set(self.owed)

    def drain(self, outcome: Outcome) -> None:
        """Give every message the same end until nothing waits any more."""
        for _ in range(10_000):
            for queue in (*HOMES, SUSPECTS):
                self.take(queue)
            if self.hands:
                while self.hands:
                    self.handle(outcome)
                    self.check()
            elif (due := self.engine.next_due_ms()) is not None:
                self.advance(due - self.now)
            else:
                return
        pytest.fail("messages go round and never come to an end")


def owed_to(queue: str, message: Message) -> str:
    """Return the queue whose handler a message is for, wherever on the broker it is."""
    home = queue.removesuffix(".dlq")
    return home if home in HOMES else str(message.headers[names.QUEUE])


odd = st.sampled_from([0, -1, 1, 3, 10**30, 2.5, True, "4", [4], {"a": [None]}, None, "charge", "mail"])
waits = st.dictionaries(st.just(names.WAIT), st.sampled_from([1, 90_000, "long", -5]))
ours = st.sampled_from([names.QUEUE, names.ATTEMPT, names.CRASHES, names.REASON, names.TRAIL, names.EXCHANGE])
hostile = st.builds(
    lambda forged, wait: {**forged, **wait},
    st.dictionaries(ours | st.sampled_from(["x-delivery-count", "x-opt-a", "x-death"]), odd, max_size=4),
    waits,
)
outcomes = st.sampled_from(
    [
        Done(),
        Discard("of no use"),
        Interrupted(),
        Reject("no such order"),
        Reject(why="malformed", error=DecodeError("not JSON")),
        Retry(),
        Retry(0),
        Retry(1_500),
        Retry(45_000),
        Failed(ValueError("x")),
        Failed(KeyError("x")),
        Failed(DecodeError("x")),
    ]
)
publishes = st.tuples(st.just("publish"), st.sampled_from(KEYS), hostile)
takes = st.tuples(st.just("take"), st.sampled_from((*HOMES, SUSPECTS)))
handles = st.tuples(st.just("handle"), outcomes, st.sampled_from([0.0, 0.99]))
passing = st.tuples(st.just("advance"), st.sampled_from([1, 1_999, 2_000, 5_000, MINUTE, 10 * MINUTE]))
losses = st.tuples(st.just("lose_the_worker"))
steps = st.lists(st.one_of(publishes, takes, takes, handles, handles, passing, losses), max_size=40)


def play(world: World, step: tuple[object, ...]) -> None:
    verb, *how = step
    getattr(world, str(verb))(*how)
    world.check()


@every_kind
@every_layout
@given(steps)
def test_whatever_happens_every_message_is_done_waiting_or_dead_and_none_twice(layout, kind, steps):
    world = World(layout, kind)
    for step in steps:
        play(world, step)
    assert not world.twice
    world.drain(Failed(ValueError("x")))
    assert world.dead() + world.done == world.owed


@every_kind
@every_layout
@given(steps, st.lists(st.integers(0, 40), max_size=4))
def test_a_worker_lost_between_publishing_and_acknowledging_loses_nothing(layout, kind, steps, fatal):
    world = World(layout, kind)
    for index, step in enumerate(steps):
        if step[0] == "handle" and index in fatal:
            world.handle(step[1], lost_before_ack=True)
        play(world, step)
    world.drain(Done())
    assert not world.owed - (world.dead() + world.done)
    assert (world.dead() + world.done - world.owed).total() <= world.twice


@every_kind
@every_layout
@given(st.lists(publishes, min_size=1, max_size=3), outcomes.filter(lambda outcome: outcome != Interrupted()))
def test_whatever_a_handler_keeps_saying_its_message_comes_to_an_end(layout, kind, published, outcome):
    world = World(layout, kind)
    for step in published:
        play(world, step)
    world.drain(outcome)
    assert world.dead() + world.done == world.owed


@every_kind
@every_layout
@given(st.lists(publishes, min_size=1, max_size=3))
def test_messages_that_kill_every_worker_are_dead_letters_in_the_end(layout, kind, published):
    world = World(layout, kind)
    for step in published:
        play(world, step)
    for _ in range(60):
        for queue in (*HOMES, SUSPECTS):
            world.take(queue)
            world.handle(None)  # what admission decides is done; what it lets through is lost with its worker
            world.lose_the_worker()
            world.check()
        world.advance(MINUTE)
    assert world.dead() == world.owed


@every_kind
@every_layout
@given(st.lists(publishes, min_size=1, max_size=3))
def test_stopping_any_number_of_workers_condemns_no_message(layout, kind, published):
    world = World(layout, kind)
    for verb, key, _headers in published:
        play(world, (verb, key, {}))
    for _ in range(12):
        for queue in (*HOMES, SUSPECTS):
            world.take(queue)
            world.handle(Interrupted())
        world.check()
    limited_to_company = sum(1 for home, _ in world.owed if home == "mail")  # its crash limit is 2
    assert world.dead().total() <= limited_to_company
    assert all(home == "mail" for home, _ in world.dead())


@every_layout
@given(
    st.lists(publishes, min_size=1, max_size=3), st.sampled_from([Failed(ValueError("x")), Reject("no"), Retry(9_000)])
)
def test_dead_letters_have_body_id_and_headers_of_the_message_that_was_published(layout, published, outcome):
    world = World(layout)
    for step in published:
        play(world, (*step[:2], {**step[2], "x-tenant": "a", "": [1, {"b": b"\xff"}]}))
    world.drain(outcome)
    for home in HOMES:
        for dead in world.engine.contents(f"{home}.dlq"):
            first = world.published[dead.id]
            assert dead.body == first.body
            assert names.foreign(dead.headers) == names.foreign(first.headers)
            assert dead.headers[names.QUEUE] == home
            assert dead.headers[names.REASON]


@every_layout
def test_a_ladder_is_climbed_to_the_millisecond(layout):
    world = World(layout)
    world.publish("order.created", {})
    start, attempts = world.now, []
    while not world.dead()["charge", "id-0"]:
        world.take("charge")
        if world.hands:
            attempts.append(world.now - start)
            world.handle(Failed(ValueError("x")))
        else:
            world.advance(1)
    assert attempts == [0, 2_000, 7_000]


def test_the_retries_of_a_queue_that_was_deleted_are_kept_and_block_nobody():
    world = World(LAYOUTS["shared"])
    for _ in range(40):
        world.publish("order.created", {})
        for home in ("charge", "mail"):
            world.take(home)
            world.handle(Retry(2_000))
    world.engine.delete_queue("charge", world.now)
    world.now += 2_000
    world.engine.tick(world.now)
    assert {each.id for each in world.engine.contents("carom.lost")} == set(world.published)
    assert {each.id for each in world.engine.contents("mail")} == set(world.published)
