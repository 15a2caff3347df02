"""Place: where the tables are and how to reach them: the engines, the names, and statements run through them.

Rule: a statement of ours is run on its own, or in a transaction that is seen whole here; no connection is kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, CursorResult, TextClause, bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection

from carom.core.durations import milliseconds
from carom.ports import Database
from carom.stores.dialects import Dialect, Names, dialect, rendered
from carom.stores.engines import BEGIN, Engines
from carom.stores.failures import translated

PRUNE = 1_000
"""How many rows are deleted, or let go, by one statement."""


@dataclass(frozen=True)
class Place:
    """One database, and how Carom uses it."""

    engines: Engines
    dialect: Dialect
    names: Names
    keep_sent_ms: int
    keep_seen_ms: int

    @classmethod
    def of(cls, database: Database, clock: Callable[[], int] | None) -> Place:
        """Read how a database is to be used. Raises ConfigurationError."""
        engines = Engines(database.url)
        spoken = dialect(engines.asynchronous.dialect.name, clock)
        names = Names(spoken, database.schema, database.prefix)
        return cls(engines, spoken, names, milliseconds(database.keep_sent), milliseconds(database.keep_seen))

    @property
    def where(self) -> str:
        """Return where the database is, for people."""
        return self.engines.where

    async def run(self, doing: str, sql: str, given: Mapping[str, object] | None = None) -> CursorResult[Any]:
        """Run one statement that commits by itself."""
        with translated(doing, self.where):
            async with self._committing() as connection:
                return await self.execute(connection, sql, given)

    @asynccontextmanager
    async def transaction(self, doing: str) -> AsyncIterator[AsyncConnection]:
        """Begin a transaction; it is committed when the block ends well. Errors inside are the database's."""
        with translated(doing, self.where):
            async with self.engines.asynchronous.begin() as connection:
                yield connection

    async def execute(
        self, connection: AsyncConnection, sql: str, given: Mapping[str, object] | Sequence[Mapping[str, object]] | None
    ) -> CursorResult[Any]:
        """Run a statement on a connection."""
        if given is None or isinstance(given, Mapping):
            parameters: Any = {**(given or {}), **self.dialect.given()}
            return await connection.execute(self.clause(sql, parameters), parameters)
        clock = self.dialect.given()
        return await connection.execute(_clause(sql, ()), [{**one, **clock} for one in given])

    def clause(self, sql: str, given: Mapping[str, object]) -> TextClause:
        """Return a statement for SQLAlchemy; on MySQL it writes lists out."""
        if self.dialect.name != "mysql":
            return _clause(sql, ())
        return _clause(sql, tuple(name for name, value in given.items() if isinstance(value, list)))

    @asynccontextmanager
    async def _committing(self) -> AsyncIterator[AsyncConnection]:
        async with self.engines.asynchronous.connect() as connection:
            if self.dialect.name == "sqlite":
                await connection.execution_options(**{BEGIN: ""})
                yield connection
                await connection.commit()
            else:
                yield await connection.execution_options(isolation_level="AUTOCOMMIT")


@lru_cache(maxsize=512)
def _clause(sql: str, lists: tuple[str, ...]) -> TextClause:
    return text(sql).bindparams(*(bindparam(name, expanding=True) for name in lists))


def driven(connection: Connection, sql: str, given: Mapping[str, object]) -> CursorResult[Any]:
    """Run a statement as the driver takes it, without SQLAlchemy looking at it; ours, so it needs no looking at."""
    style = _STYLES.get(connection.dialect.paramstyle, "%s")
    statement, names = rendered(sql, style)
    if style == ":":
        return connection.exec_driver_sql(statement, dict(given))
    return connection.exec_driver_sql(statement, tuple(given[name] for name in names))


_STYLES = {"numeric_dollar": "$1", "qmark": ":", "named": ":"}
