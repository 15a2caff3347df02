"""Rows through drivers' own connections: in the caller's transaction, or refused."""

import sqlite3
from contextlib import asynccontextmanager, contextmanager

import aiosqlite
import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from carom.errors import ConfigurationError
from carom.ports import Database
from carom.stores import connect
from carom.testing.contracts.store.stage import promised
from stores.store_stage import drop

PREFIX = "conn_"
MANY = [promised(f"m{number:03}", wait_ms=number % 2 and 60_000, headers={"n": number}) for number in range(200)]


@asynccontextmanager
async def the_store(url):
    store = connect(Database(url, prefix=PREFIX))
    await store.open("apply")
    try:
        yield store
    finally:
        await store.close()


async def ids(store):
    return [row.message.id for row in await store.claim(1000, [])]


@pytest.fixture
def postgres_tables(postgres_url):
    yield postgres_url
    drop(postgres_url, PREFIX)


@contextmanager
def refused(match):
    with pytest.raises(ConfigurationError, match=match):
        yield


@asynccontextmanager
async def asyncpg_connection(url):
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_proxy(url):
    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection:
        yield connection


@pytest.mark.parametrize("opened", [asyncpg_connection, asyncpg_proxy])
async def test_asyncpg_writes_in_its_transaction(postgres_tables, opened):
    async with the_store(postgres_tables) as store, opened(postgres_tables) as connection:
        with refused("in no transaction"):
            await store.write(connection, [promised("never")])
        transaction = connection.transaction()
        await transaction.start()
        await store.write(connection, [promised("rolled back")])
        await transaction.rollback()
        async with connection.transaction():
            await store.write(connection, [promised("one")])
            await store.write(connection, MANY)
            await store.write(connection, [])
            assert await ids(store) == []
        assert await ids(store) == ["one", *(entry.message.id for entry in MANY[::2])]
        assert len(await store.find(["later"], 1000)) == 100


async def test_what_a_session_lends_before_it_has_begun_is_refused(postgres_tables):
    """The driver's connection of a session that has not run anything is in autocommit, whatever the session thinks."""
    engine = create_async_engine(make_url(postgres_tables).set(drivername="postgresql+asyncpg"))
    async with the_store(postgres_tables) as store:
        async with AsyncSession(engine) as session:
            raw = (await (await session.connection()).get_raw_connection()).driver_connection
            with refused("in no transaction"):
                await store.write(raw, [promised("never")])
            await session.execute(select(1))
            await store.write(raw, [promised("rolled back")])
            await session.rollback()
            await session.execute(select(1))
            raw = (await (await session.connection()).get_raw_connection()).driver_connection
            await store.write(raw, [promised("committed")])
            await session.commit()
        assert await ids(store) == ["committed"]
    await engine.dispose()


async def test_psycopg_writes_in_its_transaction(postgres_tables):
    async with (
        the_store(postgres_tables) as store,
        await psycopg.AsyncConnection.connect(postgres_tables) as connection,
    ):
        await store.write(connection, [promised("rolled back")])
        await connection.rollback()
        await store.write(connection, [promised("one"), promised("two", at_ms=1)])
        assert await ids(store) == []
        await connection.commit()
        await connection.set_autocommit(True)
        with refused("autocommit"):
            await store.write(connection, [promised("never")])
        async with connection.transaction():
            await store.write(connection, MANY)
        await store.release()
        assert await ids(store) == ["one", "two", *(entry.message.id for entry in MANY[::2])]


