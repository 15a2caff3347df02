"""Connections: rows written through a driver's own connection, for programs without a session.

Rule: a row is written in the caller's transaction or not at all. A connection that would commit it by itself is
refused, because what follows in the program could still fail while the message is on its way.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, NoReturn

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from carom.core.relaying import Entry
from carom.errors import ConfigurationError
from carom.stores.dialects import rendered
from carom.stores.inserting import Batches, Insertion

_IDLE = 0
"""The status of a psycopg connection outside a transaction."""


async def write(insertion: Insertion, connection: object, entries: Sequence[Entry]) -> None:
    """Insert rows through an asynchronous driver's connection; raises ConfigurationError outside a transaction."""
    if not entries:
        return
    batches = insertion.batches(entries)
    found: Any = connection
    if isinstance(connection, AsyncConnection):
        _check_begun(connection.sync_connection)
        await connection.run_sync(insertion.execute, batches)
    elif _has(connection, "is_in_transaction", "fetchrow"):
        await _write_asyncpg(insertion, found, batches)
    elif _is_psycopg(connection, waits=True):
        _check_psycopg(found)
        async with found.cursor() as cursor:
            for sql, values in _positional(insertion, batches, "%b"):
                await cursor.execute(sql, values)
    elif _has(connection, "in_transaction", "isolation_level", "execute_insert"):  # aiosqlite
        _check_sqlite(found.in_transaction, found.isolation_level, found)
        for sql, rows in _rows(insertion, batches):
            await (await found.executemany(sql, rows)).close()
    else:
        _unknown(connection, "an asyncpg, psycopg or aiosqlite connection, or SQLAlchemy's AsyncConnection", "emit_on")


def write_now(insertion: Insertion, connection: object, entries: Sequence[Entry]) -> None:
    """Insert rows through a synchronous driver's connection; raises ConfigurationError outside a transaction."""
    if not entries:
        return
    batches = insertion.batches(entries)
    found: Any = connection
    if isinstance(connection, Connection):
        _check_begun(connection)
        insertion.execute(connection, batches)
    elif isinstance(connection, sqlite3.Connection):
        _check_sqlite(connection.in_transaction, connection.isolation_level, connection)
        for sql, rows in _rows(insertion, batches):
            connection.executemany(sql, rows).close()
    elif _has(connection, "in_atomic_block", "vendor", "cursor"):
        _write_django(insertion, found, batches)
    elif _is_psycopg(connection, waits=False):
        _check_psycopg(found)
        with found.cursor() as cursor:
            for sql, values in _positional(insertion, batches, "%b"):
                cursor.execute(sql, values)
    else:
        known = "a psycopg or sqlite3 connection, Django's connection, or SQLAlchemy's Connection"
        _unknown(connection, known, "emit_on_sync")


async def _write_asyncpg(insertion: Insertion, connection: Any, batches: Batches) -> None:
    # What SQLAlchemy lends of a session that has not run anything yet is in no transaction: it begins one by itself,
    # later, and a row written now would stay whatever becomes of that.
    if not connection.is_in_transaction():
        _refuse("this asyncpg connection", "async with connection.transaction():")
    for sql, values in _positional(insertion, batches, "$1"):
        await connection.execute(sql, *values)


def _write_django(insertion: Insertion, connection: Any, batches: Batches) -> None:
    if not connection.in_atomic_block and connection.get_autocommit():
        _refuse("Django's connection", "with transaction.atomic():")
    with connection.cursor() as cursor:
        for sql, values in _positional(insertion, batches, "%s"):
            cursor.execute(sql, values)


def _positional(insertion: Insertion, batches: Batches, style: str) -> list[tuple[str, list[Any]]]:
    """Return statements and their values in order, one for each row where there is none for many."""
    found: list[tuple[str, list[Any]]] = []
    for many, parameters in batches:
        sql, names = rendered(insertion.many if many else insertion.one, style)
        found += [(sql, [given[name] for name in names]) for given in ([parameters] if many else parameters)]
    return found


def _rows(insertion: Insertion, batches: Batches) -> list[tuple[str, Any]]:
    """Return statements with parameters by name, and all their rows."""
    return [(insertion.one, parameters) for _, parameters in batches]


def _check_begun(connection: Connection | None) -> None:
    if connection is None:
        raise ConfigurationError("this AsyncConnection is not open: say async with engine.begin() as connection:")
    options = connection.get_execution_options()
    level = options.get("isolation_level") or connection.dialect._on_connect_isolation_level  # noqa: SLF001 - there is no other way to ask an engine without asking the server
    if level == "AUTOCOMMIT":
        _refuse("this connection has the isolation level AUTOCOMMIT and", "with engine.begin() as connection:")


def _check_psycopg(connection: Any) -> None:
    if connection.autocommit and connection.info.transaction_status == _IDLE:
        _refuse("this psycopg connection is in autocommit mode and", "with connection.transaction():")


def _check_sqlite(in_transaction: bool, isolation_level: str | None, connection: object) -> None:  # noqa: FBT001 - what the driver says
    # From Python 3.12 on the attribute autocommit decides; -1 means that the isolation level still does.
    autocommit = getattr(connection, "autocommit", -1)
    by_itself = isolation_level is None if autocommit == -1 else autocommit
    if by_itself and not in_transaction:
        _refuse("this SQLite connection", 'connection.execute("BEGIN")')


def _is_psycopg(connection: object, *, waits: bool) -> bool:
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(connection).__mro__}
    return ("psycopg.AsyncConnection" if waits else "psycopg.Connection") in names


def _has(connection: object, *names: str) -> bool:
    return all(hasattr(connection, name) for name in names)


def _refuse(what: str, instead: str) -> NoReturn:
    raise ConfigurationError(
        f"{what} is in no transaction, and the message would be sent even if what follows fails: emit inside {instead}"
    )


def _unknown(connection: object, known: str, called: str) -> NoReturn:
    if isinstance(connection, Session | AsyncSession):
        raise ConfigurationError(f"{called} takes a connection, and this is a session: say emit(session, ...)")
    raise ConfigurationError(f"{called} takes {known}, and this is of type {type(connection).__name__}")
