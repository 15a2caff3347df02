"""LayoutContract: what every layout does, on whatever broker the hooks give.

    class TestOurs(LayoutContract):
        def make_broker(self) -> Broker:
            return RabbitBroker("amqp://localhost", RealClock())

        def make_layout(self, plans: tuple[Plan, ...]) -> Layout:
            return Ours(self.prefix, self.name("events"), plans)

On virtual time the timeline is exact to the millisecond; in real time ``late_ms`` says how late an attempt may be.

Rule: what is decided here is decided by `carom.core.settlement`, as an app does it; a layout is never asked in private.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from carom.core import message as names
from carom.core.effects import Ack, Confirmed, Fail, HandBack, Publish, Unknown
from carom.core.message import Message
from carom.core.outcome import Done, Failed, Interrupted, Outcome, Reject
from carom.core.retry import RetryPolicy
from carom.core.routing import route
from carom.core.settlement import Layout, Moment, Plan, Settlement, admit, settle
from carom.core.topology import Queue
from carom.core.wire import Address
from carom.ports import Broker, Delivery
from carom.testing.contracts.stage import Stage

FAILURE = Failed(TimeoutError("the bank does not answer"))
HEADERS = {"tenant": "acme", "shard": 7}
Decide = Callable[[Message], Outcome | None]
"""What a handler does with a message; None for one that never comes to an end."""


@dataclass(frozen=True)
class Attempted:
    """A call of the handler: the message it was given, and when."""

    message: Message
    at_ms: float


class Worker:
    """Consumes a queue and the suspects, one message at a time, as an app does."""

    def __init__(self, stage: LayoutContract, broker: Broker, layout: Layout, plan: Plan, decide: Decide) -> None:
        """Take nothing yet."""
        self.attempts: list[Attempted] = []
        self.settled: list[Settlement] = []
        self.took_over: list[Message] = []
        self._stage = stage
        self._broker = broker
        self._layout = layout
        self._plan = plan
        self._decide = decide
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Consume until the broker is closed."""
        for queue in (self._plan.queue, self._layout.suspects):
            await self._broker.consume(queue, self._receive, prefetch=50, ended=lambda why: None)  # noqa: ARG005 - nobody ends it

    def calls(self, identity: str) -> list[Attempted]:
        """Return the calls of the handler with one message."""
        return [one for one in self.attempts if one.message.id == identity]

    def _receive(self, delivery: Delivery) -> None:
        task = asyncio.get_running_loop().create_task(self._handle(delivery))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, delivery: Delivery) -> None:
        layout, plan, wire = self._layout, self._plan, self._layout.wire
        declared = layout.topology.queue(delivery.queue)
        arrival = wire.read(
            delivery.message,
            plan.queue,
            redelivered=delivery.redelivered,
            counts=declared is None or declared.kind == "quorum",
            alone=delivery.queue == layout.suspects,
        )
        now = self._stage.now_ms()
        settlement = admit(arrival, plan, layout, Moment(int(now)))
        if settlement is None:
            message = wire.seen(arrival)
            self.attempts.append(Attempted(message, now))
            outcome = self._decide(message)
            if outcome is None:
                return
            settlement = settle(outcome, arrival, plan, layout, Moment(int(now)))
        await self._perform(settlement, delivery)

    async def _perform(self, settlement: Settlement, delivery: Delivery) -> None:
        for effect in settlement.effects:
            if isinstance(effect, Publish):
                (result,) = await self._broker.publish([effect.message])
                if isinstance(result, Unknown):  # this worker was lost meanwhile, and the broker has the message
                    return
                assert isinstance(result, Confirmed), f"a copy to {effect.message.exchange!r} ended as {result}"
                self.took_over.append(effect.message)
            elif isinstance(effect, Ack):
                delivery.ack()
            elif isinstance(effect, HandBack):
                delivery.hand_back()
            elif isinstance(effect, Fail):
                delivery.fail()
            else:
                delivery.refuse()
        self.settled.append(settlement)


