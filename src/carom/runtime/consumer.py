"""The consumer: what a broker delivers is taken, and started when it has a place.

    taking and starting (here) ─▶ handling: admit ─▶ handler ─▶ outcome ─▶ settle ─▶ settling: perform

Rule: a delivery is settled once, by whoever took it; a delivery whose connection is gone is let go of.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any

from carom.core.settlement import Layout, put_back
from carom.core.wire import Arrival
from carom.ports import Delivery
from carom.runtime.handling import Handling
from carom.runtime.inbox import Taken
from carom.runtime.intake import Intake
from carom.runtime.listener import LINGER_MS, Listener
from carom.runtime.settling import Settling, let_die
from carom.runtime.surroundings import Surroundings

CANCEL_MS = 1_000
"""How long cancelled handlers have to end when the grace is over."""

_log = logging.getLogger("carom.consumer")


class Consumer:
    """Runs one listener."""

    def __init__(self, listener: Listener, shared: Surroundings) -> None:
        """Take nothing yet."""
        self.listener = listener
        self._shared = shared
        self._settling = Settling(listener.queue, shared, shared.inbox if listener.idempotent else None)
        self._handling = Handling(listener, shared, self._settling)
        self._counts = _counts_returns(listener.queue, shared.layout)
        self._wire = shared.layout.wire
        self._counts_suspects = _counts_returns(shared.layout.suspects, shared.layout)
        self._backlog: deque[Taken] = deque()
        self._suspects: deque[Taken] = deque()  # the one that waits to be alone
        self._late: deque[Taken] = deque()  # suspects that waited in vain, and for a place now
        self._context = contextvars.copy_context()
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._lingered = False
        self._unlinger: Callable[[], None] | None = None
        self._intake = Intake(listener.queue, listener.prefetch, shared, self.receive)
        shared.gate.wake(self._pump)

    @property
    def busy(self) -> int:
        """Return how many messages are in our hands, running or waiting to run."""
        return len(self._tasks) + len(self._backlog) + len(self._suspects) + len(self._late)

    @property
    def running(self) -> int:
        """Return how many handlers run; one whose copy the broker would not take yet does not."""
        return self._running - self._settling.paused

    @property
    def stuck(self) -> int:
        """Return how many handlers could not be stopped when their time was over."""
        return self._handling.stuck

    async def start(self) -> None:
        """Subscribe."""
        await self._intake.start()

    async def stop_taking(self) -> None:
        """Take no more; hand back what has not been started."""
        self._settling.stop()
        await self._intake.stop()
        self._stop_lingering()
        while self._backlog:
            self._settling.hand_back(*self._backlog.popleft())
        for suspects in (self._suspects, self._late):
            while suspects:
                self._put_back(*suspects.popleft())

    async def finish(self, grace_ms: int, hurry: asyncio.Event) -> int:
        """Wait for what runs, then interrupt it. Returns how many handlers could not be stopped."""
        await self._wait(grace_ms, hurry)
        self._handling.interrupt()
        await self._wait(CANCEL_MS, asyncio.Event())
        in_threads = max(0, self._handling.in_threads - len(self._tasks))
        self._handling.close()
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
        if self._settling.stopping:
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
            return delivery, self._wire.read(delivery.message, queue, redelivered=again, counts=counts, alone=alone)
        except Exception:  # noqa: BLE001 - the last guard: logged, and the delivery is settled
            _log.exception("a delivery from %s could not be read and is refused", queue)
            let_die(delivery, self._shared.layout.topology)
            return None

    def _pump(self) -> None:
        if self._settling.stopping:
            return
        backlog, gate = self._backlog, self._shared.gate
        while self._late and gate.is_open and self._running < self.listener.concurrency:
            gate.enter()
            self._start([self._late.popleft()])
        while backlog and self._running < self.listener.concurrency:
            if backlog[0][0].stale:
                self._settling.drop(backlog.popleft()[1])
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
        work = self._settling.conclude(delivery, arrival, self._wire.seen(arrival), settlement, time.perf_counter())
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
            self._settling.drop(taken[1])
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
        self._spawn(self._handling.one(*taken[0]) if self.listener.batch is None else self._handling.batch(taken))

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
