"""Carom's tables on the user's own MetaData are complete, and sessions of the app's engine emit."""

from __future__ import annotations

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, inspect, select, text
from sqlalchemy.orm import Session

from carom import App
from carom.errors import ConfigurationError
from carom.integrations.sqlalchemy import add_tables, engine, session_factory
from carom.ports import Database
from carom.runtime.app import App as _App
from carom.stores.migrations import LATEST
from databases import database_of_its_own, spoken_by


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'own.db'}"
        return
    with database_of_its_own(request.getfixturevalue("postgres_url")) as made:
        yield spoken_by("psycopg", made)


@pytest.fixture
def plain(url):
    made = create_engine(url)
    yield made
    made.dispose()


def app_on(url, **options):
    return App("embedded://", database=Database(url, tables="verify", **options), name="shop")


async def test_create_all_makes_what_an_app_that_only_verifies_accepts(url, plain):
    metadata = MetaData()
    Table("orders", metadata, Column("id", Integer, primary_key=True))
    add_tables(metadata)
    metadata.create_all(plain)
    async with app_on(url):
        pass
    with plain.connect() as connection:
        assert connection.execute(text("SELECT version FROM carom_version")).scalars().all() == [LATEST]


async def test_create_all_twice_changes_nothing(url, plain):
    metadata = MetaData()
    add_tables(metadata)
    metadata.create_all(plain)
    metadata.create_all(plain)
    async with app_on(url):
        pass


def test_the_trigger_that_wakes_the_relay_is_made_too(postgres_url):
    with database_of_its_own(postgres_url) as url:
        metadata = MetaData()
        add_tables(metadata, prefix="mine_")
        made = create_engine(spoken_by("psycopg", url))
        metadata.create_all(made)
        with made.connect() as connection:
            found = connection.scalar(text("SELECT COUNT(*) FROM pg_trigger WHERE tgname = 'mine_outbox_wake'"))
        assert found == 1
        app = app_on(url, prefix="mine_")
        with Session(made) as session, session.begin():
            app.emit(session, "order.placed", {"id": 1})
        made.dispose()


async def test_the_schema_of_the_metadata_is_the_schema_of_the_tables(postgres_url):
    with database_of_its_own(postgres_url) as url:
        metadata = MetaData(schema="shop")
        assert add_tables(metadata).outbox.fullname == "shop.carom_outbox"
        made = create_engine(spoken_by("psycopg", url))
        with made.begin() as connection:
            connection.execute(text("CREATE SCHEMA shop"))
            metadata.create_all(connection)
            assert inspect(connection).get_table_names() == []
        made.dispose()
        async with app_on(url, schema="shop"):
            pass


async def test_a_session_of_the_factory_emits_and_stays_readable_after_the_commit(url, plain):
    metadata = MetaData()
    outbox = add_tables(metadata).outbox
    metadata.create_all(plain)
    app = app_on(url)
    async with session_factory(app)() as session:
        app.emit(session, "order.placed", {"id": 1})
        await session.rollback()
        app.emit(session, "order.placed", {"id": 2})
        await session.commit()
        assert (await session.execute(select(outbox.c.body))).scalars().all() == [b'{"id":2}']
        assert session.sync_session.expire_on_commit is False
    await app.store.close()


def test_a_store_that_is_not_sql_has_no_engine():
    class Elsewhere(_App):
        store = object()

    with pytest.raises(ConfigurationError, match="not in SQL"):
        engine(Elsewhere())
