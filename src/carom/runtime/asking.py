"""Asking: a question to the database, asked again until it is answered; and what is told about that.

Rule: a database that does not answer ends nothing that runs. It is told once when it is gone and once when it is
back; in between whoever asks waits, longer each time, with jitter.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from carom.errors import StoreError
from carom.ports import Clock
from carom.runtime.presence import Presence
from carom.runtime.service import Backoff

T = TypeVar("T")
PATIENCE = Backoff(250, 5_000)
"""A database that restarts is back within seconds, and who waits for it should be too."""

_log = logging.getLogger("carom.store")


class Asking:
    """Asks one database for several who need it."""

    def __init__(self, presence: Presence, clock: Clock) -> None:
        """Ask nothing yet."""
        self._presence = presence
        self._clock = clock
        self._open = 0

    @property
    def waits(self) -> bool:
        """Tell whether an answer is being waited for, and not for time to pass."""
        return self._open > 0

    @property
    def is_down(self) -> bool:
        """Tell whether the last question was not answered, and is asked again after a while."""
        return self._presence.is_lost

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Return the answer, however long it takes."""
        failures = 0
        while True:
            self._open += 1
            try:
                answer = await question()
            except Exception as error:  # noqa: BLE001 - told, and asked again: nothing may end what runs
                failures += 1
                wait_ms = self._down(error, failures)
            else:
                self._presence.found()
                return answer
            finally:
                self._open -= 1
            await self._clock.sleep(wait_ms)

    async def keep(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something that lasts, such as listening, again whenever it fails, until it returns."""
        failures = 0
        while True:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - told, and done again: nothing may end what runs
                failures += 1
                await self._clock.sleep(self._down(error, failures))
            else:
                return

    def _down(self, error: Exception, failures: int) -> int:
        wait_ms = PATIENCE.wait_ms(failures, random.random())  # noqa: S311 - jitter is no secret
        if not isinstance(error, StoreError):
            _log.error("the database %s was asked, and this came of it", self._presence.database, exc_info=error)
        self._presence.lost(error, wait_ms)
        return wait_ms
