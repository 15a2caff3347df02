"""Both engines come from whatever the user has, and what cannot be had is said with what to install."""

import asyncio
import sqlite3

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from carom.errors import ConfigurationError
from carom.ports import Database
from carom.stores import connect
from carom.stores.engines import Engines
from carom.testing.contracts.store.stage import promised

PRAGMAS = {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 30_000, "synchronous": 2}
HOST = "127.0.0.1:5432/shop"


@pytest.mark.parametrize(
    ("given", "waiting", "threaded"),
    [
        (f"postgresql://{HOST}", "asyncpg", "psycopg"),
        (f"postgresql+asyncpg://{HOST}", "asyncpg", "psycopg"),
        (f"postgresql+psycopg://{HOST}", "psycopg", "psycopg"),
        (f"postgresql+psycopg2://{HOST}", "asyncpg", "psycopg"),
        ("sqlite:///shop.db", "aiosqlite", "pysqlite"),
        ("sqlite+aiosqlite:///shop.db", "aiosqlite", "pysqlite"),
        (f"mysql://{HOST}", "aiomysql", "pymysql"),
        (f"mariadb+pymysql://{HOST}", "aiomysql", "pymysql"),
        (make_url(f"postgresql://{HOST}"), "asyncpg", "psycopg"),
    ],
)
def test_an_address_gives_both(given, waiting, threaded):
    engines = Engines(given)
    assert engines.asynchronous.dialect.driver == waiting
    assert engines.synchronous.dialect.driver == threaded
    assert engines.synchronous is engines.synchronous


def test_an_engine_that_was_given_is_used():
    engine = create_engine(f"postgresql+psycopg://{HOST}")
    engines = Engines(engine)
    assert engines.synchronous is engine
    assert engines.asynchronous.dialect.driver == "psycopg"
    waiting = create_async_engine(f"postgresql+asyncpg://{HOST}")
    assert Engines(waiting).asynchronous is waiting
    assert Engines(waiting).synchronous.dialect.driver == "psycopg"


async def test_an_engine_that_was_given_is_not_closed(tmp_path):
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    store = connect(Database(engine))
    await store.open("apply")
    pool = engine.pool
    await store.close()
    assert engine.pool is pool
    await engine.dispose()


def test_credentials_are_kept_and_not_shown():
    engines = Engines("postgresql://someone:secret-word@db.example:6543/shop?sslmode=require")
    assert engines.where == "postgresql at db.example:6543/shop"
    assert engines.asynchronous.url.password == "secret-word"  # noqa: S105 - it is not one
    assert engines.synchronous.url.password == "secret-word"  # noqa: S105 - it is not one
    assert Engines("sqlite+aiosqlite://").where == "sqlite at memory"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("not an address", "cannot be read"),
        ("oracle://someone:secret-word@host/shop", "postgresql, sqlite, mysql and mariadb"),
        (7, "of type int"),
    ],
)
def test_what_is_no_database_is_refused(given, said):
    with pytest.raises(ConfigurationError, match=said) as caught:
        Engines(given)
    assert "secret-word" not in str(caught.value)


def test_a_driver_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr("carom.stores.engines.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"asyncpg, psycopg.*pip install 'carom\[postgresql\]'"):
        Engines(f"postgresql://{HOST}")
    with pytest.raises(ConfigurationError, match=r"carom\[sqlite\]"):
        Engines("sqlite:///shop.db")


def test_a_driver_for_threads_that_is_not_installed_is_named(monkeypatch):
    engines = Engines(f"postgresql+asyncpg://{HOST}")
    monkeypatch.setattr("carom.stores.engines.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"no driver for threads.*carom\[psycopg\]"):
        _ = engines.synchronous


async def test_memory_is_one_database_for_all_and_has_no_threads():
    store = connect(Database("sqlite+aiosqlite://"))
    await store.open("apply")
    lease = await store.lead("one", 1000)

    async def emit(number):
        async with AsyncSession(store.engines.asynchronous) as session:
            store.add(session, [promised(f"{number}")])
            await session.commit()

    await asyncio.gather(*(emit(number) for number in range(20)))
    assert len(await store.claim(100, [])) == 20
    assert await store.lead("one", 1000) == lease
    with pytest.raises(ConfigurationError, match="memory"):
        async with store.begin(synchronous=True):
            pass
    await store.close()


async def test_sqlite_is_made_to_keep_its_promises(tmp_path):
    """Savepoints that roll back, writers that wait for each other, foreign keys that are looked at."""
    store = connect(Database(f"sqlite:///{tmp_path / 'shop.db'}"))
    await store.open("apply")
    async with store.engines.asynchronous.connect() as connection:
        for pragma, value in (
            ("journal_mode", "wal"),
            ("foreign_keys", 1),
            ("busy_timeout", 30_000),
            ("synchronous", 2),
        ):
            assert (await connection.execute(text(f"PRAGMA {pragma}"))).scalar() == value

    async def count_up(synchronous):
        async with store.begin(synchronous=synchronous) as unit:
            session = unit.session
            await (asyncio.to_thread(_count_up, session) if synchronous else session.run_sync(_count_up))
            await unit.commit()

    await asyncio.gather(*(count_up(number % 2 == 0) for number in range(20)))
    async with store.engines.asynchronous.connect() as connection:
        found = list((await connection.execute(text("SELECT x FROM n ORDER BY x"))).scalars())
    assert found == list(range(20))
    await store.close()


async def test_a_file_that_others_use_as_it_was_is_opened_all_the_same(tmp_path):
    path = tmp_path / "shop.db"
    engines = Engines(f"sqlite+aiosqlite:///{path}")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("CREATE TABLE orders (id int)")
    other.execute("BEGIN")
    other.execute("SELECT * FROM orders").fetchall()
    modes = []
    for ends in (other.rollback, other.close):
        async with engines.asynchronous.connect() as connection:
            modes.append((await connection.execute(text("PRAGMA journal_mode"))).scalar())
        await engines.asynchronous.dispose()
        ends()
    assert modes == ["delete", "wal"]
    await engines.close()


def _count_up(session):
    session.execute(text("CREATE TABLE IF NOT EXISTS n (x int)"))
    count = session.execute(text("SELECT count(*) FROM n")).scalar()
    session.execute(text("INSERT INTO n VALUES (:x)"), {"x": count})
