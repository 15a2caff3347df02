"""Dialects: all that PostgreSQL, SQLite and MySQL (MariaDB too) do differently, as fragments of SQL.

Statements are written once, with parameters as ``:name``. A moment is a ``timestamptz`` on PostgreSQL and whole
milliseconds since 1970 elsewhere; whoever asks gets milliseconds, and whoever waits says how many.

Rule: time is the database's own. Only a clock that a test gives takes its place, and only on SQLite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache

from carom.errors import ConfigurationError

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


@dataclass(frozen=True)
class Dialect:
    """One database's way of saying things. ``clock`` is a test's, where time is not the database's."""

    name: str
    clock: Callable[[], int] | None = None

    @property
    def now(self) -> str:
        """Return the moment at which the statement began."""
        raise NotImplementedError

    def later(self, wait_ms: str) -> str:
        """Return the moment so many milliseconds from now; unknown when they are NULL."""
        return f"{self.now} + {wait_ms}"

    def moment(self, ms: str) -> str:
        """Return the moment of a number of milliseconds since 1970."""
        return ms

    def ms(self, moment: str) -> str:
        """Return a moment in milliseconds since 1970."""
        return moment

    def among(self, column: str, name: str) -> str:
        """Return the condition that an integer is among those of a parameter, see `numbers`."""
        raise NotImplementedError

    def apart(self, column: str, name: str) -> str:
        """Return the condition that an integer is not among those of a parameter; keeps the order of a scan."""
        raise NotImplementedError

    def numbers(self, values: Collection[int]) -> object:
        """Return integers as the value of such a parameter."""
        raise NotImplementedError

    def quoted(self, name: str) -> str:
        """Return a name that was checked, quoted, because it may be a word of SQL."""
        return f'"{name}"'

    def insert(self, into: str, rest: str) -> str:
        """Return an INSERT that leaves alone what is there already."""
        return f"INSERT INTO {into} {rest} ON CONFLICT DO NOTHING"

    def given(self) -> dict[str, object]:
        """Return the parameters that `now` takes."""
        return {}


@dataclass(frozen=True)
class PostgreSQL(Dialect):
    """PostgreSQL from 12 on."""

    name: str = "postgresql"

    @property
    def now(self) -> str:
        """Return the beginning of the statement: unlike the clock's time it can be looked up in an index."""
        return "statement_timestamp()"

    def later(self, wait_ms: str) -> str:
        """Add an interval."""
        return f"{self.now} + CAST({wait_ms} AS bigint) * interval '1 millisecond'"

    def moment(self, ms: str) -> str:
        """Make a timestamptz."""
        return f"to_timestamp(CAST({ms} AS bigint) / 1000.0)"

    def ms(self, moment: str) -> str:
        """Round down, as the others do."""
        return f"CAST(floor(EXTRACT(EPOCH FROM {moment}) * 1000) AS bigint)"

    def among(self, column: str, name: str) -> str:
        """Take one array."""
        return f"{column} = ANY(CAST(:{name} AS bigint[]))"

    def apart(self, column: str, name: str) -> str:
        """Take one array, hashed once: ``<> ALL`` would compare each row with each number in a generic plan."""
        return f"{column} NOT IN (SELECT unnest(CAST(:{name} AS bigint[])))"

    def numbers(self, values: Collection[int]) -> object:
        """Return a list, which every driver makes an array of."""
        return list(values)


@dataclass(frozen=True)
class SQLite(Dialect):
    """SQLite from 3.35 on."""

    name: str = "sqlite"

    @property
    def now(self) -> str:
        """Return what the clock of the machine says, or that of a test."""
        if self.clock is not None:
            return "CAST(:carom_now AS INTEGER)"
        return "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"

    def among(self, column: str, name: str) -> str:
        """Read the numbers from JSON."""
        return f"{column} IN (SELECT value FROM json_each(:{name}))"

    def apart(self, column: str, name: str) -> str:
        """Read the numbers from JSON, once."""
        return f"{column} NOT IN (SELECT value FROM json_each(:{name}))"

    def numbers(self, values: Collection[int]) -> object:
        """Return JSON."""
        return json.dumps(list(values))

    def given(self) -> dict[str, object]:
        """Return the time of a test's clock."""
        return {} if self.clock is None else {"carom_now": self.clock()}


