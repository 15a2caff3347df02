"""The harness gives an app with a database one of its own, on virtual time, and relays what is emitted in it.

Rule: what a test of a user's would say is said here as he would say it.
"""

import os
import time

import pytest
from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from carom import App, ConfigurationError, Emit
from carom.ports import Database
from carom.testing import Harness
from stores.store_stage import drop

NOWHERE = "postgresql+asyncpg://nobody.invalid/shop"


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


def shop(**options):
    app = App("embedded://", database=NOWHERE, observers=(), name="shop", **options)

    @app.listen("order.created", queue="billing.charge", retry=("1m",))
    async def charge(order: dict):
        if order["id"] == 13:
            raise ConnectionError("the bank does not answer")

    return app


async def test_a_handler_is_called_when_the_transaction_is_committed():
    async with Harness(shop(), tables=Base.metadata) as h:
        async with h.transaction() as session:
            session.add(Order(id=1))
            message = h.app.emit(session, "order.created", {"id": 1})
            assert h.emitted("#") == ()
        assert [one.id for one in h.handled("billing.charge")] == [message.id]
        assert [one.id for one in h.emitted("order.*")] == [message.id]
        async with h.session() as session:
            assert (await session.scalars(select(Order.id))).all() == [1]


async def test_a_week_passes_in_seconds_and_everything_is_on_time():
    async with Harness(shop()) as h:
        async with h.transaction() as session:
            h.app.emit_many(session, [Emit("order.created", {"id": day}, delay=f"{day}d") for day in range(1, 8)])
        started = time.monotonic()
        for day in range(1, 8):
            await h.advance("1d")
            assert len(h.attempts("billing.charge")) == day
        assert time.monotonic() - started < 60
        assert len(h.handled("billing.charge")) == 7
        await h.publish("order.created", {"id": 13})
        await h.advance("1m")
        assert [one.attempt for one in h.dead("billing.charge")] == [2]


async def test_each_harness_has_an_empty_database_that_is_gone_afterwards():
    app = shop()
    for _ in range(2):
        async with Harness(app, tables=[Base.metadata]) as h:
            path = h.store.engines.url.database
            assert os.access(path, os.W_OK)
            async with h.transaction() as session:
                assert (await session.scalars(select(Order.id))).all() == []
                session.add(Order(id=1))
        assert not os.access(path, os.F_OK)
    assert "nobody.invalid" in str(app.store.engines.url), "the app has its own again"


async def test_a_database_may_be_given_and_then_nothing_in_it_is_removed(tmp_path):
    url = f"sqlite+aiosqlite:///{tmp_path}/kept.db"
    for expected in ([], [1]):
        async with Harness(shop(), database=url, tables=Base.metadata) as h:
            async with h.transaction() as session:
                found = (await session.scalars(select(Order.id))).all()
                assert found == expected
                if not found:
                    session.add(Order(id=1))
                h.app.emit(session, "order.created", {"id": 2})
            assert len(h.handled("billing.charge")) == 1


async def test_a_real_database_is_relayed_from_too(postgres_url, tmp_path):
    database = Database("postgresql+asyncpg://" + postgres_url.partition("://")[2], prefix="harness_")
    try:
        async with Harness(shop(), database=database) as h:
            async with h.transaction() as session:
                h.app.emit(session, "order.created", {"id": 2})
            await until_handled(h)
    finally:
        drop(postgres_url, "harness_")


async def until_handled(h):
    """A server tells of a commit when it likes: settle until it has."""
    deadline = time.monotonic() + 20
    while not h.handled("billing.charge"):
        assert time.monotonic() < deadline
        await h.settle()


async def test_an_app_without_a_database_has_no_transactions():
    app = App("embedded://", observers=())
    async with Harness(app) as h:
        with pytest.raises(ConfigurationError, match="no database"):
            h.session()
    with pytest.raises(ConfigurationError, match="no database"):
        async with Harness(app, tables=Base.metadata):
            pass


async def test_handlers_in_threads_have_a_database_too():
    app = App("embedded://", database=NOWHERE, observers=(), name="shop")
    seen = []

    @app.listen("order.created", queue="billing.charge")
    def charge(order: dict) -> None:
        with Session(app.store.engines.synchronous) as session:
            seen.extend(session.scalars(select(Order.id)))

    async with Harness(app, tables=Base.metadata) as h:
        async with h.transaction() as session:
            session.add(Order(id=5))
            app.emit(session, "order.created", {})
        assert seen == [5]
