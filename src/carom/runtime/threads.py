"""Threads for handlers that are not coroutines.

Rule: a thread that hangs never keeps the process from ending, and an error of any kind comes back as a value:
some exceptions (StopIteration, SystemExit) would otherwise be lost on the way into a future.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

Result: TypeAlias = tuple[bool, Any]
_Job: TypeAlias = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Result]", contextvars.Context, Callable[[], Any]]


class Threads:
    """At most ``most`` daemon threads, started as they are needed."""

    def __init__(self, most: int, name: str) -> None:
        """Start nothing yet."""
        self._most = most
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._started = 0
        self._busy = 0

    @property
    def busy(self) -> int:
        """Return how many calls have not come to an end, whether or not anybody still waits for them."""
        return self._busy

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Result]:
        """Run a call in a thread, in a copy of this context. The future holds (True, value) or (False, error)."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        self._busy += 1
        if self._started < min(self._busy, self._most):
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        self._jobs.put((loop, answer, contextvars.copy_context(), call))
        return answer

    def close(self) -> None:
        """Let the threads end when they have nothing to do; one that hangs is left behind."""
        for _ in range(self._started):
            self._jobs.put(None)
        self._started = 0

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, answer, context, call = job
            result = _attempt(context, call)
            try:
                loop.call_soon_threadsafe(self._deliver, answer, result)
            except RuntimeError:  # the loop was closed while we worked: nobody waits for this any more
                return

    def _deliver(self, answer: asyncio.Future[Result], result: Result) -> None:
        # Counted here and not when the future is done: that may be cancelled while its thread is still occupied.
        self._busy -= 1
        if not answer.done():
            answer.set_result(result)


def _attempt(context: contextvars.Context, call: Callable[[], Any]) -> Result:
    try:
        return True, context.run(call)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its answer
        return False, error
