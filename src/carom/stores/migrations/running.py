"""Running migrations: see to the tables when an app starts, and when somebody says so.

Rule: one process upgrades at a time, under a lock of the database's; and nobody is upgraded back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import Connection, MetaData, inspect
from sqlalchemy.ext.asyncio import AsyncConnection

from carom.errors import SchemaMismatch
from carom.ports import Mode
from carom.stores.failures import translated
from carom.stores.migrations.statements import LATEST, statements
from carom.stores.place import Place
from carom.stores.tables import make_tables

_LOCK = 0x6361726F6D  # "carom"
_LOCK_SECONDS = 60


async def see_to(place: Place, mode: Mode) -> None:
    """Create or add what is missing, compare it, or do nothing. Raises DatabaseUnavailable or SchemaMismatch."""
    if mode == "ignore":
        await place.run("opening", "SELECT 1")
        return
    if mode == "apply":
        await upgrade(place)
    problems = await missing(place)
    if problems:
        raise SchemaMismatch(
            f"{place.where} lacks what this version of Carom needs: {'; '.join(problems)}. Run carom db upgrade"
        )


async def upgrade(place: Place) -> tuple[int, int]:
    """Bring the tables to the latest version; return the version that was there and the one that is."""
    with translated("upgrading", place.where):
        async with place.engines.asynchronous.connect() as connection:
            before = await _version(place, connection)
            await connection.rollback()
        if before >= LATEST:
            return before, before
        async with _alone(place) as connection:
            before = await _version(place, connection)
            if before == 0 and place.names.schema and place.dialect.name == "postgresql":
                await _make_schema(place, connection)
            for statement in statements(place.dialect.name, place.names.schema, place.names.prefix, before):
                await connection.exec_driver_sql(statement)
        return before, max(before, LATEST)


async def missing(place: Place) -> list[str]:
    """Return what is missing from the tables, a sentence each; nothing when all is well."""
    with translated("comparing", place.where):
        async with place.engines.asynchronous.connect() as connection:
            found = await _columns(place, connection)
            version = await _version(place, connection) if found else 0
            await connection.rollback()
    tables = make_tables(MetaData(), place.names.schema, place.names.prefix)
    problems = []
    for table in (tables.outbox, tables.inbox, tables.lease, tables.version):
        if table.name not in found:
            problems.append(f"there is no table {table.fullname}")
            continue
        lacking = [column.name for column in table.columns if column.name not in found[table.name]]
        problems += [f"{table.fullname} has no column {name}" for name in lacking]
    if not problems and version < LATEST:
        problems.append(f"it is of version {version}, and {LATEST} is needed")
    return problems


async def _version(place: Place, connection: AsyncConnection) -> int:
    """Return the version that is there; 0 for none."""
    schema, table = place.names.schema, f"{place.names.prefix}version"
    if not await connection.run_sync(lambda plain: inspect(plain).has_table(table, schema)):
        return 0
    return (await connection.exec_driver_sql(f"SELECT MAX(version) FROM {place.names.version}")).scalar() or 0


async def _columns(place: Place, connection: AsyncConnection) -> dict[str, set[str]]:
    schema = place.names.schema
    tables = [f"{place.names.prefix}{short}" for short in ("outbox", "inbox", "lease", "version")]

    def look(plain: Connection) -> dict[str, set[str]]:
        looking = inspect(plain)
        there = [table for table in tables if looking.has_table(table, schema)]
        return {table: {column["name"] for column in looking.get_columns(table, schema)} for table in there}

    return await connection.run_sync(look)


async def _make_schema(place: Place, connection: AsyncConnection) -> None:
    schema = place.names.schema or ""
    if not await connection.run_sync(lambda plain: inspect(plain).has_schema(schema)):
        await connection.exec_driver_sql(f"CREATE SCHEMA {place.dialect.quoted(schema)}")


@asynccontextmanager
async def _alone(place: Place) -> AsyncIterator[AsyncConnection]:
    """Begin a transaction in which nobody else upgrades."""
    async with place.engines.asynchronous.connect() as connection:
        if place.dialect.name == "postgresql":
            await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        if place.dialect.name == "sqlite":
            raw = (await connection.get_raw_connection()).driver_connection
            await connection.run_sync(lambda plain: plain.get_transaction() or plain.begin())
            if raw is not None and not raw.in_transaction:  # an engine of the user's that begins when it pleases
                await connection.exec_driver_sql("BEGIN IMMEDIATE")
        if place.dialect.name != "mysql":
            yield connection
            await connection.commit()
            return
        name = f"carom.{place.names.schema or ''}.{place.names.prefix}"[:64]
        await connection.exec_driver_sql(f"SELECT GET_LOCK('{name}', {_LOCK_SECONDS})")
        try:
            yield connection
            await connection.commit()  # whoever gets the lock next is to see the version
        finally:
            await connection.exec_driver_sql(f"SELECT RELEASE_LOCK('{name}')")
