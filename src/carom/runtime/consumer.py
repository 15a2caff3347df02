"""The consumer: delivery → admit → handler → outcome → settle → perform.

Rule: nothing is acknowledged before what follows from it is confirmed. A publish that fails keeps the original
in our hands and is tried again, for as long as the connection that brought it stands.
Rule: a delivery is settled once, by whoever took it; a delivery whose connection is gone is let go of.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice
from typing import Any, TypeAlias

from carom.core import wire
from carom.core.effects import Ack, Confirmed, HandBack, Publish, PublishResult, Returned, Unknown, lasts
from carom.core.message import Message
from carom.core.outcome import Outcome
from carom.core.settlement import (
    DONE,
    Layout,
    Moment,
    Settlement,
    admit,
    put_back,
    settle,
)
from carom.core.wire import Arrival
from carom.errors import BrokerError, ConfigurationError
from carom.ports import Delivery
from carom.runtime import events
from carom.runtime.attempt import INTERRUPTED, Attempt
from carom.runtime.batches import handle_batch
from carom.runtime.inherited import HANDLING
from carom.runtime.intake import Intake
from carom.runtime.listener import LINGER_MS, Listener
from carom.runtime.middleware import chain
from carom.runtime.surroundings import Surroundings
from carom.runtime.threads import Threads

Taken: TypeAlias = tuple[Delivery, Arrival]

CANCEL_MS = 1_000
"""How long cancelled handlers have to end when the grace is over."""

_log = logging.getLogger("carom.consumer")


class Consumer:
    """Runs one listener."""

    def __init__(self, listener: Listener, shared: Surroundings) -> None:
        """Take nothing yet."""
        self.listener = listener
        self.stuck = 0
        self._shared = shared
        self._plan = listener.plan
        self._counts = _counts_returns(listener.queue, shared.layout)
        self._counts_suspects = _counts_returns(shared.layout.suspects, shared.layout)
        self._backlog: deque[Taken] = deque()
        self._suspects: deque[Taken] = deque()  # the one that waits to be alone
        self._late: deque[Taken] = deque()  # suspects that waited in vain, and for a place now
        self._context = contextvars.copy_context()
        self._running = 0
        self._paused = 0
        self._attempts: set[Attempt] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._lingered = False
        self._unlinger: Callable[[], None] | None = None
        self._interrupted = False
        self._stop = asyncio.Event()
        self._threads = None if listener.handler.is_async else Threads(listener.concurrency, listener.queue)
        self._call = chain(self._innermost, shared.middleware)
        self._intake = Intake(listener.queue, listener.prefetch, shared, self.receive)
        shared.gate.wake(self._pump)

    @property
    def busy(self) -> int:
        """Return how many messages are in our hands, running or waiting to run."""
        return len(self._tasks) + len(self._backlog) + len(self._suspects) + len(self._late)

    @property
    def running(self) -> int:
        """Return how many handlers run; one whose copy the broker would not take yet does not."""
        return self._running - self._paused

    async def start(self) -> None:
        """Subscribe."""
        await self._intake.start()

    async def stop_taking(self) -> None:
        """Take no more; hand back what has not been started."""
        self._stopping = True
        self._stop.set()
        await self._intake.stop()
        self._stop_lingering()
        while self._backlog:
            self._hand_back(*self._backlog.popleft())
        for suspects in (self._suspects, self._late):
            while suspects:
                self._put_back(*suspects.popleft())

    async def finish(self, grace_ms: int, hurry: asyncio.Event) -> int:
        """Wait for what runs, then interrupt it. Returns how many handlers could not be stopped."""
        await self._wait(grace_ms, hurry)
        self._interrupted = True
        for attempt in tuple(self._attempts):
            attempt.interrupt()
        await self._wait(CANCEL_MS, asyncio.Event())
        in_threads = 0
        if self._threads is not None:
            in_threads = max(0, self._threads.busy - len(self._tasks))
            self._threads.close()
        return len(self._tasks) + in_threads

    def receive(self, delivery: Delivery) -> None:
        """Take a delivery from the broker. Never raises: what cannot even be read becomes a dead letter."""
        taken = self._taken(delivery, counts=self._counts)
        if taken is not None:
            self._backlog.append(taken)
            self._pump()

    def receive_alone(self, delivery: Delivery) -> None:
        """Take a suspect. It starts when nothing else of this process runs, or has waited long enough for that."""
        taken = self._taken(delivery, counts=self._counts_suspects, alone=True)
        if taken is None:
            return
        if self._stopping:
            self._put_back(*taken)
            return
        self._suspects.append(taken)
        self._shared.gate.ask(self._start_suspect)

    async def is_through(self, limit_ms: int) -> bool:
        """Wait until nothing is in our hands; False when that took too long."""
        patience = asyncio.ensure_future(self._shared.clock.sleep(limit_ms))
        try:
            while self.busy and not patience.done():
                await asyncio.wait({*self._tasks, patience}, return_when=asyncio.FIRST_COMPLETED)
            return not self.busy
        finally:
            patience.cancel()

    # -- taking and starting -------------------------------------------------------------------------------

    def _taken(self, delivery: Delivery, *, counts: bool, alone: bool = False) -> Taken | None:
        queue, again = self.listener.queue, delivery.redelivered
        try:
            return delivery, wire.read(delivery.message, queue, redelivered=again, counts=counts, alone=alone)
        except Exception:  # noqa: BLE001 - the last guard: logged, and the delivery is settled
            _log.exception("a delivery from %s could not be read and is refused", queue)
            delivery.refuse()
            return None

    def _pump(self) -> None:
        if self._stopping:
            return
        backlog, gate = self._backlog, self._shared.gate
        while self._late and gate.is_open and self._running < self.listener.concurrency:
            gate.enter()
            self._start([self._late.popleft()])
        while backlog and self._running < self.listener.concurrency:
            if backlog[0][0].stale:
                self._drop(backlog.popleft()[1])
            elif not gate.is_open:
                return
            elif self.listener.batch is None:
                gate.enter()
                self._start([backlog.popleft()])
            elif not self._pump_batch(self.listener.batch):
                return

    def _put_back(self, delivery: Delivery, arrival: Arrival) -> None:
        """Put a suspect that was not started back: a copy, because a return would be blamed on it."""
        settlement = put_back(arrival, self._shared.layout)
        work = self._conclude(delivery, arrival, wire.seen(arrival), settlement, time.perf_counter())
        self._shared.gate.enter()
        self._spawn(work)

    async def settled(self) -> None:
        """Return when the broker has everything that was settled."""
        await self._intake.settled()

    def _start_suspect(self) -> bool:
        """Start the suspect that waited longest, if it still waits and has a place; tell whether one was started."""
        if not self._suspects:
            return False
        taken = self._suspects.popleft()
        if taken[0].stale:
            self._drop(taken[1])
        elif self._running < self.listener.concurrency:
            self._start([taken])
            return True
        else:
            self._late.append(taken)
        return False

    def _pump_batch(self, size: int) -> bool:
        """Start a batch when it is complete or has waited; tell whether one was started."""
        ready = list(islice(self._backlog, size))
        if len(ready) < size and not self._lingered:
            if self._unlinger is None:
                self._unlinger = self._shared.clock.call_later(LINGER_MS, self._linger)
            return False
        self._stop_lingering()
        for _ in ready:
            self._backlog.popleft()
        self._shared.gate.enter()
        self._start(ready)
        return True

    def _linger(self) -> None:
        self._unlinger = None
        self._lingered = True
        self._pump()
        self._lingered = False

    def _stop_lingering(self) -> None:
        if self._unlinger is not None:
            self._unlinger()
            self._unlinger = None

    def _start(self, taken: list[Taken]) -> None:
        self._spawn(self._handle(*taken[0]) if self.listener.batch is None else self._handle_batch(taken))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._running += 1
        # A context of its own: this may be called from within a handler that published, whose variables are its own.
        context = self._context.copy()
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended, context=self._context)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._running -= 1
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a consumer of %s failed", self.listener.queue, exc_info=error)
        self._shared.gate.leave()
        self._pump()

    # -- handling ------------------------------------------------------------------------------------------

    async def _handle(self, delivery: Delivery, arrival: Arrival) -> None:
        started = time.perf_counter()
        try:
            if arrival.alone:  # were it to kill us at once, nothing that was settled must come back
                await self._shared.settled()
            settlement = self._admit(arrival)
            message = wire.seen(arrival)
            if settlement is None:
                outcome = await self._attempt(arrival, message)
                settlement = self._settle(outcome, arrival)
            await self._perform(delivery, arrival, message, settlement, started)
        except asyncio.CancelledError:  # by the handler itself, or because the loop ends
            self._hand_back(delivery, arrival)
            raise
        except Exception:  # noqa: BLE001 - the last guard: logged, and the delivery is settled
            self._refuse(delivery, arrival)

    async def _handle_batch(self, batch: list[Taken]) -> None:
        started = time.perf_counter()
        decided = [self._admit(arrival) for _, arrival in batch]
        messages = [wire.seen(arrival) for _, arrival in batch]
        todo = [index for index, settlement in enumerate(decided) if settlement is None]
        for index in todo:
            self._tell(events.Received, batch[index][1], messages[index])
        try:
            outcomes = await handle_batch([messages[index] for index in todo], self._attempt_batch, self._is_readable)
        except asyncio.CancelledError:
            for taken in batch:
                self._hand_back(*taken)
            raise
        for index, outcome in zip(todo, outcomes, strict=True):
            decided[index] = self._settle(outcome, batch[index][1])
        waiting = []
        for taken, message, settlement in zip(batch, messages, decided, strict=True):
            if settlement is DONE:
                await self._perform(*taken, message, settlement, started)
            elif settlement is not None:
                waiting.append(self._conclude(*taken, message, settlement, started))
        # Side by side: a copy that the broker does not take keeps its own original waiting, and no other.
        await asyncio.gather(*waiting)

    async def _conclude(
        self, delivery: Delivery, arrival: Arrival, message: Message, settlement: Settlement, started: float
    ) -> None:
        try:
            await self._perform(delivery, arrival, message, settlement, started)
        except asyncio.CancelledError:
            self._hand_back(delivery, arrival)
            raise
        except Exception:  # noqa: BLE001 - the last guard: logged, and the delivery is settled
            self._refuse(delivery, arrival)

    async def _attempt(self, arrival: Arrival, message: Message) -> Outcome:
        self._tell(events.Received, arrival, message)
        HANDLING.set(message)
        return await self._run(message, arrival, message)

    async def _attempt_batch(self, messages: Sequence[Message]) -> Outcome:
        HANDLING.set(messages[0] if len(messages) == 1 else None)
        return await self._run(messages, wire.read(messages[0], self.listener.queue), messages[0])

    async def _run(self, subject: Any, arrival: Arrival, message: Message) -> Outcome:
        if self._interrupted:
            return INTERRUPTED
        attempt = Attempt(self._shared.clock, self.listener.timeout_ms, self._stuck(arrival, message))
        self._attempts.add(attempt)
        try:
            return await attempt.run(lambda: self._call(subject, attempt))
        finally:
            self._attempts.discard(attempt)

    def _is_readable(self, message: Message) -> bool:
        try:
            self.listener.handler.prepare(message)
        except Exception:  # noqa: BLE001 - it is raised again when the message is handled alone, and settled there
            return False
        return True

    async def _innermost(self, subject: Any, attempt: Attempt) -> Any:
        handler = self.listener.handler
        call = handler.prepare(subject) if self.listener.batch is None else handler.prepare_batch(subject)
        if self._threads is not None:
            return await attempt.in_threads(self._threads, call)
        return await call()

    def _stuck(self, arrival: Arrival, message: Message) -> Callable[[bool], None]:
        def tell(is_stuck: bool) -> None:  # noqa: FBT001 - one of two things happened, and it is said which
            self.stuck += 1 if is_stuck else -1
            if is_stuck:
                self._tell(events.HandlerStuck, arrival, message, timeout_ms=self.listener.timeout_ms or 0)
            else:
                self._tell(events.HandlerFreed, arrival, message)

        return tell

    # -- settling ------------------------------------------------------------------------------------------

    def _admit(self, arrival: Arrival) -> Settlement | None:
        if not (arrival.crashes or arrival.wait_ms or arrival.uncounted):
            return None
        return admit(arrival, self._plan, self._shared.layout, self._moment())

    def _settle(self, outcome: Outcome, arrival: Arrival) -> Settlement:
        return settle(outcome, arrival, self._plan, self._shared.layout, self._moment())

    def _moment(self) -> Moment:
        return Moment(self._shared.clock.now_ms(), random.random(), self._shared.host)  # noqa: S311 - jitter is no secret

    async def _perform(
        self, delivery: Delivery, arrival: Arrival, message: Message, settlement: Settlement, started: float
    ) -> None:
        """Do what was decided, in its order; settle only when everything before is confirmed."""
        for effect in settlement.effects:
            if isinstance(effect, Publish):
                if not await self._publish(effect.message, delivery, arrival, message):
                    return
            elif delivery.stale:
                self._drop(arrival)
                return
            elif isinstance(effect, Ack):
                delivery.ack()
            elif isinstance(effect, HandBack):
                delivery.hand_back()
            else:
                delivery.refuse()
        if self._shared.notify is not None:
            self._tell_settled(arrival, message, settlement, (time.perf_counter() - started) * 1000)

    async def _publish(self, copy: Message, delivery: Delivery, arrival: Arrival, message: Message) -> bool:
        """Publish until it is confirmed. False when the delivery was given up instead, and settled if it could be."""
        failures = 0
        while not delivery.stale:
            result = await self._publish_once(copy)
            if isinstance(result, Confirmed):
                return True
            if lasts(result) and not delivery.stale:
                delivery.refuse()
                self._tell(events.DeadLettered, arrival, message, reason="unpublishable", error=str(result))
                return False
            if self._stopping:
                self._hand_back(delivery, arrival)
                return False
            if isinstance(result, Returned):
                await self._restore()
            failures += 1
            wait_ms = self._shared.backoff.wait_ms(failures, random.random())  # noqa: S311 - jitter is no secret
            self._tell(events.NotSettled, arrival, message, result=str(result), retry_in_ms=wait_ms)
            await self._pause(wait_ms)
        self._drop(arrival)
        return False

    async def _restore(self) -> None:
        """Somebody removed what the copy goes to: make it anew, where we may."""
        try:
            await self._shared.restore()
        except (BrokerError, ConfigurationError) as error:
            _log.warning("the topology of %s cannot be restored: %s", self.listener.queue, error)

    async def _publish_once(self, copy: Message) -> PublishResult:
        try:
            (result,) = await self._shared.broker.publish((copy,))
        except BrokerError as error:
            return Unknown(str(error))
        return result

    def _refuse(self, delivery: Delivery, arrival: Arrival) -> None:
        """Let the broker make a dead letter of it, from within the handling of an error that is our own."""
        _log.exception("message %r of %s could not be settled and is refused", delivery.message.id, delivery.queue)
        delivery.refuse()
        self._tell(events.DeadLettered, arrival, wire.seen(arrival), reason="unsettled")

    def _hand_back(self, delivery: Delivery, arrival: Arrival) -> None:
        if delivery.stale:
            self._drop(arrival)
            return
        delivery.hand_back()
        self._tell(events.HandedBack, arrival, wire.seen(arrival))

    def _drop(self, arrival: Arrival) -> None:
        why = "the connection that brought it is gone; the broker delivers it again"
        self._tell(events.Dropped, arrival, wire.seen(arrival), why=why)

    # -- telling -------------------------------------------------------------------------------------------

    def _tell(self, kind: Callable[..., object], arrival: Arrival, message: Message, **more: object) -> None:
        if self._shared.notify is not None:
            self._shared.notify(
                kind(queue=arrival.queue, message=message, attempt=arrival.attempt, crashes=arrival.crashes, **more)
            )

    def _tell_settled(self, arrival: Arrival, message: Message, done: Settlement, duration_ms: float) -> None:
        tell = self._tell
        failure = {"classification": done.classification, "error_type": done.error_type, "error": done.error}
        match done.fate:
            case "done":
                tell(events.Handled, arrival, message, duration_ms=duration_ms)
            case "retried":
                tell(events.Retried, arrival, message, duration_ms=duration_ms, delay_ms=done.delay_ms, **failure)
            case "dead":
                tell(events.DeadLettered, arrival, message, duration_ms=duration_ms, reason=done.reason, **failure)
            case "discarded":
                tell(events.Discarded, arrival, message, duration_ms=duration_ms, reason=done.reason)
            case "handed back":
                tell(events.HandedBack, arrival, message)
            case "waiting" | "recounted" | "set apart":
                tell(events.Postponed, arrival, message, delay_ms=done.delay_ms)

    async def _pause(self, wait_ms: int) -> None:
        """Wait, but not when the app stops."""
        waits = [asyncio.ensure_future(self._shared.clock.sleep(wait_ms)), asyncio.ensure_future(self._stop.wait())]
        self._paused += 1
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._paused -= 1
            for wait in waits:
                wait.cancel()

    async def _wait(self, limit_ms: int, hurry: asyncio.Event) -> None:
        """Wait for what runs: in real time, because a process that is asked to stop has no other."""
        hurried = asyncio.ensure_future(hurry.wait())
        deadline = time.monotonic() + limit_ms / 1000
        try:
            while self._tasks and not hurried.done() and (left := deadline - time.monotonic()) > 0:
                await asyncio.wait({*self._tasks, hurried}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurried.cancel()


def _counts_returns(queue: str, layout: Layout) -> bool:
    """Tell whether the queue counts what comes back, as a quorum queue does."""
    declared = layout.topology.queue(queue)
    return declared is None or declared.kind == "quorum"