class LayoutContract(Stage):
    """Subclass it, give it a broker as for a `BrokerContract`, and a layout."""

    key: str = "order.created"
    """A key by which the queue is bound."""
    ladder_ms: tuple[int, ...] = (1_000, 2_000, 4_000)
    """The delays that are asked for, which the layout has."""
    late_ms: float = 0
    """How much later than it is due an attempt may come: 0 on virtual time."""
    keeps_headers: bool = True
    """Whether this wire has a place for a user's headers."""
    writes_headers_as_text: bool = False
    """Whether this wire makes text of every header of a user."""
    body: bytes = b'{"n":1}'
    """What a handler gets of the payload ``{"n":1}``, which is published as JSON."""
    counts_crashes_as_attempts: bool = False
    """Whether a crash cannot be told from a failure here, so that a message is a suspect when its attempts are over."""

    def make_layout(self, plans: tuple[Plan, ...]) -> Layout:
        """Return the layout for these plans, under names of this test alone."""
        raise NotImplementedError("a layout contract needs make_layout(plans): return the layout for them")

    def home(self) -> str:
        """Return what the queue is called."""
        return self.name("orders")

    # --- claims

    async def test_what_is_published_reaches_its_handler_as_it_was(self) -> None:
        """Body, key, ids and the headers of the user; it is the first attempt."""
        worker, broker, layout = await self._worker(lambda _: Done())
        await self._send(broker, layout, "m-1")
        await self.until(lambda: len(worker.settled) == 1, "the message to be handled")
        (only,) = worker.attempts
        self._is_whole(only.message, "m-1", layout)
        assert only.message.attempt == 1

    async def test_a_failing_message_waits_what_the_policy_says_and_then_is_dead(self) -> None:
        """One attempt more than there are delays, each at its time, and a dead letter that says what happened."""
        worker, broker, layout = await self._worker(lambda _: FAILURE)
        await self._send(broker, layout, "m-1")
        await self._until_ended(worker, 1)
        assert [one.message.attempt for one in worker.attempts] == list(range(1, len(self.ladder_ms) + 2))
        times = [one.at_ms for one in worker.attempts]
        waits = [after - before for before, after in pairwise(times)]
        for wait, due in zip(waits, self.ladder_ms, strict=True):
            assert due <= wait + self._grain <= due + self.late_ms + 2 * self._grain, f"waited {waits}"
        for one in worker.attempts:
            self._is_whole(one.message, "m-1", layout)
        assert worker.settled[-1].fate == "dead"
        (letter,) = await self._dead(broker, layout)
        assert letter.headers[names.REASON] == "exhausted"
        assert letter.headers[names.ERROR_TYPE] == "TimeoutError"
        assert "the bank does not answer" in str(letter.headers[names.ERROR])
        assert letter.headers[names.KEY] == self.key
        assert letter.headers[names.ATTEMPT] == len(self.ladder_ms) + 1

    async def test_a_rejected_message_is_dead_at_once(self) -> None:
        """Whatever attempts there would be."""
        worker, broker, layout = await self._worker(lambda _: Reject("no such order"))
        await self._send(broker, layout, "m-1")
        await self._until_ended(worker, 1)
        assert len(worker.attempts) == 1
        (letter,) = await self._dead(broker, layout)
        assert letter.headers[names.REASON] == "rejected"

    async def test_what_came_in_is_done_or_dead_and_nothing_twice(self) -> None:
        """Messages that succeed at once, later, or never."""
        last = len(self.ladder_ms) + 1

        def decide(message: Message) -> Outcome:
            return Done() if message.attempt > int(message.id.partition("-")[2]) % (last + 1) else FAILURE

        worker, broker, layout = await self._worker(decide)
        ids = [f"m-{number}" for number in range(20)]
        for one in ids:
            await self._send(broker, layout, one)
        await self._until_ended(worker, len(ids))
        done = [settlement.fate for settlement in worker.settled].count("done")
        letters = await self._dead(broker, layout)
        hopeless = [one for one in ids if int(one[2:]) % (last + 1) == last]
        assert done == len(ids) - len(hopeless)
        assert len(letters) == len(hopeless)
        calls = Counter(one.message.id for one in worker.attempts)
        assert calls == {one: min(int(one[2:]) % (last + 1) + 1, last) for one in ids}

    async def test_an_interrupted_attempt_is_not_counted(self) -> None:
        """A worker that stops hands back what it has, and the same attempt comes again."""
        outcomes: list[Outcome] = [Interrupted(), FAILURE, Done()]
        worker, broker, layout = await self._worker(lambda _: outcomes.pop(0))
        await self._send(broker, layout, "m-1")
        await self._until_ended(worker, 1)
        assert [one.message.attempt for one in worker.attempts] == [1, 1, 2]

    async def test_a_message_that_kills_its_workers_ends_as_a_dead_letter(self) -> None:
        """Each worker is lost with it in its hands; the crashes are counted until it is not handed out again."""
        calls = 0
        for _ in range(12):
            worker, broker, layout = await self._worker(lambda _: None)
            if not calls:
                await self._send(broker, layout, "m-1")
            await self.until(lambda worker=worker: bool(worker.attempts or self._ends(worker)), "the message to come")  # type: ignore[misc] # a lambda with a default
            calls += len(worker.attempts)
            if self._ends(worker):
                break
            await broker.close()
        assert worker.settled[-1].reason == "crash-loop"
        spent_as_attempts = len(self.ladder_ms) + 1 if self.counts_crashes_as_attempts else 0
        assert calls <= Plan("").crash_limit + 1 + spent_as_attempts
        (letter,) = await self._dead(broker, layout)
        assert letter.headers[names.REASON] == "crash-loop"

    async def test_a_dead_letter_that_is_put_back_starts_anew(self) -> None:
        """Whoever moves it, with whatever tool, headers and all."""
        worker, broker, layout = await self._worker(lambda _: Reject("not yet"))
        await self._send(broker, layout, "m-1")
        await self._until_ended(worker, 1)
        (letter,) = await self._dead(broker, layout)
        back = layout.queue_address(self.home())
        await self.publish(broker, replace(letter, exchange=back.exchange, routing_key=back.routing_key))
        await self._until_ended(worker, 2)
        again = worker.attempts[-1].message
        assert again.attempt == 1
        self._is_whole(again, "m-1", layout)

    def test_every_way_back_leads_to_the_queue_and_waits_long_enough(self) -> None:
        """Followed through the topology alone, for each delay of the policy that copies wait."""
        self.prefix = "contract"
        layout = self.make_layout((self._plan(),))
        known = [delay for delay in self.ladder_ms if delay in layout.delays(self.home())]
        assert known, "the layout has none of the delays of the policy"
        for delay in known:
            reached = self._followed(layout, layout.delay_address(self.home(), delay))
            assert (self.home(), delay) in reached, reached
        assert self._followed(layout, layout.queue_address(self.home())) == {(self.home(), 0)}
        assert self._dead_queue(layout) not in {self.home(), layout.suspects}

    # --- verbs

    @property
    def _grain(self) -> int:
        """A broker that keeps time in milliseconds of its own may be one off, where time is real."""
        return 2 if self.late_ms else 0

    def _plan(self) -> Plan:
        policy = RetryPolicy.delays(*(delay / 1000 for delay in self.ladder_ms))
        return Plan(self.home(), (self.key,), policy)

    async def _worker(self, decide: Decide) -> tuple[Worker, Broker, Layout]:
        plan = self._plan()
        layout = self.make_layout((plan,))
        broker = await self.connect()
        self._declared.append(layout.topology)
        await broker.declare(layout.topology)
        worker = Worker(self, broker, layout, plan, decide)
        await worker.start()
        return worker, broker, layout

    async def _send(self, broker: Broker, layout: Layout, identity: str) -> None:
        message = Message(
            body=b'{"n":1}',
            exchange=self._events(layout),
            routing_key=self.key,
            id=identity,
            correlation_id=f"flow-{identity}",
            content_type="application/json",
            headers=HEADERS if self.keeps_headers else {},
            timestamp=1_700_000_000,
        )
        await self.publish(broker, layout.wire.outgoing(message))

    def _events(self, layout: Layout) -> str:
        return next(exchange.name for exchange in layout.topology.exchanges if exchange.public)

    def _is_whole(self, message: Message, identity: str, layout: Layout) -> None:
        assert (message.body, message.routing_key, message.id) == (self.body, self.key, identity)
        assert message.exchange == self._events(layout)
        if self.keeps_headers:
            expected = {name: str(value) if self.writes_headers_as_text else value for name, value in HEADERS.items()}
            assert {name: message.headers.get(name) for name in HEADERS} == expected
            assert message.correlation_id == f"flow-{identity}"

    def _ends(self, worker: Worker) -> int:
        return sum(settlement.fate in {"done", "dead"} for settlement in worker.settled)

    async def _until_ended(self, worker: Worker, count: int) -> None:
        within = 2 * sum(self.ladder_ms) + 20_000
        await self.until(lambda: self._ends(worker) >= count, f"{count} messages to end", within, self._pace)

    @property
    def _pace(self) -> int:
        return 5 if self.late_ms else max(5, min(self.ladder_ms) // 4)

    def _dead_queue(self, layout: Layout) -> str:
        to = layout.dead_address(self.home())
        kept = (layout.topology.queue(name) for name in route(layout.topology, to.exchange, to.routing_key))
        (name,) = [queue.name for queue in kept if queue is not None and queue.ttl_ms is None]
        return name

    async def _dead(self, broker: Broker, layout: Layout) -> Sequence[Message]:
        """Take the dead letters out; nothing else is left anywhere."""
        queue = Queue(self._dead_queue(layout))
        letters = []
        while delivery := await broker.get(queue.name):
            delivery.ack()
            letters.append(delivery.message)
        return letters

    def _followed(self, layout: Layout, to: Address) -> set[tuple[str, int]]:
        """Follow an address to the queues where a message stays, with the time the way takes."""
        ends: set[tuple[str, int]] = set()
        todo = [(to.exchange, to.routing_key, 0, to.expires_ms)]
        while todo:
            exchange, key, waited, expires = todo.pop()
            found = route(layout.topology, exchange, key)
            assert found, f"nothing takes {key!r} at {exchange!r}"
            for name in found:
                queue = layout.topology.queue(name)
                assert queue is not None
                wait = queue.ttl_ms if queue.ttl_ms is not None else expires
                if not wait or queue.dead_letter_exchange is None or name == self.home():
                    ends.add((name, waited))
                    continue
                onward = key if queue.dead_letter_key is None else queue.dead_letter_key
                todo.append((queue.dead_letter_exchange, onward, waited + wait, 0))
        return ends
