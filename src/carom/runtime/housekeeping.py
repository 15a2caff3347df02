"""Housekeeping: what was kept long enough is deleted, little by little.

Rule: no statement deletes more than a batch, and there is a pause after each, so that nobody who works with the tables
notices. Any number of processes may do it at the same time.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from carom.ports import Clock, Store
from carom.runtime.asking import Asking
from carom.runtime.service import Service

BATCH = 1_000
PAUSE_MS = 50


class Housekeeping:
    """Deletes old rows of one store, every few minutes."""

    def __init__(self, store: Store, clock: Clock, asking: Asking, every_ms: int) -> None:
        """Delete nothing yet, nor at the start: those who start together do not all do it at once."""
        self._every_ms = every_ms
        self._store = store
        self._clock = clock
        self._asking = asking
        self._service = Service("carom:housekeeping", self._keep, clock, failed=lambda _error, _wait_ms: None)

    def start(self) -> None:
        """Begin."""
        self._service.start()

    async def stop(self) -> None:
        """Stop; what was not deleted is deleted by the next."""
        await self._service.stop()

    async def sweep(self) -> int:
        """Delete everything that was kept long enough; return how much that was."""
        return await self._all(self._store.forget_sent) + await self._all(self._store.forget_seen)

    async def _keep(self) -> None:
        while True:
            await self._clock.sleep(int(self._every_ms * (0.5 + random.random() / 2)))  # noqa: S311 - jitter is no secret
            await self.sweep()

    async def _all(self, forget: Callable[[int], Awaitable[int]]) -> int:
        total = 0
        while deleted := await self._asking.ask(lambda: forget(BATCH)):
            total += deleted
            await self._clock.sleep(PAUSE_MS)
        return total