async def test_psycopg_writes_in_its_transaction_without_waiting(postgres_tables):
    async with the_store(postgres_tables) as store:
        with psycopg.connect(postgres_tables) as connection:
            store.write_now(connection, [promised("rolled back")])
            connection.rollback()
            store.write_now(connection, [promised("one")])
            store.write_now(connection, MANY)
            store.write_now(connection, [])
            connection.commit()
            connection.autocommit = True
            with refused("autocommit"):
                store.write_now(connection, [promised("never")])
        assert await ids(store) == ["one", *(entry.message.id for entry in MANY[::2])]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_an_async_connection_of_sqlalchemys_writes_in_its_transaction(postgres_tables, driver):
    engine = create_async_engine(make_url(postgres_tables).set(drivername=f"postgresql+{driver}"))
    async with the_store(postgres_tables) as store:
        async with engine.connect() as connection:
            await store.write(connection, [promised("rolled back")])
            await connection.rollback()
            await store.write(connection, [promised("one")])
            await store.write(connection, MANY)
            await connection.commit()
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            with refused("AUTOCOMMIT"):
                await store.write(connection, [promised("never")])
        with refused("not open"):
            await store.write(AsyncConnection(engine), [promised("never")])
        assert await ids(store) == ["one", *(entry.message.id for entry in MANY[::2])]
    await engine.dispose()


async def test_a_connection_of_sqlalchemys_writes_in_its_transaction(postgres_tables):
    engine = create_engine(make_url(postgres_tables).set(drivername="postgresql+psycopg"))
    async with the_store(postgres_tables) as store:
        with engine.begin() as connection:
            store.write_now(connection, MANY)
        with engine.connect() as connection:
            store.write_now(connection, [promised("rolled back")])
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection, refused("AUTOCOMMIT"):
            store.write_now(connection, [promised("never")])
        assert len(await ids(store)) == 100
    engine.dispose()


async def test_sqlite3_writes_in_its_transaction(tmp_path):
    path = tmp_path / "shop.db"
    async with the_store(f"sqlite+aiosqlite:///{path}") as store:
        connection = sqlite3.connect(path)
        store.write_now(connection, [promised("rolled back")])
        connection.rollback()
        with connection:
            store.write_now(connection, [promised("one")])
            store.write_now(connection, MANY)
        connection.isolation_level = None
        with refused("in no transaction"):
            store.write_now(connection, [promised("never")])
        connection.execute("BEGIN")
        store.write_now(connection, [promised("last")])
        connection.execute("COMMIT")
        connection.close()
        assert await ids(store) == ["one", *(entry.message.id for entry in MANY[::2]), "last"]


async def test_aiosqlite_writes_in_its_transaction(tmp_path):
    path = tmp_path / "shop.db"
    async with the_store(f"sqlite+aiosqlite:///{path}") as store:
        async with aiosqlite.connect(path) as connection:
            await store.write(connection, [promised("rolled back")])
            await connection.rollback()
            await store.write(connection, MANY)
            await connection.commit()
        async with aiosqlite.connect(path, isolation_level=None) as connection:
            with refused("in no transaction"):
                await store.write(connection, [promised("never")])
        assert len(await ids(store)) == 100


class DjangoLike:
    """What Django's connection has, as far as it is asked: the real one is proven with the integration."""

    vendor = "sqlite"

    def __init__(self, path):
        self.in_atomic_block = False
        self.connection = sqlite3.connect(path)

    def get_autocommit(self):
        return not self.in_atomic_block

    @contextmanager
    def cursor(self):
        connection = self.connection

        class Cursor:
            def execute(self, sql, values):
                connection.execute(sql.replace("%s", "?").replace("%%", "%"), values)

        yield Cursor()


async def test_django_writes_in_its_transaction(tmp_path):
    path = tmp_path / "shop.db"
    async with the_store(f"sqlite+aiosqlite:///{path}") as store:
        connection = DjangoLike(path)
        with refused(r"transaction\.atomic"):
            store.write_now(connection, [promised("never")])
        connection.in_atomic_block = True
        store.write_now(connection, MANY)
        connection.connection.commit()
        connection.connection.close()
        assert len(await ids(store)) == 100


async def test_what_is_no_connection_is_told_what_would_be(tmp_path):
    async with the_store(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}") as store:
        with refused("emit_on takes an asyncpg"):
            await store.write(object(), [promised("a")])
        with refused("emit_on_sync takes a psycopg"):
            store.write_now(object(), [promised("a")])
        session = AsyncSession(store.engines.asynchronous)
        with refused(r"say emit\(session"):
            await store.write(session, [promised("a")])
        with refused(r"say emit\(session"):
            store.write_now(session, [promised("a")])
