"""Threads for what blocks: the transactions of handlers that are not coroutines.

A transaction may wait for another one, in its thread; if that one could get no thread to commit in, both would wait for
ever. So there are as many as are needed at a time, which is bounded by how many messages are handled at a time.

Rule: what was begun is seen to its end, even when whoever waits is cancelled; no thread keeps a process from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """Daemon threads, started when none is idle."""

    def __init__(self) -> None:
        """Start none yet."""
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._started = 0
        self._busy = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Run something in a thread; a session has one user at a time, so this ends when it has ended."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def job() -> None:
            try:
                value = context.run(work)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits
                _say(loop, answer.set_exception, error)
            else:
                _say(loop, answer.set_result, value)

        self._busy += 1
        if self._busy > self._started:
            self._started += 1
            threading.Thread(target=self._work, name=f"carom store {self._started}", daemon=True).start()
        self._jobs.put(job)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            await asyncio.wait([answer])
            answer.exception()  # nobody else will ask for it
            raise
        finally:
            self._busy -= 1

    def close(self) -> None:
        """Let the threads end when they have nothing to do."""
        for _ in range(self._started):
            self._jobs.put(None)
        self._started = 0

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _say(loop: asyncio.AbstractEventLoop, say: Callable[[Any], None], what: object) -> None:
    # A loop that is closed has nobody waiting any more.
    if not loop.is_closed():
        loop.call_soon_threadsafe(say, what)
