"""Inserting: the statements that write rows into an outbox, one or many, for every driver.

On PostgreSQL many rows are one statement with an array for each column: one round trip, one trigger.

Rule: a row is written by one statement in the caller's transaction, and nothing is read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlalchemy import Connection, TextClause, text

from carom.core.relaying import Entry
from carom.stores.dialects import Dialect, Names, rendered
from carom.stores.rows import COLUMNS, values

FIELDS = (*COLUMNS, "wait_ms", "at_ms")
CHUNK = 5_000
"""How many rows are one statement at most: what is sent is held in memory."""
Batches: TypeAlias = Sequence[tuple[bool, Any]]
"""Statements to run: whether it is the one for many rows, and its parameters; a list of them for one row."""
_ARRAYS = {"body": "bytea", "wait_ms": "bigint", "at_ms": "bigint"}


@dataclass(frozen=True)
class Insertion:
    """How rows get into one outbox."""

    dialect: Dialect
    names: Names
    one: str = field(init=False)
    """One row; parameters by the names of `FIELDS`."""
    many: str = field(init=False)
    """Many rows; the same parameters, each a list. Empty where the database takes rows one by one."""
    one_clause: TextClause = field(init=False)
    many_clause: TextClause = field(init=False)

    def __post_init__(self) -> None:
        """Write the statements."""
        into = f"INSERT INTO {self.names.outbox} ({', '.join(COLUMNS)}, wait_until{self._created})"
        # aiomysql fails on bytes with the latest PyMySQL.
        body = "UNHEX(:body)" if self._in_hex else ":body"
        row = ", ".join(body if name == "body" else f":{name}" for name in COLUMNS)
        due = f"COALESCE({self.dialect.moment(':at_ms')}, {self.dialect.later(':wait_ms')})"
        created = f", {self.dialect.now}" if self._created else ""
        object.__setattr__(self, "one", f"{into} VALUES ({row}, {due}{created})")
        many = ""
        if self.dialect.name == "postgresql":
            arrays = ", ".join(f"CAST(:{name} AS {_ARRAYS.get(name, 'text')}[])" for name in FIELDS)
            due = f"COALESCE({self.dialect.moment('wanted.at_ms')}, {self.dialect.later('wanted.wait_ms')})"
            columns = ", ".join(COLUMNS)
            many = f"{into} SELECT {columns}, {due} FROM unnest({arrays}) AS wanted({', '.join(FIELDS)})"
        object.__setattr__(self, "many", many)
        object.__setattr__(self, "one_clause", text(self.one))
        object.__setattr__(self, "many_clause", text(many))

    @property
    def _in_hex(self) -> bool:
        return self.dialect.name == "mysql"

    @property
    def _created(self) -> str:
        return ", created_at" if self.dialect.clock is not None else ""

    def execute(self, connection: Connection, batches: Batches) -> None:
        """Run what `batches` returned on a connection of SQLAlchemy's."""
        for many, parameters in batches:
            if many and connection.dialect.driver == "psycopg":
                statement, names = rendered(self.many, "%b")
                connection.exec_driver_sql(statement, tuple(parameters[name] for name in names))
            else:
                connection.execute(self.many_clause if many else self.one_clause, parameters)

    def batches(self, entries: Sequence[Entry]) -> Batches:
        """Return what is to be run to write entries. Raises ConfigurationError for what cannot be kept."""
        found = [values(entry) for entry in entries]
        if len(found) == 1 or not self.many:
            rows = [dict(zip(FIELDS, row, strict=True), **self.dialect.given()) for row in found]
            if self._in_hex:
                rows = [{**row, "body": entry.message.body.hex()} for row, entry in zip(rows, entries, strict=True)]
            return [(False, rows)]
        chunks = (found[start : start + CHUNK] for start in range(0, len(found), CHUNK))
        return [(True, dict(zip(FIELDS, map(list, zip(*chunk, strict=True)), strict=True))) for chunk in chunks]
