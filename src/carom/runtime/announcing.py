"""Announcing: publishing straight to the broker, and emitting into the caller's own transaction.

Rule: an emit does no I/O of its own, commits nothing and begins nothing; what becomes of it is what becomes of the
caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from carom.core.durations import Duration, milliseconds
from carom.core.message import NAME_LIMIT, Headers, Message
from carom.core.relaying import Entry
from carom.errors import ConfigurationError
from carom.ports import Store
from carom.runtime.publisher import Emit, Publisher, emits, without_ours


class Announcing:
    """The part of an `App` that announces."""

    _publisher: Publisher

    @property
    def store(self) -> Store:
        """Return the database as Carom uses it. Raises ConfigurationError in an app that has none."""
        raise NotImplementedError

    def _addressed(self, message: Message, delay: Duration | None) -> Message:
        raise NotImplementedError

    # -- publishing ----------------------------------------------------------------------------------------

    async def publish(
        self,
        routing_key: str,
        payload: Any = None,
        *,
        delay: Duration | None = None,
        headers: Headers | None = None,
        correlation_id: str | None = None,
    ) -> Message:
        """Publish a message and return it once the broker has confirmed it.

        Raises Unroutable when no queue is bound for it, NotConfirmed when it was refused or nobody knows, and
        BrokerUnavailable when there is no connection. With a ``delay`` it waits on the broker first, at least so
        long, and goes on from there as soon as an app with these ``delays`` runs.
        """
        message = self._made(Emit(routing_key, payload, headers, correlation_id))
        await self._publisher.publish((self._addressed(message, delay),))
        return message

    async def publish_many(self, items: Iterable[Emit | tuple[Any, ...]]) -> list[Message]:
        """Publish many messages, pipelined; returns them once all are confirmed.

        What was not is raised: its own error, or a group of them. The others are published all the same.
        """
        said = emits(items)
        for one in said:
            if one.key is not None or one.at is not None:
                raise ConfigurationError(
                    "key= and at= are for what is emitted in a transaction: the broker itself knows neither. "
                    "Use app.emit_many(session, …), or delay= here"
                )
        messages = [self._made(item) for item in said]
        await self._publisher.publish(
            [self._addressed(message, item.delay) for message, item in zip(messages, said, strict=True)]
        )
        return messages

    async def send(self, messages: Iterable[Message]) -> None:
        """Publish messages made elsewhere, with their own address, id and headers. Raises as `publish_many` does."""
        await self._publisher.publish([self._publisher.ready(message) for message in messages])

    # -- emitting ------------------------------------------------------------------------------------------

    def emit(
        self,
        session: object,
        routing_key: str,
        payload: Any = None,
        *,
        key: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        headers: Headers | None = None,
        correlation_id: str | None = None,
    ) -> Message:
        """Announce a message in the transaction of a `Session` or `AsyncSession`: a plain call, no I/O.

        A relay publishes it after the commit, at least once; after a rollback, be it of a savepoint, it never was.
        Messages of one ``key`` leave in the order of their commits. ``delay`` and ``at`` hold it in the table until
        then, by the database's clock. Raises ConfigurationError.
        """
        entry = self._entry(Emit(routing_key, payload, headers, correlation_id, delay, key, at))
        self.store.add(session, (entry,))
        return entry.message

    def emit_many(self, session: object, items: Iterable[Emit | tuple[Any, ...]]) -> list[Message]:
        """Announce many messages in the transaction of a `Session` or `AsyncSession`: a plain call, no I/O."""
        entries = self._entries(items)
        self.store.add(session, entries)
        return [entry.message for entry in entries]

    async def emit_on(
        self,
        connection: object,
        routing_key: str,
        payload: Any = None,
        *,
        key: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        headers: Headers | None = None,
        correlation_id: str | None = None,
    ) -> Message:
        """Announce a message in the open transaction of an asyncpg or psycopg connection, by inserting a row.

        Raises ConfigurationError when the connection is in no transaction: the message would be tied to nothing.
        """
        entry = self._entry(Emit(routing_key, payload, headers, correlation_id, delay, key, at))
        await self.store.write(connection, (entry,))
        return entry.message

    def emit_on_sync(
        self,
        connection: object,
        routing_key: str,
        payload: Any = None,
        *,
        key: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        headers: Headers | None = None,
        correlation_id: str | None = None,
    ) -> Message:
        """Announce a message in the open transaction of a psycopg, sqlite3 or Django connection, by inserting a row.

        Raises ConfigurationError when the connection is in no transaction: the message would be tied to nothing.
        """
        entry = self._entry(Emit(routing_key, payload, headers, correlation_id, delay, key, at))
        self.store.write_now(connection, (entry,))
        return entry.message

    async def emit_many_on(self, connection: object, items: Iterable[Emit | tuple[Any, ...]]) -> list[Message]:
        """Announce many messages in the open transaction of an asyncpg or psycopg connection."""
        entries = self._entries(items)
        await self.store.write(connection, entries)
        return [entry.message for entry in entries]

    # -- inside --------------------------------------------------------------------------------------------

    def _made(self, item: Emit) -> Message:
        return self._publisher.message(item.routing_key, item.payload, without_ours(item.headers), item.correlation_id)

    def _entries(self, items: Iterable[Emit | tuple[Any, ...]]) -> Sequence[Entry]:
        return [self._entry(item) for item in emits(items)]

    def _entry(self, item: Emit) -> Entry:
        message = self._made(item)
        if item.key is None and item.delay is None and item.at is None:
            return Entry(message)
        if item.delay is not None and item.at is not None:
            raise ConfigurationError(f"message {message.id} has a delay and a time at which it is due: say one of them")
        return Entry(
            message,
            _ordering_key(item.key),
            0 if item.delay is None else milliseconds(item.delay),
            None if item.at is None else _moment(item.at),
        )


def _ordering_key(key: object) -> str:
    if key is None:
        return ""
    if not isinstance(key, str) or not 0 < len(key.encode(errors="replace")) <= NAME_LIMIT:
        raise ConfigurationError(f"key={key!r} is no ordering key: it is text of 1 to {NAME_LIMIT} bytes")
    return key


def _moment(at: object) -> int:
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise ConfigurationError(f"at={at!r} is no time of day everywhere: give a datetime with a time zone")
    return int(at.timestamp() * 1000)
