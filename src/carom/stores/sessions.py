"""Sessions: rows join the unit of work of a `Session`, and are written when it is flushed.

What is added to the session is a `Promise`, an object like any of the user's own: it makes the session dirty, it goes
when the session or a savepoint is rolled back, expunged or closed. When the session is flushed, the promises that are
still in it are taken out and written as rows, with the session's own connection, in the order they were made.

Rule: nothing is written but by a flush of the session, in its transaction; nothing here commits or rolls back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Column, Integer, MetaData, Table, event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction, registry

from carom.core.relaying import Entry
from carom.errors import ConfigurationError
from carom.stores.inserting import Batches, Insertion

if TYPE_CHECKING:
    from sqlalchemy import Connection

_PROMISES, _WRITTEN = "carom.promises", "carom.written"


class Writer:
    """Who writes promises: how rows get into its outbox, and whom to tell when they are committed."""

    def __init__(self, insertion: Insertion, table: Table, committed: Callable[[], None] | None) -> None:
        """Keep them. ``table`` is only what a session with several databases chooses by."""
        self.insertion = insertion
        self.table = table
        self.committed = committed


class Promise:
    """Rows that wait in a session for its next flush."""

    def __init__(self, writer: Writer, batches: Batches) -> None:
        """Keep them."""
        self.writer = writer
        self.batches = batches


registry().map_imperatively(Promise, Table("carom_promise", MetaData(), Column("id", Integer, primary_key=True)))


def add(writer: Writer, session: object, entries: Sequence[Entry]) -> None:
    """Add entries to a session. No I/O. Raises ConfigurationError for what is no session."""
    if not entries:
        return
    plain = _plain(session)
    # What cannot be kept is refused here, where the caller can see it, and not by a flush somewhere.
    promise = Promise(writer, writer.insertion.batches(entries))
    plain.add(promise)
    plain.info.setdefault(_PROMISES, []).append(promise)


def _plain(session: object) -> Session:
    if isinstance(session, Session):
        return session
    if isinstance(session, AsyncSession):
        return session.sync_session
    chosen = getattr(session, "registry", None)  # a scoped session, of either kind
    if callable(chosen):
        return _plain(chosen())
    raise ConfigurationError(
        f"a message is emitted in a Session or AsyncSession of SQLAlchemy's, and this is of type "
        f"{type(session).__name__}; for a connection there are emit_on and emit_on_sync"
    )


@event.listens_for(Session, "before_flush")
def _write(session: Session, _context: object, _instances: object) -> None:
    promises: list[Promise] | None = session.info.pop(_PROMISES, None)
    if not promises:
        return
    for promise in promises:
        if promise not in session.new:
            continue  # rolled back, expunged
        session.expunge(promise)
        connection = _connection(session, promise.writer)
        promise.writer.insertion.execute(connection, promise.batches)
        if promise.writer.committed is not None:
            session.info.setdefault(_WRITTEN, set()).add(promise.writer)


def _connection(session: Session, writer: Writer) -> Connection:
    try:
        return session.connection(bind_arguments={"mapper": Promise, "clause": writer.table})
    except UnboundExecutionError as error:
        raise ConfigurationError(
            "this session has several databases and none for Carom's tables: bind the outbox too, "
            "as in Session(binds={store.tables.outbox: engine, ...})"
        ) from error


@event.listens_for(Session, "after_transaction_end")
def _forget(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.info.pop(_WRITTEN, None)  # rolled back, or told of already


@event.listens_for(Session, "after_commit")
def _tell(session: Session) -> None:
    if session.in_nested_transaction():
        return  # a savepoint: nobody else can see the rows yet
    written: set[Writer] = session.info.get(_WRITTEN, set())
    for writer in written:
        if writer.committed is not None:
            writer.committed()
