"""Attention: when PostgreSQL is to tell of new rows, and when whoever waits looks by himself.

A transaction that notifies holds a lock of the whole server while it commits, so that such transactions commit one
after the other, each with its own wait for the disk (`docs/outbox.md` has the measurements). So rows are told of only
while somebody says that he is asleep. When many come he says that he is awake, and looks every few milliseconds until
it is quiet again. When nobody is there, nobody is asleep either, and transactions do not pay for a relay that is down.

Rule: between saying "asleep" and sleeping one looks again, several times: a transaction that was under way has not
heard of it, and will not tell.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from carom.errors import StoreError
from carom.stores.place import Place

ASLEEP = "asleep"
"""The name, beside the leader's, under which the table of leases has until when somebody is asleep."""
ASLEEP_MS, AGAIN_SECONDS = 30_000, 10.0
"""For how long one says so, and how often while it is true."""
LOOKS = (0.0, 0.01, 0.04, 0.16, 0.64)
"""When one looks after having said so, in seconds: a transaction is found after about as long as it took."""
CROWD, CROWD_SECONDS = 20, 0.2
"""So many wakes in so short a time are too many."""
TICK_SECONDS = 0.003
QUIET_ROWS, QUIET_SECONDS = 50, 1.0
"""Fewer rows in such a time are few enough to be told of each."""


class Attention:
    """Pays attention to one outbox, for one who waits."""

    def __init__(self, place: Place, wake: Callable[[], None], claimed: Callable[[], int]) -> None:
        """``claimed`` tells how many rows were claimed so far."""
        self._place = place
        self._wake = wake
        self._claimed = claimed
        self._recent: deque[float] = deque(maxlen=CROWD)
        self._crowd = asyncio.Event()

    def notified(self) -> None:
        """Hear that there are rows."""
        self._wake()
        now = time.monotonic()
        self._recent.append(now)
        if len(self._recent) == CROWD and now - self._recent[0] < CROWD_SECONDS:
            self._crowd.set()

    async def pay(self) -> None:
        """Say whether to be told, and look, until cancelled. What the database refuses is tried again."""
        while True:
            try:
                await self._sleep()
                await self._stay_awake()
            except StoreError:
                await asyncio.sleep(AGAIN_SECONDS)

    async def _sleep(self) -> None:
        """Be told of rows, until there are too many to be told of."""
        self._crowd.clear()
        self._recent.clear()
        while True:
            await self._say(ASLEEP_MS)
            asked = time.monotonic()
            for after in (*LOOKS, AGAIN_SECONDS):
                if await self._is_crowded(asked + after - time.monotonic()):
                    return
                if after < AGAIN_SECONDS:
                    self._wake()

    async def _stay_awake(self) -> None:
        """Look by oneself until few rows come."""
        await self._say(0)
        self._crowd.clear()
        claimed, until = self._claimed(), time.monotonic() + QUIET_SECONDS
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._wake()
            if self._crowd.is_set():  # somebody else who waits has said that he is asleep
                await self._say(0)
                self._crowd.clear()
                self._recent.clear()
            if time.monotonic() >= until:
                before, claimed = claimed, self._claimed()
                if claimed - before < QUIET_ROWS:
                    return
                until = time.monotonic() + QUIET_SECONDS

    async def _is_crowded(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._crowd.wait(), max(0.0, seconds))
        except TimeoutError:
            return False
        return True

    async def _say(self, asleep_ms: int) -> None:
        lease, later = self._place.names.lease, self._place.dialect.later(":ms")
        said = (
            f"INSERT INTO {lease} (name, holder, epoch, expires_at) VALUES (:name, '', 0, {later}) "
            "ON CONFLICT (name) DO UPDATE SET expires_at = excluded.expires_at"
        )
        await self._place.run("waiting for rows", said, {"name": ASLEEP, "ms": asleep_ms})
