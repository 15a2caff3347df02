"""Leadership: of all who relay the same outbox one leads, and the others stand by.

Rule: who leads knows it from the database, and only for as long as its own clock says that nobody else can have been
told the same. Whatever is written down is written under the lease, and a later one makes that void.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable

from carom.ports import Clock, Lease, Outbox
from carom.runtime.asking import Asking

AWAY = 3
"""Who steps back asks again after so many times what others wait between asking."""
RENEWALS = 4
"""How often a lease is renewed within its time."""


def monotonic_ms() -> int:
    """Return a time that only goes forward, and goes on while the machine is suspended, where the system has one."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000


def holder_name() -> str:
    """Return a name that no other process, and no other relay of this one, has."""
    return f"{socket.gethostname()[:64]}:{os.getpid()}:{os.urandom(6).hex()}"


class Leadership:
    """Asks for the lead, keeps it, and knows when it may be over."""

    def __init__(
        self,
        outbox: Outbox,
        asking: Asking,
        clock: Clock,
        *,
        ttl_ms: int,
        stand_by_ms: int,
        changed: Callable[[Lease | None], None],
        monotonic_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        """Ask for nothing yet. ``changed`` hears of every lease that is won, of None when it is lost."""
        self.holder = holder_name()
        self.lease: Lease | None = None
        self._outbox = outbox
        self._asking = asking
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._stand_by_ms = stand_by_ms
        self._changed = changed
        self._now_ms = monotonic_ms
        self._until_ms = 0
        self._renewed = asyncio.Event()
        self._stepping_back = asyncio.Event()

    @property
    def holds(self) -> bool:
        """Tell whether we lead and nobody else can: what is begun now is ours to begin."""
        return self.lease is not None and self._now_ms() < self._until_ms

    async def won(self) -> None:
        """Wait until we lead, for certain."""
        while not self.holds:
            self._renewed.clear()
            await self._renewed.wait()

    async def run(self) -> None:
        """Ask, for ever."""
        asked_at_ms = 0

        async def lead() -> Lease | None:
            nonlocal asked_at_ms
            asked_at_ms = self._now_ms()
            return await self._outbox.lead(self.holder, self._ttl_ms)

        while True:
            lease = await self._asking.ask(lead)
            if lease is None:
                self.lost()
            else:
                self._until_ms = asked_at_ms + self._ttl_ms
                if lease != self.lease:
                    self.lease = lease
                    self._changed(lease)
                self._renewed.set()
            await self._rest(self._stand_by_ms if lease is None else self._ttl_ms // RENEWALS)
            if self._stepping_back.is_set():
                self._stepping_back.clear()
                await self._asking.ask(self.resign)
                self._changed(None)
                await self._clock.sleep(AWAY * self._stand_by_ms)

    def step_back(self) -> None:
        """Let another lead for a while, if there is one: it may be able to do what we cannot."""
        if self.lease is not None:
            self._stepping_back.set()

    def lost(self) -> None:
        """Lead no more: somebody else does."""
        if self.lease is not None or self._until_ms == 0:
            self._until_ms = -1
            self.lease = None
            self._changed(None)

    async def resign(self) -> None:
        """Let somebody else lead at once."""
        if self.lease is not None:
            await self._outbox.resign(self.lease)
            self.lease = None

    async def _rest(self, wait_ms: int) -> None:
        waits = {
            asyncio.ensure_future(self._clock.sleep(wait_ms)),
            asyncio.ensure_future(self._stepping_back.wait()),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
