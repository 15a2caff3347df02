"""Watching: waking whoever waits for new rows.

PostgreSQL tells every process, through NOTIFY, while somebody says that he waits to be told, see `attention`. Elsewhere
a commit in this process wakes those that wait in it, and for what others write one has to look.

Rule: waking is a hint and never the only way: whoever waits also looks from time to time. A connection that is lost is
asked for again, for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from threading import Lock
from typing import Any, TypeAlias

from carom.errors import CaromError
from carom.stores.attention import Attention
from carom.stores.failures import translated
from carom.stores.migrations.first import channel
from carom.stores.place import Place

ALIVE_SECONDS, ANSWER_SECONDS = 15.0, 10.0
"""How often a silent connection is asked whether it is there, and how long it has to answer."""
FIRST_SECONDS, MOST_SECONDS = 0.1, 15.0

Hearing: TypeAlias = Callable[[Callable[[], None]], Awaitable[None]]
"""Calls what it is given whenever PostgreSQL tells of rows, until the connection is lost."""
Waker: TypeAlias = tuple[asyncio.AbstractEventLoop, Callable[[], None]]

_LOCK = Lock()
_WAKERS: dict[object, list[Waker]] = {}
"""Who waits in this process, by place."""


class Watching:
    """The waking of one place."""

    def __init__(self, place: Place, claimed: Callable[[], int], always: str = "") -> None:
        """Connect to nothing yet. ``claimed`` tells how many rows were claimed so far.

        ``always`` is the channel of a table of another system's, which tells of every row, whoever sleeps.
        """
        self._place = place
        self._claimed = claimed
        self._always = bool(always)
        self._channel = always or channel(place.names.schema, place.names.prefix)
        url = place.engines.url
        file = url.database or id(place.engines.asynchronous)
        self._key = (url.get_backend_name(), url.host, url.port, file, place.names.outbox)

    @property
    def committed(self) -> Callable[[], None] | None:
        """Return what is to be called after a commit that wrote rows; None where the database itself tells."""
        return None if self._place.dialect.name == "postgresql" else self._wake_all

    @asynccontextmanager
    async def watch(self, wake: Callable[[], None]) -> AsyncIterator[None]:
        """Call ``wake`` whenever rows may have come, until the block ends."""
        if self._place.dialect.name == "postgresql":
            listening = asyncio.get_running_loop().create_task(self._listen(wake), name="carom: waiting for rows")
            try:
                yield
            finally:
                listening.cancel()
                await asyncio.wait([listening])
            return
        waker = (asyncio.get_running_loop(), wake)
        with _LOCK:
            _WAKERS.setdefault(self._key, []).append(waker)
        try:
            yield
        finally:
            with _LOCK:
                _WAKERS[self._key].remove(waker)
                if not _WAKERS[self._key]:
                    del _WAKERS[self._key]

    async def tell(self) -> None:
        """Wake everybody without a new row: something can be published that could not, or nobody leads."""
        if self._place.dialect.name == "postgresql":
            await self._place.run("waking", "SELECT pg_notify(:channel, '')", {"channel": self._channel})
        else:
            self._wake_all()

    def _wake_all(self) -> None:
        with _LOCK:
            wakers = tuple(_WAKERS.get(self._key, ()))
        for loop, wake in wakers:
            with contextlib.suppress(RuntimeError):  # its loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(wake)

    async def _listen(self, wake: Callable[[], None]) -> None:
        failures = 0
        while True:
            try:
                with translated("waiting for rows", self._place.where):
                    async with self._place.engines.asynchronous.connect() as connection:
                        raw: Any = (await connection.get_raw_connection()).driver_connection
                        await connection.run_sync(lambda plain: plain.detach())  # it is not one of the pool any more
                        try:
                            begun = _LISTENING[connection.dialect.driver](raw, self._channel)
                            failures = 0
                            await self._attend(await begun, wake)
                        finally:
                            await raw.close()  # SQLAlchemy has let go of it, and closes not every driver's then
            except (CaromError, TimeoutError):
                failures += 1  # a relay that has lost its database too says so; it also looks by itself
            wait = min(MOST_SECONDS, FIRST_SECONDS * 2 ** min(failures, 10))
            await asyncio.sleep(wait * random.uniform(0.5, 1))  # noqa: S311 - jitter is no secret

    async def _attend(self, hear: Hearing, wake: Callable[[], None]) -> None:
        if self._always:
            wake()  # what came before we listened was told to nobody
            await hear(wake)
            return
        attention = Attention(self._place, wake, self._claimed)
        paying = asyncio.create_task(attention.pay(), name="carom: paying attention")
        try:
            await hear(attention.notified)
        finally:
            paying.cancel()
            await asyncio.wait([paying])


async def _on_asyncpg(connection: Any, channel: str) -> Hearing:
    lost, heard = asyncio.Event(), _Heard()
    connection.add_termination_listener(lambda _: lost.set())
    await connection.add_listener(channel, heard)

    async def hear(notified: Callable[[], None]) -> None:
        heard.notified = notified
        while not lost.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), ALIVE_SECONDS)
            if not lost.is_set():
                await asyncio.wait_for(connection.execute("SELECT 1"), ANSWER_SECONDS)

    return hear


async def _on_psycopg(connection: Any, channel: str) -> Hearing:
    await connection.set_autocommit(True)
    await connection.execute(f'LISTEN "{channel}"')

    async def hear(notified: Callable[[], None]) -> None:
        while True:
            async for _ in connection.notifies(timeout=ALIVE_SECONDS):
                notified()
            await asyncio.wait_for(connection.execute("SELECT 1"), ANSWER_SECONDS)

    return hear


class _Heard:
    """What asyncpg calls; before somebody hears, nobody has been told yet that there is something to hear."""

    notified: Callable[[], None] | None = None

    def __call__(self, *_: object) -> None:
        if self.notified is not None:
            self.notified()


_LISTENING: dict[str, Callable[[Any, str], Awaitable[Hearing]]] = {"asyncpg": _on_asyncpg, "psycopg": _on_psycopg}
