"""What joins a session's unit of work, in the ways sessions are used."""

import asyncio

import pytest
from sqlalchemy import Integer, Text, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from carom.core.message import Message
from carom.core.relaying import Entry
from carom.errors import ConfigurationError
from carom.ports import Database
from carom.stores import connect
from carom.testing.contracts.store.stage import promised


class Tables(DeclarativeBase):
    pass


class Order(Tables):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    note: Mapped[str] = mapped_column(Text, unique=True)


@pytest.fixture
def url(tmp_path):
    return f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}"


async def opened(url, **settings):
    store = connect(Database(url, **settings))
    await store.open("apply")
    async with store.engines.asynchronous.begin() as connection:
        await connection.run_sync(Tables.metadata.create_all)
    return store


async def ids(store):
    return [row.message.id for row in await store.claim(1000, [])]


async def test_a_row_goes_with_the_rows_of_the_application(url):
    store = await opened(url)
    with Session(store.engines.synchronous) as session:
        session.add(Order(id=1, note="a"))
        store.add(session, [promised("a")])
        session.commit()
        session.add(Order(id=2, note="a"))
        store.add(session, [promised("b")])
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
        session.add(Order(id=3, note="c"))
        store.add(session, [promised("c")])
        session.commit()
    assert await ids(store) == ["a", "c"]
    await store.close()


async def test_a_query_flushes_what_was_promised_before_it(url):
    """As it does with any other object: the row is in the transaction then, and nowhere else."""
    store = await opened(url)
    with Session(store.engines.synchronous) as session:
        store.add(session, [promised("a")])
        assert session.execute(text("SELECT count(*) FROM carom_outbox")).scalar() == 1
        session.rollback()
    assert await ids(store) == []
    await store.close()


async def test_what_is_expunged_is_not_written(url):
    store = await opened(url)
    with Session(store.engines.synchronous) as session:
        store.add(session, [promised("a")])
        session.expunge_all()
        store.add(session, [promised("b")])
        session.commit()
    assert await ids(store) == ["b"]
    await store.close()


async def test_scoped_sessions_are_sessions(url):
    store = await opened(url)
    scoped = scoped_session(sessionmaker(store.engines.synchronous))
    store.add(scoped, [promised("a")])
    scoped.commit()
    scoped.remove()
    waiting = async_scoped_session(async_sessionmaker(store.engines.asynchronous), scopefunc=asyncio.current_task)
    store.add(waiting, [promised("b")])
    await waiting.commit()
    await waiting.remove()
    assert await ids(store) == ["a", "b"]
    await store.close()


async def test_a_session_with_several_databases_finds_the_outbox_by_its_table(url, tmp_path):
    store = await opened(url)
    engine = store.engines.synchronous
    with Session(binds={Order: engine}) as session:
        store.add(session, [promised("a")])
        with pytest.raises(ConfigurationError, match="bind the outbox too"):
            session.flush()
    with Session(binds={Order: engine, store.tables.outbox: engine}) as session:
        store.add(session, [promised("b")])
        session.commit()
    assert await ids(store) == ["b"]
    await store.close()


async def test_many_rows_are_few_statements(url):
    store = await opened(url)
    statements = []
    engine = store.engines.asynchronous.sync_engine
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    async with AsyncSession(store.engines.asynchronous) as session:
        store.add(session, [promised(f"{number}") for number in range(500)])
        await session.commit()
    assert len([one for one in statements if one.startswith("INSERT")]) == 1
    assert len(await ids(store)) == 500
    await store.close()


async def test_one_session_can_promise_in_two_outboxes(url):
    one, two = await opened(url), await opened(url, prefix="other_")
    with Session(one.engines.synchronous) as session:
        one.add(session, [promised("one")])
        two.add(session, [promised("two")])
        session.commit()
    assert (await ids(one), await ids(two)) == (["one"], ["two"])
    await one.close()
    await two.close()


async def test_a_row_that_nobody_can_read_holds_up_nobody(url):
    """Somebody wrote into the table by hand; a relay is told what is wrong with it, and parks it."""
    store = await opened(url)
    async with AsyncSession(store.engines.asynchronous) as session:
        store.add(session, [Entry(Message(id="a")), Entry(Message(id="b", headers={"h": 1})), Entry(Message(id="c"))])
        await session.flush()
        await session.execute(text("""UPDATE carom_outbox SET headers = '{"h": {"$decimal": "x"}}' WHERE id = 'b'"""))
        await session.commit()
    rows = await store.claim(10, [])
    assert [(row.message.id, bool(row.flaw)) for row in rows] == [("a", False), ("b", True), ("c", False)]
    await store.close()


async def test_a_session_in_a_thread_wakes_whoever_waits_in_a_loop(url):
    store = await opened(url)
    woken = asyncio.Event()

    def emit():
        with Session(store.engines.synchronous) as session:
            store.add(session, [promised("a")])
            session.commit()

    async with store.watch(woken.set):
        await asyncio.to_thread(emit)
        await asyncio.wait_for(woken.wait(), 10)
    await store.close()
