"""The tables as they are drawn are the tables as they are made, and their names are checked."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, create_engine, text
from sqlalchemy.engine import make_url

from carom.errors import ConfigurationError, SchemaMismatch
from carom.ports import Database
from carom.stores import connect, make_tables
from carom.stores.migrations import LATEST, statements
from stores.store_stage import drop

PREFIX = "drawn_"


def differences(engine, schema=None):
    """Return what Alembic would change to make the database what is drawn."""
    metadata = MetaData()
    make_tables(metadata, schema, PREFIX)

    def ours(name, kind, parents):
        return (parents.get("table_name") or name or "").startswith(PREFIX) if kind != "schema" else name == schema

    options = {"include_name": ours, "include_schemas": schema is not None, "compare_type": True}
    with engine.connect() as connection:
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)


@pytest.fixture
def postgres_engine(postgres_url):
    engine = create_engine(make_url(postgres_url).set(drivername="postgresql+psycopg"))
    yield engine
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA IF EXISTS drawn CASCADE"))
    engine.dispose()
    drop(postgres_url, PREFIX)


def test_what_is_drawn_is_what_is_made_on_sqlite(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with engine.begin() as connection:
        for statement in statements("sqlite", None, PREFIX):
            connection.exec_driver_sql(statement)
    assert differences(engine) == []
    engine.dispose()


@pytest.mark.parametrize("schema", [None, "drawn"])
def test_what_is_drawn_is_what_is_made_on_postgresql(postgres_engine, schema):
    with postgres_engine.begin() as connection:
        if schema:
            connection.execute(text(f"CREATE SCHEMA {schema}"))
        for statement in statements("postgresql", schema, PREFIX):
            connection.exec_driver_sql(statement)
    assert differences(postgres_engine, schema) == []


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_what_is_drawn_can_be_made_without_our_statements(postgres_engine, tmp_path, database):
    """A test of the user's calls create_all."""
    engine = postgres_engine if database == "postgresql" else create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    metadata = MetaData()
    tables = make_tables(metadata, None, PREFIX)
    metadata.create_all(engine)
    with engine.begin() as connection:
        row = {"id": "a", "exchange": "", "routing_key": "", "body": b"", "content_type": ""}
        connection.execute(tables.outbox.insert(), {**row, "properties": "", "headers": "", "ordering_key": ""})
        assert connection.execute(tables.outbox.select()).one().attempts == 0
    assert differences(engine) == []
    engine.dispose()


async def test_the_tables_can_be_in_a_schema(postgres_url, postgres_engine):
    store = connect(Database(postgres_url, schema="drawn", prefix=PREFIX))
    await store.open("apply")
    assert await store.claim(1, []) == []
    await store.close()
    with postgres_engine.connect() as connection:
        found = connection.execute(text("SELECT count(*) FROM drawn.drawn_outbox")).scalar()
    assert found == 0


async def test_a_newer_version_in_the_database_is_accepted(tmp_path):
    """Versions only add: what this one needs is still there."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}"
    store = connect(Database(url))
    await store.open("apply")
    await store.close()
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO carom_version VALUES (:version, 0)"), {"version": LATEST + 1})
        connection.execute(text("ALTER TABLE carom_outbox ADD COLUMN from_the_future text"))
    for mode in ("apply", "verify"):
        again = connect(Database(url))
        await again.open(mode)
        await again.close()
    engine.dispose()


async def test_a_missing_column_is_named(tmp_path):
    url = f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}"
    store = connect(Database(url))
    await store.open("apply")
    await store.close()
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE carom_outbox DROP COLUMN last_error"))
    engine.dispose()
    again = connect(Database(url))
    with pytest.raises(SchemaMismatch, match="carom_outbox has no column last_error"):
        await again.open("apply")
    await again.close()


async def test_a_version_that_was_not_finished_is_named(tmp_path):
    url = f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}"
    store = connect(Database(url))
    await store.open("apply")
    await store.close()
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM carom_version"))
    engine.dispose()
    again = connect(Database(url))
    with pytest.raises(SchemaMismatch, match=f"of version 0, and {LATEST} is needed"):
        await again.open("verify")
    await again.close()


@pytest.mark.parametrize("name", ["Carom", "1st", "a b", 'x"; DROP TABLE', "x" * 42, "ä"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(ConfigurationError, match="small letters"):
        make_tables(MetaData(), prefix=name)
    with pytest.raises(ConfigurationError, match="small letters"):
        make_tables(MetaData(), schema=name)
    with pytest.raises(ConfigurationError, match="small letters"):
        connect(Database("sqlite+aiosqlite://", prefix=name))


def test_sqlite_has_no_schemas():
    with pytest.raises(ConfigurationError, match="SQLite has no schemas"):
        connect(Database("sqlite+aiosqlite://", schema="shop"))


@pytest.mark.parametrize("name", ["postgresql", "sqlite", "mysql", "mariadb"])
def test_nothing_is_left_to_do_after_the_latest_version(name):
    assert statements(name, since=LATEST) == []
    assert statements(name)[-1].startswith("INSERT INTO")


def test_a_database_that_nobody_knows_is_refused():
    with pytest.raises(ConfigurationError, match="oracle"):
        statements("oracle")
