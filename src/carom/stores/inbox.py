"""Inbox: what was handled, written in the same transaction as what the handler did.

A row of attempt 0 says that a message was handled; one of attempt n, that its n-th attempt failed and that the copy
which follows from it was published.

Rule: whether something is new is decided by the primary key and nothing else: two transactions cannot both insert it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, cast

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from carom.ports import Unit
from carom.stores import failures
from carom.stores.failures import translated
from carom.stores.lent import LentSession
from carom.stores.place import Place

T = TypeVar("T")


class SqlInbox:
    """The inbox of one place."""

    def __init__(self, place: Place) -> None:
        """Connect to nothing yet."""
        self._place = place
        self._admission = Admission(place)

    def begin(self, *, synchronous: bool) -> AbstractAsyncContextManager[Unit]:
        """Begin a transaction; it is rolled back unless it was committed."""
        return self._begin_in_thread() if synchronous else self._begin()

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[Unit]:
        session = AsyncSession(self._place.engines.asynchronous, sync_session_class=LentSession, expire_on_commit=False)
        unit = WaitingUnit(session, self._admission)
        try:
            yield unit
        finally:
            if unit.committed:  # nothing is waited for
                await session.run_sync(_close)
            else:
                await asyncio.shield(asyncio.ensure_future(session.run_sync(_close)))

    @asynccontextmanager
    async def _begin_in_thread(self) -> AsyncIterator[Unit]:
        session = LentSession(self._place.engines.synchronous, expire_on_commit=False)
        try:
            yield ThreadUnit(session, self._admission)
        finally:
            await _to_the_end(session.close_loan)

    @asynccontextmanager
    async def failing(self, listener: str, message_id: str, attempt: int, *, last: bool) -> AsyncIterator[bool]:
        """Hold a message while the copy that follows from a failed attempt is published, then record the failure."""
        inbox, doing, where = self._place.names.inbox, "recording a failure", self._place.where
        given = {"listener": listener, "id": message_id, "attempt": attempt}
        record = self._place.dialect.insert(
            f"{inbox} (listener, message_id, attempt, seen_at)",
            f"SELECT :listener, :id, :attempt, {self._place.dialect.now} WHERE NOT EXISTS (SELECT 1 FROM {inbox} "
            "WHERE listener = :listener AND message_id = :id AND attempt = 0)",
        )
        async with self._place.engines.asynchronous.connect() as connection:
            with translated(doing, where):
                is_first = (await self._place.execute(connection, record, given)).rowcount == 1
            yield is_first
            if not is_first:
                return
            with translated(doing, where):
                if last:
                    forgotten = f"DELETE FROM {inbox} WHERE listener = :listener AND message_id = :id AND attempt > 0"
                    await self._place.execute(connection, forgotten, given)
                await connection.commit()

    def is_passing(self, error: BaseException) -> bool:
        """Tell whether a transaction failed for being beside others, a deadlock say, and may just be run again."""
        return failures.is_passing(error)

    def is_absence(self, error: BaseException) -> bool:
        """Tell whether the database was not there: not reached, restarting, or the connection was lost."""
        return failures.is_absence(error)

    async def forget_seen(self, limit: int) -> int:
        """Delete some of what was kept long enough; return how many."""
        inbox = self._place.names.inbox
        before = self._place.dialect.later(":keep")
        key = "listener, message_id, attempt"
        old = f"SELECT {key} FROM {inbox} WHERE seen_at <= {before} ORDER BY seen_at LIMIT :limit"
        sql = f"DELETE FROM {inbox} WHERE ({key}) IN (SELECT {key} FROM ({old}) AS some_rows)"
        given = {"keep": -self._place.keep_seen_ms, "limit": limit}
        return (await self._place.run("forgetting what was seen", sql, given)).rowcount


class Admission:
    """How arrivals are recorded on the connection of a session."""

    def __init__(self, place: Place) -> None:
        """Write the statements."""
        self.place = place
        inbox, now = place.names.inbox, place.dialect.now
        into = f"{inbox} (listener, message_id, attempt, seen_at)"
        failed = (
            f"SELECT 1 FROM {inbox} AS f WHERE f.listener = :listener AND f.message_id = {{id}} "
            "AND f.attempt = {attempt} AND f.attempt > 0"
        )
        self.one = place.dialect.insert(
            into, f"SELECT :listener, :id, 0, {now} WHERE NOT EXISTS ({failed.format(id=':id', attempt=':attempt')})"
        )
        self.many = ""
        if place.dialect.name == "postgresql":
            arrived = "unnest(CAST(:ids AS text[]), CAST(:attempts AS integer[])) AS a(id, attempt)"
            self.many = (
                place.dialect.insert(
                    into,
                    f"SELECT :listener, a.id, 0, {now} FROM {arrived} "
                    f"WHERE NOT EXISTS ({failed.format(id='a.id', attempt='a.attempt')})",
                )
                + " RETURNING message_id"
            )

    def __call__(self, connection: Connection, listener: str, arrivals: Sequence[tuple[str, int]]) -> Sequence[bool]:
        """Record arrivals; tell of each whether it is new.

        They are recorded in the order of their ids, so that two batches cannot wait for each other.
        """
        ids = [identity for identity, _ in arrivals]
        if self.many and len(set(ids)) == len(ids) > 1:
            arrived = sorted(arrivals)
            given: dict[str, Any] = {
                "listener": listener,
                "ids": [identity for identity, _ in arrived],
                "attempts": [attempt for _, attempt in arrived],
            }
            new = {found[0] for found in connection.execute(self.place.clause(self.many, {}), given)}
            return [identity in new for identity in ids]
        answers = [False] * len(ids)
        for at in sorted(range(len(ids)), key=ids.__getitem__):
            identity, attempt = arrivals[at]
            given = {"listener": listener, "id": identity, "attempt": attempt, **self.place.dialect.given()}
            answers[at] = connection.execute(self.place.clause(self.one, {}), given).rowcount == 1
        return answers


class WaitingUnit:
    """A transaction with an `AsyncSession`."""

    def __init__(self, session: AsyncSession, admission: Admission) -> None:
        """Begin when something is done."""
        self.session = session
        self.committed = False
        self._admission = admission
        self._connection: Connection | None = None

    @property
    def lost(self) -> bool:
        """Tell whether the connection broke while the session was used."""
        return self._connection is not None and self._connection.invalidated

    async def admit(self, listener: str, arrivals: Sequence[tuple[str, int]]) -> Sequence[bool]:
        """Record (message id, attempt) for a listener; tell of each whether it is new and is to be handled."""

        def admit(session: Session) -> Sequence[bool]:
            self._connection = session.connection()
            return self._admission(self._connection, listener, arrivals)

        with translated("admitting messages", self._admission.place.where):
            return await self.session.run_sync(admit)

    async def commit(self) -> None:
        """Make it so."""
        try:
            await self.session.run_sync(_commit)
        except Exception as error:
            if failures.is_absence(error):
                raise failures.translation(error, "committing", self._admission.place.where) from error
            raise
        self.committed = True


class ThreadUnit:
    """A transaction with a `Session`, which is used by one thread at a time."""

    def __init__(self, session: LentSession, admission: Admission) -> None:
        """Begin when something is done."""
        self.session = session
        self._admission = admission
        self._connection: Connection | None = None

    @property
    def lost(self) -> bool:
        """Tell whether the connection broke while the session was used."""
        return self._connection is not None and self._connection.invalidated

    async def admit(self, listener: str, arrivals: Sequence[tuple[str, int]]) -> Sequence[bool]:
        """Record (message id, attempt) for a listener; tell of each whether it is new and is to be handled."""

        def admit() -> Sequence[bool]:
            with translated("admitting messages", self._admission.place.where):
                self._connection = self.session.connection()
                return self._admission(self._connection, listener, arrivals)

        return await _to_the_end(admit)

    async def commit(self) -> None:
        """Make it so."""
        try:
            await _to_the_end(self.session.commit_loan)
        except Exception as error:
            if failures.is_absence(error):
                raise failures.translation(error, "committing", self._admission.place.where) from error
            raise


def _commit(session: Session) -> None:
    cast("LentSession", session).commit_loan()


def _close(session: Session) -> None:
    cast("LentSession", session).close_loan()


async def _to_the_end(work: Callable[[], T]) -> T:
    """Run something in a thread, and see it end even when whoever waits is cancelled: a session has one user."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