@dataclass(frozen=True)
class MySQL(Dialect):
    """MySQL from 8.0 on and MariaDB from 10.6 on."""

    name: str = "mysql"

    @property
    def now(self) -> str:
        """Count from 1970 in UTC, whatever the time zone of the session."""
        return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"

    def among(self, column: str, name: str) -> str:
        """List the numbers, which SQLAlchemy writes out: a subquery would be looked up for every row."""
        return f"{column} IN :{name}"

    def apart(self, column: str, name: str) -> str:
        """List the numbers."""
        return f"{column} NOT IN :{name}"

    def numbers(self, values: Collection[int]) -> object:
        """Return a list that is never empty."""
        return list(values) or [-1]

    def quoted(self, name: str) -> str:
        """Quote with backticks."""
        return f"`{name}`"

    def insert(self, into: str, rest: str) -> str:
        """Say IGNORE."""
        return f"INSERT IGNORE INTO {into} {rest}"


def dialect(name: str, clock: Callable[[], int] | None = None) -> Dialect:
    """Return the dialect of SQLAlchemy's name for a database. Raises ConfigurationError."""
    if clock is not None and name != "sqlite":
        raise ConfigurationError(f"a clock of a test's can only be given to SQLite, and this is {name}")
    if name == "postgresql":
        return PostgreSQL()
    if name == "sqlite":
        return SQLite(clock=clock)
    if name in {"mysql", "mariadb"}:
        return MySQL()
    raise ConfigurationError(f"Carom keeps no tables in {name}: it knows PostgreSQL, SQLite, MySQL and MariaDB")


@dataclass(frozen=True)
class Names:
    """The names of Carom's tables, quoted where they stand in SQL."""

    dialect: Dialect
    schema: str | None = None
    prefix: str = "carom_"

    def __post_init__(self) -> None:
        """Refuse what would not be a name everywhere."""
        for what, name in (("schema", self.schema), ("prefix", self.prefix)):
            if name and not _NAME.fullmatch(name):
                raise ConfigurationError(
                    f"{name!r} cannot be the {what} of Carom's tables: "
                    "say small letters, digits and underscores, at most 41, and no digit first"
                )
        if self.schema and self.dialect.name == "sqlite":
            raise ConfigurationError("SQLite has no schemas: leave schema= out, or say prefix= instead")

    def table(self, short: str) -> str:
        """Return the name of a table for SQL."""
        name = self.dialect.quoted(self.prefix + short)
        return f"{self.dialect.quoted(self.schema)}.{name}" if self.schema else name

    @property
    def outbox(self) -> str:
        """Return the table of promised messages."""
        return self.table("outbox")

    @property
    def inbox(self) -> str:
        """Return the table of what was handled."""
        return self.table("inbox")

    @property
    def lease(self) -> str:
        """Return the table of who leads."""
        return self.table("lease")

    @property
    def version(self) -> str:
        """Return the table of what was migrated."""
        return self.table("version")


@lru_cache(maxsize=256)
def rendered(sql: str, style: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement as a driver wants it, and its parameters in order: ``$1``, ``%s``, ``%b`` or ``:name``.

    ``%b`` is psycopg's for values in binary: an array of texts need not be escaped, which takes four times as long.
    """
    names: list[str] = []

    def numbered(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    def positional(found: re.Match[str]) -> str:
        names.append(found[1])
        return style

    def kept(found: re.Match[str]) -> str:
        names.append(found[1])
        return found[0]

    if style[0] == "%":
        return _PARAMETER.sub(positional, sql.replace("%", "%%")), tuple(names)
    return _PARAMETER.sub(numbered if style == "$1" else kept, sql), tuple(names)
