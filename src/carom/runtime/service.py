"""Service: something that runs until it is stopped, and comes back by itself when it fails. Written once.

Rule: the waits between failures grow, with full jitter, and are the clock's: virtual in tests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from carom.ports import Clock


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait after the n-th failure in a row: doubling from ``first_ms``, at most ``most_ms``."""

    first_ms: int = 250
    most_ms: int = 30_000

    def wait_ms(self, failures: int, fraction: float) -> int:
        """Return the wait: between half and the whole of the doubled one, so that many do not come at once."""
        whole = min(self.most_ms, self.first_ms * 2 ** min(failures - 1, 30))
        return int(whole * (0.5 + fraction / 2))


class Work(Protocol):
    """What a service does: one round of it. Returning ends the service; raising backs it off."""

    def __call__(self) -> Awaitable[None]:
        """Do it."""


class Service:
    """Runs work in a task of its own, again and again while it fails."""

    def __init__(
        self,
        name: str,
        work: Work,
        clock: Clock,
        *,
        failed: Callable[[BaseException, int], None],
        backoff: Backoff = Backoff(),
    ) -> None:
        """Start nothing yet. ``failed`` hears of every failure, with the wait that follows."""
        self._name = name
        self._work = work
        self._clock = clock
        self._failed = failed
        self._backoff = backoff
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start running; a service that runs already goes on."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        """Stop, and wait until it has."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._work()
            except Exception as error:  # noqa: BLE001 - reported, and tried again: that is what a service is
                failures += 1
                wait_ms = self._backoff.wait_ms(failures, random.random())  # noqa: S311 - jitter is no secret
                self._failed(error, wait_ms)
                await self._clock.sleep(wait_ms)
            else:
                return
