"""The harness: an app as it is, on an embedded broker, a database of its own and virtual time.

    async with Harness(app) as h:
        await h.publish("order.created", {"id": 1})
        await h.advance("30m")                      # milliseconds of real time
        assert h.dead("billing.charge") == ()

An app with a database relays what it emits, here as everywhere:

    async with Harness(app, tables=Model.metadata) as h:
        async with h.transaction() as session:      # commits; then everything that follows has happened
            session.add(Order(id=1))
            app.emit(session, "order.created", {"id": 1}, delay="10m")
        assert not h.emitted("order.created")
        await h.advance("10m")
        assert len(h.handled("billing.charge")) == 1

Rule: nothing of the app is replaced but the broker's address, the database's and the clock. What passes here goes the
same way on RabbitMQ and PostgreSQL, because the embedded broker and SQLite pass the same contracts.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncSession

from carom import adapters
from carom.brokers.embedded.broker import MemoryBroker
from carom.core.durations import Duration, milliseconds
from carom.core.effects import PublishResult
from carom.core.message import Headers, Message
from carom.core.routing import NO_HEADERS, matches, router
from carom.core.topology import DEFAULT_EXCHANGE
from carom.core.wire import Address
from carom.errors import ConfigurationError
from carom.ports import Database, Store
from carom.runtime import events, settings
from carom.runtime.app import App
from carom.runtime.clock import RealClock
from carom.runtime.publisher import Emit
from carom.runtime.relay import Pace
from carom.testing.clock import VirtualClock

TURNS = 12
"""How often the event loop goes round without anything happening before it counts as quiet."""
BREATH = 0.001
_HOUR_MS = 3_600_000
VIRTUAL = Pace(release_ms=0, poll_ms=_HOUR_MS, ttl_ms=24 * _HOUR_MS, stand_by_ms=_HOUR_MS, prune_ms=_HOUR_MS)
"""A relay alone on virtual time is woken by every commit and knows when the next row is due: it need not look."""
_MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it


class Harness:
    """Runs one app. Time stands still except in `advance`."""

    def __init__(
        self,
        app: App,
        *,
        database: object = None,
        tables: MetaData | Sequence[MetaData] = (),
        patience: Duration = "2s",
    ) -> None:
        """Start nothing yet.

        An app with a database is given an empty SQLite, on virtual time and gone afterwards, in which ``tables`` are
        made: the handlers' own. ``database`` is another one to use instead, as `App` takes it; the time there is
        real, so that what is emitted with a delay is not hurried by `advance`, and nothing in it is removed.

        ``patience`` is how long, in real time, a handler may go without doing anything before the harness lets
        virtual time go on without it. Only a handler that hangs costs it.
        """
        self.app = app
        self.clock: VirtualClock = VirtualClock()
        self.broker: MemoryBroker = MemoryBroker(self.clock, app.tell)
        self.events: list[object] = []
        self._patience = milliseconds(patience) / 1000
        self._hanging = 0
        self._database = database
        self._tables = [tables] if isinstance(tables, MetaData) else list(tables)
        self._folder: str | None = None
        self.store: Store | None = None

    async def __aenter__(self) -> Self:
        """Start the app."""
        self.app.observe(self._note)
        try:
            store, pace = self._stored()
            if self._tables:
                await self._make_tables()
            await self.app.start(broker=self.broker, clock=self.clock, store=store, pace=pace)
            await self.settle()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the app at once; what still runs is interrupted."""
        try:
            await self.app.stop(grace=0)
        finally:
            self.app.unobserve(self._note)
            if self.store is not None:
                await self.store.close()  # also of an app that did not come to start
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    # -- acting --------------------------------------------------------------------------------------------

    async def publish(
        self,
        routing_key: str,
        payload: Any = None,
        *,
        delay: Duration | None = None,
        headers: Headers | None = None,
        correlation_id: str | None = None,
    ) -> Message:
        """Publish as the app does, and wait until everything that follows at once has happened."""
        message = await self.app.publish(
            routing_key, payload, delay=delay, headers=headers, correlation_id=correlation_id
        )
        await self.settle()
        return message

    async def publish_many(self, items: Sequence[Emit | tuple[Any, ...]]) -> list[Message]:
        """Publish as the app does, and wait until everything that follows at once has happened."""
        messages = await self.app.publish_many(items)
        await self.settle()
        return messages

    async def put(self, message: Message) -> PublishResult:
        """Publish a message exactly as it is given, as somebody else on the broker would; return what came of it."""
        (result,) = await self.broker.publish((message,))
        await self.settle()
        return result

    def session(self) -> AsyncSession:
        """Return a session on the database of the app, for whatever a test wants to read or write there."""
        return AsyncSession(self._engine(), expire_on_commit=False)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        """Begin a transaction on the database of the app; commit it, and wait until all that follows has happened."""
        async with self.session() as session, session.begin():
            yield session
        await self.settle()

    async def advance(self, duration: Duration) -> None:
        """Let virtual time pass. Whatever is due on the way happens in its order, at its time."""
        until_ms = self.clock.now_ms() + milliseconds(duration)
        await self.settle()
        while self.clock.step(until_ms):
            await self.settle()
        self.clock.advance_to(until_ms)
        await self.settle()

    async def settle(self) -> None:
        """Wait until nothing more happens without time passing: every handler has ended, or hangs."""
        seen: tuple[int, ...] = ()
        quiet = 0
        deadline = 0.0
        while True:
            await asyncio.sleep(0 if quiet < TURNS else BREATH)
            rests = self.app.relay is None or self.app.relay.idle
            now = (len(self.events), self.app.busy, self._running(), int(self.broker.idle), int(rests))
            quiet += 1
            if now != seen:
                seen, quiet, deadline = now, 0, time.monotonic() + self._patience
            elif quiet >= TURNS and self.broker.idle and rests and self._running() <= self._hanging:
                self._hanging = self._running()
                return
            elif time.monotonic() > deadline:
                self._hanging = self._running()
                if not (self.broker.idle and rests):  # somebody changed the engine, or holds a lock of the database
                    return

    # -- asking --------------------------------------------------------------------------------------------

    def handled(self, queue: str) -> tuple[Message, ...]:
        """Return the messages that a queue's handler has finished, in their order."""
        return tuple(one.message for one in self._of(events.Handled, queue))

    def attempts(self, queue: str) -> tuple[Message, ...]:
        """Return the messages that were handed to a queue's handler, once for every attempt."""
        return tuple(one.message for one in self._of(events.Received, queue))

    def discarded(self, queue: str) -> tuple[Message, ...]:
        """Return the messages that a queue's handler discarded."""
        return tuple(one.message for one in self._of(events.Discarded, queue))

    def dead(self, queue: str) -> tuple[Message, ...]:
        """Return the dead letters of a queue, as they are on the broker."""
        return self.broker.engine.contents(self._destination(self.app.layout.dead_address(queue)))

    def emitted(self, key: str) -> tuple[Message, ...]:
        """Return the messages that the app published or relayed, confirmed; the key may be a topic pattern."""
        found: list[Message] = []
        for event in self.events:
            if isinstance(event, events.Published):
                found.append(event.message)
            elif isinstance(event, events.Relayed):
                found += event.messages
        return tuple(message for message in found if matches("topic", key, message.routing_key))

    def waiting(self) -> tuple[Message, ...]:
        """Return the messages that wait for their next attempt; the routing key says for which queue."""
        return tuple(message for name in self._waits() for message in self.broker.engine.contents(name))

    def ready(self, queue: str) -> tuple[Message, ...]:
        """Return the messages that are in a queue and in nobody's hands."""
        return self.broker.engine.contents(queue)

    def _waits(self) -> Iterator[str]:
        """Yield the queues whose messages leave them by themselves: after a time of theirs, or back to a listener."""
        topology, listened = self.app.topology, {one.queue for one in self.app.listeners}
        find = router(topology)
        for queue in topology.queues:
            exchange, key = queue.dead_letter_exchange, queue.dead_letter_key or ""
            back = exchange is not None and listened & set(find(exchange, key, NO_HEADERS))
            if exchange is not None and (queue.ttl_ms is not None or back):
                yield queue.name

    def _of(self, kind: type[events.Delivered], queue: str) -> list[events.Delivered]:
        if queue not in {one.queue for one in self.app.listeners}:
            raise ConfigurationError(f"the app has no listener on queue {queue!r}")
        return [event for event in self.events if isinstance(event, kind) and event.queue == queue]

    def _destination(self, address: Address) -> str:
        if address.exchange == DEFAULT_EXCHANGE and self.app.topology.queue(address.routing_key):
            return address.routing_key
        for binding in self.app.topology.bindings:
            if (binding.source, binding.key) == (address.exchange, address.routing_key):
                return binding.target
        raise ConfigurationError(f"the app has no listener on queue {address.routing_key!r}")

    def _stored(self) -> tuple[Store | None, Pace]:
        """Return the store that replaces the app's own, and how to relay what is in it."""
        asked = self.app.database
        if asked is None:
            if self._database is not None or self._tables:
                raise ConfigurationError(f"the app {self.app.name!r} has no database: say App(…, database=…)")
            return None, VIRTUAL
        if self._database is not None:
            self.store = adapters.store(settings.database(self._database, asked) or asked)
            return self.store, Pace(clock=RealClock())
        self._folder = tempfile.mkdtemp(prefix="carom-harness-", dir=_MEMORY if _MEMORY.is_dir() else None)
        own = Database(f"sqlite+aiosqlite:///{self._folder}/harness.db")
        # SQLite knows no schemas, and there is only what is made here.
        virtual = replace(asked, url=own.url, schema=None, tables="apply")
        self.store = adapters.store(virtual, self.clock.now_ms)
        return self.store, VIRTUAL

    async def _make_tables(self) -> None:
        async with self._engine().begin() as connection:
            for metadata in self._tables:
                await connection.run_sync(metadata.create_all)

    def _engine(self) -> Any:
        if self.store is None:
            raise ConfigurationError(f"the app {self.app.name!r} has no database, or the harness is not started")
        return self.store.engines.asynchronous  # type: ignore[attr-defined]  # our own store has engines

    def _running(self) -> int:
        return sum(one.running for one in self.app.consumers)

    def _note(self, event: object) -> None:
        self.events.append(event)
