"""The store on a SQL database: the outbox and the inbox of one place, put together.

Rule: everything that talks to a database is in the modules beside this one; here it is only joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from sqlalchemy import MetaData

from carom.core.relaying import Entry
from carom.ports import Database, Mode
from carom.stores import connections, sessions
from carom.stores.engines import Engines
from carom.stores.inbox import SqlInbox
from carom.stores.inserting import Insertion
from carom.stores.migrations import running
from carom.stores.outbox import SqlOutbox
from carom.stores.place import Place
from carom.stores.tables import make_tables
from carom.stores.watching import Watching


class SqlStore(SqlOutbox, SqlInbox):
    """PostgreSQL, SQLite, MySQL or MariaDB with Carom's tables."""

    def __init__(self, database: Database, now_ms: Callable[[], int] | None = None) -> None:
        """Connect to nothing yet. Raises ConfigurationError."""
        place = Place.of(database, now_ms)
        SqlOutbox.__init__(self, place)
        SqlInbox.__init__(self, place)
        self._watching = Watching(place, self._claimed)
        self._insertion = Insertion(place.dialect, place.names)
        self.tables = make_tables(MetaData(), database.schema, database.prefix)
        """The tables, for a session that chooses its database by them."""
        self._writer = sessions.Writer(self._insertion, self.tables.outbox, self._watching.committed)

    @property
    def engines(self) -> Engines:
        """Return the engines, for whoever opens sessions of his own on the same database."""
        return self._place.engines

    @property
    def where(self) -> str:
        """Return where the database is, for people: no credentials."""
        return self._place.where

    async def open(self, mode: Mode) -> None:
        """Connect and see to the tables. Raises DatabaseUnavailable or SchemaMismatch."""
        await running.see_to(self._place, mode)

    async def close(self) -> None:
        """Disconnect from what was connected to here."""
        self._threads.close()
        await self._place.engines.close()

    def add(self, session: object, entries: Sequence[Entry]) -> None:
        """Add rows to the unit of work of a `Session` or `AsyncSession`. No I/O."""
        sessions.add(self._writer, session, entries)

    async def write(self, connection: object, entries: Sequence[Entry]) -> None:
        """Insert rows through an asynchronous driver's connection; raises ConfigurationError outside a transaction."""
        await connections.write(self._insertion, connection, entries)

    def write_now(self, connection: object, entries: Sequence[Entry]) -> None:
        """Insert rows through a synchronous driver's connection; raises ConfigurationError outside a transaction."""
        connections.write_now(self._insertion, connection, entries)

    def watch(self, wake: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Call ``wake`` whenever rows may have come, where the database can tell."""
        return self._watching.watch(wake)

    async def _wake(self) -> None:
        await self._watching.tell()
