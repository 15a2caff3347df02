"""What errors of drivers mean, from real databases and from the codes that they cannot be made to say here."""

import asyncio
import sqlite3

import asyncpg
import psycopg
import pymysql
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from carom.errors import DatabaseUnavailable, StoreError
from carom.ports import Database
from carom.stores import connect
from carom.stores.failures import is_absence, is_passing, translation
from stores.store_stage import drop

NOBODY = "postgresql+{}://someone:secret-word@127.0.0.1:1/shop"
PASSING = [
    asyncpg.DeadlockDetectedError("deadlock detected"),
    asyncpg.SerializationError("could not serialize access"),
    psycopg.errors.DeadlockDetected("deadlock detected"),
    psycopg.errors.SerializationFailure("could not serialize access"),
    pymysql.err.OperationalError(1213, "Deadlock found"),
    pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"),
    sqlite3.OperationalError("database is locked"),
]
ABSENT = [
    ConnectionRefusedError(111, "Connection refused"),
    ConnectionResetError(),
    TimeoutError(),
    asyncpg.AdminShutdownError("terminating connection due to administrator command"),
    asyncpg.CannotConnectNowError("the database system is starting up"),
    asyncpg.TooManyConnectionsError("sorry, too many clients already"),
    asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
    asyncpg.InterfaceError("connection is closed"),
    psycopg.errors.AdminShutdown("terminating connection due to administrator command"),
    psycopg.OperationalError("server closed the connection unexpectedly"),
    psycopg.OperationalError("the connection is lost"),
    psycopg.OperationalError('connection failed: connection to server at "127.0.0.1", port 1 failed'),
    pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query"),
    pymysql.err.OperationalError(2003, "Can't connect to MySQL server"),
    sqlite3.OperationalError("unable to open database file"),
]
NEITHER = [
    asyncpg.UniqueViolationError("duplicate key"),
    psycopg.errors.UniqueViolation("duplicate key"),
    pymysql.err.IntegrityError(1062, "Duplicate entry"),
    sqlite3.IntegrityError("UNIQUE constraint failed"),
    FileNotFoundError(2, "No such file"),
    PermissionError(13, "Permission denied"),
    ValueError("database is locked"),
]


def shown(error):
    return f"{type(error).__module__.partition('.')[0]} {type(error).__name__}"


def wrapped(error):
    """Return an error as it arrives: wrapped by SQLAlchemy, raised from it, in a group, all of it."""
    outer = RuntimeError("the handler says")
    outer.__cause__ = OperationalError("INSERT", {}, error)
    yield error
    yield OperationalError("INSERT", {}, error)
    yield outer
    yield ExceptionGroup("a batch", [ValueError("one"), outer])


@pytest.mark.parametrize("error", PASSING, ids=shown)
def test_what_passes_is_known(error):
    assert all(is_passing(one) and not is_absence(one) for one in wrapped(error))


@pytest.mark.parametrize("error", ABSENT, ids=shown)
def test_what_is_absence_is_known(error):
    assert all(is_absence(one) and not is_passing(one) for one in wrapped(error))


@pytest.mark.parametrize("error", NEITHER, ids=shown)
def test_what_is_neither_is_known(error):
    assert not is_passing(error)
    assert not is_absence(error)


def test_an_error_that_causes_itself_is_looked_at_once():
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert not is_passing(one)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_server_that_nobody_runs_is_unavailable_and_the_password_stays_ours(driver):
    store = connect(Database(NOBODY.format(driver)))
    with pytest.raises(DatabaseUnavailable) as caught:
        await store.open("apply")
    said = "".join([str(caught.value), store.where])
    assert "127.0.0.1:1/shop" in said
    assert "secret-word" not in said
    assert "someone" not in said
    assert store.is_absence(caught.value)
    await store.close()


async def test_a_name_that_nobody_has_is_unavailable():
    store = connect(Database("postgresql+asyncpg://no-such-host.invalid/shop"))
    with pytest.raises(DatabaseUnavailable):
        await store.open("ignore")
    await store.close()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_deadlock_is_passing(postgres_url, driver):
    engine = create_async_engine(postgres_url.replace("postgresql:", f"postgresql+{driver}:"))
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE dead_a (x int)"))
        await connection.execute(text("CREATE TABLE dead_b (x int)"))
    met = asyncio.Barrier(2)

    async def lock(first, second):
        async with AsyncSession(engine) as session:
            await session.execute(text(f"LOCK TABLE {first}"))
            await met.wait()
            await session.execute(text(f"LOCK TABLE {second}"))

    found = await asyncio.gather(lock("dead_a", "dead_b"), lock("dead_b", "dead_a"), return_exceptions=True)
    async with engine.begin() as connection:
        await connection.execute(text("DROP TABLE dead_a, dead_b"))
    await engine.dispose()
    (error,) = [one for one in found if one is not None]
    store = connect(Database(postgres_url))
    assert store.is_passing(error)
    assert not store.is_absence(error)
    await store.close()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_server_that_is_killed_is_absent_and_comes_back(postgres, driver):
    store = connect(Database(postgres.url.replace("postgresql:", f"postgresql+{driver}:"), prefix="gone_"))
    await store.open("apply")
    woken = asyncio.Event()
    async with store.watch(woken.set):
        await asyncio.wait_for(woken.wait(), 30)
        async with store.begin(synchronous=False) as unit:
            await unit.admit("billing", [("m", 1)])
            await asyncio.to_thread(postgres.kill)
            with pytest.raises(DatabaseUnavailable):
                await unit.commit()
        with pytest.raises(DatabaseUnavailable):
            await store.claim(1, [])
        woken.clear()
        await asyncio.to_thread(postgres.restart)
        await asyncio.wait_for(woken.wait(), 60)  # it listens again, by itself
        for _ in range(50):
            try:
                assert await store.claim(1, []) == []
            except StoreError:
                continue
            break
        async with store.begin(synchronous=False) as unit:
            assert list(await unit.admit("billing", [("m", 1)])) == [True]
    await store.close()
    drop(postgres.url, "gone_")


def test_what_a_driver_says_is_told_in_one_short_line():
    error = sqlite3.DatabaseError("it\nhas\nmany lines" * 200)
    assert str(translation(error, "claiming", "sqlite at shop.db")) == "sqlite at shop.db refused claiming: it"
