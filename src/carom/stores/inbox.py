"""Inbox: what was handled, written in the same transaction as what the handler did.

A row of attempt 0 says that a message was handled; one of attempt n, that its n-th attempt failed and that the copy
which follows from it was published.

Rule: whether something is new is decided by the primary key and nothing else: two transactions cannot both insert it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from sqlalchemy import Connection

from carom.ports import Unit
from carom.stores import failures
from carom.stores.failures import translated
from carom.stores.lending import thread_loan, waiting_loan
from carom.stores.place import Place, driven
from carom.stores.threads import Threads


class SqlInbox:
    """The inbox of one place."""

    def __init__(self, place: Place) -> None:
        """Connect to nothing yet."""
        self._place = place
        self._admission = Admission(place)
        self._threads = Threads()

    def begin(self, *, synchronous: bool) -> AbstractAsyncContextManager[Unit]:
        """Begin a transaction; it is rolled back unless it was committed."""
        engines, where = self._place.engines, self._place.where
        if synchronous:
            return thread_loan(engines.synchronous, self._admission, where, self._threads)
        return waiting_loan(engines.asynchronous, self._admission, where)

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
    """How arrivals are recorded on the connection of a session.

    The statements go to the driver as they are: what SQLAlchemy does for a statement costs as much as running this one.
    """

    def __init__(self, place: Place) -> None:
        """Write the statements."""
        self.place = place
        inbox, now = place.names.inbox, place.dialect.now
        into = f"{inbox} (listener, message_id, attempt, seen_at)"
        failed = (
            f"SELECT 1 FROM {inbox} AS f WHERE f.listener = :listener AND f.message_id = {{id}} "
            "AND f.attempt = {attempt} AND f.attempt > 0"
        )
        self._one = place.dialect.insert(
            into, f"SELECT :listener, :id, 0, {now} WHERE NOT EXISTS ({failed.format(id=':id', attempt=':attempt')})"
        )
        self._many = ""
        if place.dialect.name == "postgresql":
            typed = "CAST(:listener AS text)"
            self._one = self._one.replace(":listener", typed).replace(":id", "CAST(:id AS text)")
            self._one = self._one.replace(":attempt", "CAST(:attempt AS integer)")
            arrived = "unnest(CAST(:ids AS text[]), CAST(:attempts AS integer[])) AS a(id, attempt)"
            query = (
                f"SELECT {typed}, a.id, 0, {now} FROM {arrived} "
                f"WHERE NOT EXISTS ({failed.format(id='a.id', attempt='a.attempt').replace(':listener', typed)})"
            )
            self._many = f"{place.dialect.insert(into, query)} RETURNING message_id"

    def __call__(self, connection: Connection, listener: str, arrivals: Sequence[tuple[str, int]]) -> Sequence[bool]:
        """Record arrivals; tell of each whether it is new.

        They are recorded in the order of their ids, so that two batches cannot wait for each other.
        """
        ids = [identity for identity, _ in arrivals]
        if self._many and len(set(ids)) == len(ids) > 1:
            arrived = sorted(arrivals)
            given: dict[str, object] = {
                "listener": listener,
                "ids": [identity for identity, _ in arrived],
                "attempts": [attempt for _, attempt in arrived],
            }
            new = {found[0] for found in driven(connection, self._many, given)}
            return [identity in new for identity in ids]
        answers = [False] * len(ids)
        for at in sorted(range(len(ids)), key=ids.__getitem__):
            identity, attempt = arrivals[at]
            given = {"listener": listener, "id": identity, "attempt": attempt, **self.place.dialect.given()}
            answers[at] = driven(connection, self._one, given).rowcount == 1
        return answers
