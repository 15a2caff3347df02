"""Virtual time: a clock that stands still until it is told to move, so that thirty minutes take no time.

Rule: timers fire in the order in which they are due, equal ones in the order in which they were set, and while one
fires, `now_ms` is exactly the time it was due. Nothing here waits for real time or starts a task.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

START_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z: where virtual time begins, the same in every run."""
TURNS = 10
"""How often the event loop goes round after each timer, so that what a timer woke can set the next one."""
_CANCELLED_KEPT = 64


@dataclass(order=True, slots=True)
class _Timer:
    due_ms: int
    number: int
    action: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)


class VirtualClock:
    """A `carom.ports.Clock` for tests. Belongs to one event loop and one thread.

    Code under test sets timers and sleeps; the test moves time with `advance`, `advance_to` or `elapse`. A timer
    that is due at once still fires only when time is moved or stepped, never inside `call_later`.
    """

    def __init__(self, start_ms: int = START_MS) -> None:
        """Start at a fixed date."""
        self._now_ms = start_ms
        self._timers: list[_Timer] = []
        self._numbers = itertools.count()
        self._cancelled = 0

    def now_ms(self) -> int:
        """Return the virtual time of day in milliseconds since 1970."""
        return self._now_ms

    def call_later(self, delay_ms: int, action: Callable[[], None]) -> Callable[[], None]:
        """Fire an action when time has moved by ``delay_ms``; the returned function cancels it, also twice or late."""
        timer = _Timer(self._now_ms + max(0, delay_ms), next(self._numbers), action)
        heappush(self._timers, timer)
        return lambda: self._cancel(timer)

    async def sleep(self, delay_ms: int) -> None:
        """Wait until time has moved by ``delay_ms``; zero or less only lets others run. May be cancelled."""
        if delay_ms <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        cancel = self.call_later(delay_ms, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            cancel()

    def next_due_ms(self) -> int | None:
        """Return when the next timer is due; None when there is none."""
        while self._timers and self._timers[0].cancelled:
            heappop(self._timers)
            self._cancelled -= 1
        return self._timers[0].due_ms if self._timers else None

    def step(self, until_ms: int | None = None) -> bool:
        """Move to the next timer and fire it; False, and nothing done, when none is due by ``until_ms``.

        Whoever steps lets the event loop run between two steps: what one timer wakes may set an earlier next one.
        An exception of the action goes to the caller; its timer is gone and the others stand.
        """
        due_ms = self.next_due_ms()
        if due_ms is None or (until_ms is not None and due_ms > until_ms):
            return False
        timer = heappop(self._timers)
        timer.cancelled = True
        self._now_ms = max(self._now_ms, due_ms)
        timer.action()
        return True

    def advance_to(self, until_ms: int) -> None:
        """Fire one by one all that is due up to a time of day, then stand there. Time never moves back."""
        while self.step(until_ms):
            pass
        self._now_ms = max(self._now_ms, until_ms)

    def advance(self, delay_ms: int) -> None:
        """Let time pass without letting the event loop run: for code that has no tasks."""
        self.advance_to(self._now_ms + delay_ms)

    async def elapse(self, delay_ms: int, turns: int = TURNS) -> None:
        """Let time pass, the event loop going round ``turns`` times before the first and after each timer."""
        until_ms = self._now_ms + delay_ms
        await _go_round(turns)
        while self.step(until_ms):
            await _go_round(turns)
        self._now_ms = max(self._now_ms, until_ms)
        await _go_round(turns)

    def _cancel(self, timer: _Timer) -> None:
        """Mark it; rebuild the heap when most of it is cancelled, so that timers set and cancelled cost no memory."""
        if timer.cancelled:
            return
        timer.cancelled = True
        self._cancelled += 1
        if self._cancelled > max(_CANCELLED_KEPT, len(self._timers) // 2):
            self._timers = [one for one in self._timers if not one.cancelled]
            heapify(self._timers)
            self._cancelled = 0


async def _go_round(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
