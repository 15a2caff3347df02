"""Engines: from an address or an engine of the user's, both that Carom needs: one that waits, one for threads.

Rule: an engine that was given is used as it is and never closed here; what is made here is closed here.
Rule: credentials stay in SQLAlchemy's URL objects; nothing here writes them down.
"""

from __future__ import annotations

import sqlite3
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, QueuePool

from carom.errors import ConfigurationError
from carom.stores.failures import is_passing

BUSY_SECONDS = 30
"""How long SQLite waits for another writer."""
CHANGE_MS = 50
"""How long it waits for others to let it change how the file is written."""
POOL_SIZE, OVERFLOW = 20, 10
BEGIN = "carom_begin"
"""The execution option that says how a transaction of SQLite's begins; empty for none."""

_DRIVERS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    # asynchronous, synchronous, the extra that brings one
    "postgresql": (("asyncpg", "psycopg"), ("psycopg", "psycopg2"), "postgresql"),
    "sqlite": (("aiosqlite",), ("pysqlite",), "sqlite"),
    "mysql": (("aiomysql", "asyncmy"), ("pymysql", "mysqldb"), "mysql"),
    "mariadb": (("aiomysql", "asyncmy"), ("pymysql", "mysqldb"), "mysql"),
}
_MODULES = {"pysqlite": "sqlite3", "mysqldb": "MySQLdb"}
_TWINS = {"asyncpg": "psycopg", "psycopg": "psycopg", "aiosqlite": "pysqlite", "aiomysql": "pymysql"}


class Engines:
    """The asynchronous engine, and the synchronous one, which is made when a handler in a thread needs it."""

    def __init__(self, url: object) -> None:
        """Take what `carom.ports.Database` holds. Connects to nothing; raises ConfigurationError."""
        self._made: list[AsyncEngine | Engine] = []
        self._synchronous: Engine | None = None
        if isinstance(url, AsyncEngine):
            self.asynchronous = url
        elif isinstance(url, Engine):
            self._synchronous = url
            self.asynchronous = self._make_asynchronous(url.url)
        else:
            self.asynchronous = self._make_asynchronous(_url(url))

    @property
    def url(self) -> URL:
        """Return where the database is."""
        return self.asynchronous.url

    @cached_property
    def where(self) -> str:
        """Return where the database is, for people: no credentials."""
        url = self.url
        host = f"{url.host}{f':{url.port}' if url.port else ''}/" if url.host else ""
        return f"{url.get_backend_name()} at {host}{url.database or 'memory'}"

    @property
    def synchronous(self) -> Engine:
        """Return the engine for threads. Raises ConfigurationError when no driver for it is installed."""
        if self._synchronous is None:
            url = self.url
            if _is_memory(url):
                raise ConfigurationError(
                    "a database in memory has one connection, and handlers in threads need another: "
                    "give it a file, as in sqlite+aiosqlite:///shop.db, or write the handler as async def"
                )
            engine = create_engine(
                url.set(drivername=_driver(url, asynchronous=False)), **_pool(url, QueuePool), pool_pre_ping=False
            )
            _tune(engine, url)
            self._made.append(engine)
            self._synchronous = engine
        return self._synchronous

    async def close(self) -> None:
        """Close what was made here."""
        for engine in self._made:
            if isinstance(engine, AsyncEngine):
                await engine.dispose()
            else:
                engine.dispose()

    def _make_asynchronous(self, url: URL) -> AsyncEngine:
        engine = create_async_engine(
            url.set(drivername=_driver(url, asynchronous=True)), **_pool(url, AsyncAdaptedQueuePool)
        )
        _tune(engine.sync_engine, url)
        self._made.append(engine)
        return engine


def _url(url: object) -> URL:
    if isinstance(url, URL):
        return url
    if not isinstance(url, str):
        raise ConfigurationError(
            f"a database is an address or an engine of SQLAlchemy's, and this is of type {type(url).__name__}"
        )
    try:
        return make_url(url)
    except ArgumentError as error:
        raise ConfigurationError(
            "the address of the database cannot be read: write it as postgresql+asyncpg://host/shop "
            "or sqlite+aiosqlite:///shop.db"
        ) from error


def _driver(url: URL, *, asynchronous: bool) -> str:
    """Return SQLAlchemy's name of a driver that is installed, the one that the URL names if it can be that."""
    backend, _, named = url.drivername.partition("+")
    if backend not in _DRIVERS:
        raise ConfigurationError(
            f"Carom keeps no tables in {backend!r}: it knows postgresql, sqlite, mysql and mariadb"
        )
    waiting, threaded, extra = _DRIVERS[backend]
    wanted = waiting if asynchronous else threaded
    twin = named if named in wanted else _TWINS.get(named, "")
    for driver in dict.fromkeys((twin, *wanted)):
        if driver in wanted and find_spec(_MODULES.get(driver, driver)) is not None:
            return f"{backend}+{driver}"
    kind = "asynchronous driver" if asynchronous else "driver for threads"
    where = "psycopg" if backend == "postgresql" and not asynchronous else extra
    raise ConfigurationError(
        f"no {kind} for {backend} is installed ({', '.join(wanted)}): pip install 'carom[{where}]'"
    )


def _is_memory(url: URL) -> bool:
    if url.get_backend_name() != "sqlite":
        return False
    return url.database in {None, "", ":memory:"} or "mode=memory" in (url.database or "")


def _pool(url: URL, pool: type[Any]) -> dict[str, Any]:
    if _is_memory(url):
        # A second connection would be a second database; who needs the one that there is waits for it.
        return {"poolclass": pool, "pool_size": 1, "max_overflow": 0, "pool_timeout": BUSY_SECONDS}
    sizes: dict[str, Any] = {"pool_size": POOL_SIZE, "max_overflow": OVERFLOW}
    return {**sizes, "poolclass": pool} if url.get_backend_name() == "sqlite" else sizes


def _write_ahead(cursor: Any) -> None:
    """Let readers be beside a writer. That changes the file, once, and cannot be while others use it.

    Two who wait for that wait for each other, so nobody does for long: the file stays as it was, where who reads waits
    for who writes, and the next connection asks again.
    """
    cursor.execute(f"PRAGMA busy_timeout = {CHANGE_MS}")
    try:
        cursor.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        if not is_passing(error):
            raise


def _tune(engine: Engine, url: URL) -> None:
    """Make SQLite keep its promises: real transactions, waiting for others, readers beside a writer."""
    if url.get_backend_name() != "sqlite":
        return

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself: see _begun
        cursor = connection.cursor()
        if not _is_memory(url):
            _write_ahead(cursor)
            cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(engine, "reset")
    def _returned(connection: Any, _record: object, _state: object) -> None:
        # A COMMIT that SQLite refuses, for a deferred constraint say, leaves the transaction open; SQLAlchemy takes it
        # for ended, and would give the connection to somebody else like that.
        if getattr(connection, "driver_connection", connection).in_transaction:
            connection.rollback()

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        # IMMEDIATE, because who reads first and writes then is refused at once when somebody else wrote meanwhile.
        how = connection.get_execution_options().get(BEGIN, "BEGIN IMMEDIATE")
        if how:
            connection.exec_driver_sql(how)
