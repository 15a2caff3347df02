"""Sessions that are lent to handlers: everything a `Session` does, but the end of its transaction is not theirs.

A handler that committed by itself would record its message as handled before it has handled it, one that rolled back
would go on in a transaction without the record. Both would be noticed when it is too late, so both are refused at once.

Rule: whoever lends a session ends it. A handler that wants to undo a part uses ``begin_nested()``; one that wants
nothing kept raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Never, Protocol, TypeAlias, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from carom.errors import ConfigurationError
from carom.stores import failures
from carom.stores.failures import translated
from carom.stores.threads import Threads

Run: TypeAlias = Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]


class Admit(Protocol):
    """Records arrivals on a connection and tells of each whether it is new."""

    def __call__(self, connection: Connection, listener: str, arrivals: Sequence[tuple[str, int]]) -> Sequence[bool]:
        """Do it."""


class LentSession(Session):
    """A session in the hands of a handler."""

    def commit(self) -> Never:
        """Refuse: the transaction is committed when the handler has returned."""
        raise _refused("commit")

    def rollback(self) -> Never:
        """Refuse: the transaction is rolled back when the handler raises."""
        raise _refused("rollback")

    def close(self) -> Never:
        """Refuse: the session is closed when the handler has ended."""
        raise _refused("close")

    def reset(self) -> Never:
        """Refuse, as with `close`."""
        raise _refused("reset")

    def invalidate(self) -> Never:
        """Refuse, as with `close`."""
        raise _refused("invalidate")

    def commit_loan(self) -> None:
        """Commit; for whoever has lent it."""
        super().commit()

    def close_loan(self) -> None:
        """Roll back what was not committed, and close; for whoever has lent it."""
        super().close()


def _refused(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"a handler called {what}() on the session it was lent, whose transaction also records the message: it is "
        "committed when the handler returns and rolled back when it raises. To undo a part use begin_nested()"
    )


class Loan(AbstractAsyncContextManager["Loan"]):
    """One transaction in which a handler works, for as long as the context lasts. Implements `carom.ports.Unit`."""

    def __init__(self, lent: Session | AsyncSession, own: LentSession, run: Run, admit: Admit, where: str) -> None:
        """Begin when something is done. ``lent`` is what the handler is given, ``run`` where the session is used."""
        self._lent = lent
        self._own = own
        self._run = run
        self._admit = admit
        self._where = where
        self._connection: Connection | None = None
        self._is_closed = False

    @property
    def session(self) -> Session | AsyncSession:
        """Return the session that the handler is given."""
        return self._lent

    @property
    def lost(self) -> bool:
        """Tell whether the connection broke while the session was used."""
        return self._connection is not None and self._connection.invalidated

    async def admit(self, listener: str, arrivals: Sequence[tuple[str, int]]) -> Sequence[bool]:
        """Record (message id, attempt) for a listener; tell of each whether it is new and is to be handled."""

        def admit() -> Sequence[bool]:
            self._connection = self._own.connection()
            return self._admit(self._connection, listener, arrivals)

        with translated("admitting messages", self._where):
            found: Sequence[bool] = await self._run(admit)
            return found

    async def commit(self) -> None:
        """Make it so, and close."""
        try:
            await self._run(self._commit)
        except Exception as error:
            if failures.is_absence(error):
                raise failures.translation(error, "committing", self._where) from error
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Roll back, unless it was committed."""
        if not self._is_closed:
            self._is_closed = True
            await _to_the_end(self._run(self._own.close_loan))

    def _commit(self) -> None:
        self._own.commit_loan()
        self._is_closed = True
        self._own.close_loan()


def waiting_loan(engine: AsyncEngine, admit: Admit, where: str) -> Loan:
    """Lend an `AsyncSession` to a coroutine."""
    lent = AsyncSession(engine, sync_session_class=LentSession, expire_on_commit=False)
    return Loan(lent, cast("LentSession", lent.sync_session), lambda work: lent.run_sync(_calling(work)), admit, where)


def thread_loan(engine: Engine, admit: Admit, where: str, threads: Threads) -> Loan:
    """Lend a `Session` to a handler in a thread; it is used by one thread at a time."""
    own = LentSession(engine, expire_on_commit=False)
    return Loan(own, own, threads.run, admit, where)


def _calling(work: Callable[[], Any]) -> Callable[[Session], Any]:
    return lambda _session: work()


async def _to_the_end(work: Coroutine[Any, Any, Any]) -> Any:
    """See something end even when whoever waits is cancelled: a session has one user."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
