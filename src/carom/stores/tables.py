"""Tables: Carom's four, as SQLAlchemy sees them; on one's own MetaData, a migration tool sees them too.

Rule: what is drawn here is what `migrations.statements` makes; a test compares the two on every database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    and_,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from carom.stores.dialects import Names, PostgreSQL, dialect


class Now(FunctionElement[Any]):
    """The database's own time, as the tables keep it."""

    inherit_cache = True


@compiles(Now)
def _now_anywhere(_element: Now, compiler: Any, **_given: Any) -> str:
    return dialect(compiler.dialect.name).now


@dataclass(frozen=True, slots=True)
class Tables:
    """The four tables."""

    outbox: Table
    inbox: Table
    lease: Table
    version: Table


def make_tables(metadata: MetaData, schema: str | None = None, prefix: str = "carom_") -> Tables:
    """Draw the tables on a MetaData. Raises ConfigurationError for a name that is none."""
    Names(PostgreSQL(), schema, prefix)
    return Tables(
        _outbox(metadata, schema, prefix),
        Table(
            f"{prefix}inbox",
            metadata,
            Column("listener", _name(), primary_key=True),
            Column("message_id", _name(), primary_key=True),
            Column("attempt", Integer(), primary_key=True, autoincrement=False),
            Column("seen_at", _moment(), nullable=False),
            Index(f"{prefix}inbox_seen", "seen_at"),
            schema=schema,
        ),
        Table(
            f"{prefix}lease",
            metadata,
            Column("name", _name(), primary_key=True),
            Column("holder", _name(), nullable=False),
            Column("epoch", BigInteger(), nullable=False),
            Column("expires_at", _moment(), nullable=False),
            schema=schema,
        ),
        Table(
            f"{prefix}version",
            metadata,
            Column("version", Integer(), primary_key=True, autoincrement=False),
            Column("applied_at", _moment(), nullable=False),
            schema=schema,
        ),
    )


def _outbox(metadata: MetaData, schema: str | None, prefix: str) -> Table:
    table = Table(
        f"{prefix}outbox",
        metadata,
        Column("seq", _sequence(), Identity(), primary_key=True),
        Column("id", _name(), nullable=False),
        Column("exchange", _name(), nullable=False),
        Column("routing_key", _name(), nullable=False),
        Column("body", LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"), nullable=False),
        Column("content_type", _name(), nullable=False),
        Column("properties", _long_text(), nullable=False),
        Column("headers", _long_text(), nullable=False),
        Column("ordering_key", _name(), nullable=False),
        Column("wait_until", _moment()),
        Column("ready_at", _moment()),
        Column("attempts", Integer(), nullable=False, server_default=text("0")),
        Column("last_error", _long_text()),
        Column("created_at", _moment(), nullable=False, server_default=Now()),
        Column("sent_at", _moment()),
        Column("parked_at", _moment()),
        schema=schema,
        sqlite_autoincrement=True,
    )
    failed = table.c.attempts > text("0")
    unsent = and_(table.c.sent_at.is_(None), table.c.parked_at.is_(None))
    for short, columns, where in (
        ("ready", ("seq",), and_(unsent, table.c.wait_until.is_(None))),
        ("waiting", ("wait_until",), and_(table.c.wait_until.is_not(None), unsent)),
        ("failing", ("ordering_key", "seq"), and_(table.c.ordering_key != text("''"), failed, unsent)),
        ("sent", ("sent_at",), table.c.sent_at.is_not(None)),
        ("parked", ("seq",), table.c.parked_at.is_not(None)),
    ):
        columns_of_it = (table.c[column] for column in columns)
        Index(f"{prefix}outbox_{short}", *columns_of_it, postgresql_where=where, sqlite_where=where)
    return table


def _name() -> TypeEngine[str]:
    exact = mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_bin")
    return Text().with_variant(exact, "mysql", "mariadb")


def _long_text() -> TypeEngine[str]:
    exact = mysql.MEDIUMTEXT(charset="utf8mb4", collation="utf8mb4_bin")
    return Text().with_variant(exact, "mysql", "mariadb")


def _sequence() -> TypeEngine[int]:
    return BigInteger().with_variant(Integer(), "sqlite")


def _moment() -> TypeEngine[Any]:
    return BigInteger().with_variant(DateTime(timezone=True), "postgresql")
