"""Alembic makes, upgrades, leaves alone and removes Carom's tables, on real databases."""

from __future__ import annotations

import io

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, inspect, select, text

from carom import App
from carom.errors import ConfigurationError
from carom.integrations import alembic as carom
from carom.integrations.sqlalchemy import add_tables
from carom.ports import Database
from carom.stores import make_tables
from carom.stores.migrations import LATEST
from databases import database_of_its_own, spoken_by

PLACES = [("postgresql", None, "carom_"), ("postgresql", "messages", "shop_"), ("sqlite", None, "carom_")]


@pytest.fixture(params=PLACES, ids=lambda place: "-".join(str(part) for part in place))
def place(request, tmp_path):
    name, schema, prefix = request.param
    if name == "sqlite":
        yield f"sqlite:///{tmp_path / 'own.db'}", {"prefix": prefix}
        return
    with database_of_its_own(request.getfixturevalue("postgres_url")) as made:
        yield spoken_by("psycopg", made), {"schema": schema, "prefix": prefix}


@pytest.fixture
def connection(place):
    engine = create_engine(place[0])
    with engine.connect() as made:
        yield made
    engine.dispose()


def run(connection, step):
    """Run a step as a revision does."""
    with Operations.context(MigrationContext.configure(connection)):
        step()
    connection.commit()


def drift(connection, metadata, **options):
    """Return what autogenerate would write."""
    # Alembic takes every identity column for a changed default on SQLite, which has none: anybody's, not only Carom's.
    defaults = connection.dialect.name != "sqlite"
    settings = {"include_schemas": True, "compare_type": True, "compare_server_default": defaults}
    return compare_metadata(MigrationContext.configure(connection, opts={**settings, **options}), metadata)


async def test_an_upgrade_makes_what_an_app_that_only_verifies_accepts(place, connection):
    url, where = place
    run(connection, lambda: carom.upgrade(**where))
    async with App("embedded://", database=Database(url, tables="verify", **where)):
        pass


def test_a_second_upgrade_does_nothing(place, connection):
    _, where = place
    for _ in range(2):
        run(connection, lambda: carom.upgrade(**where))
    version = make_tables(MetaData(), **where).version
    assert connection.execute(select(version.c.version)).scalars().all() == [LATEST]


def test_autogenerate_sees_no_drift_where_the_tables_are_on_the_metadata(place, connection):
    _, where = place
    run(connection, lambda: carom.upgrade(**where))
    metadata = MetaData()
    add_tables(metadata, **where)
    assert drift(connection, metadata) == []


def test_autogenerate_sees_no_drift_where_it_is_told_to_leave_them_alone(place, connection):
    _, where = place
    run(connection, lambda: carom.upgrade(**where))
    assert drift(connection, MetaData()) != []
    assert drift(connection, MetaData(), include_object=carom.include_object(**where)) == []


def test_what_is_not_carom_s_is_compared_as_ever(place, connection):
    _, where = place
    metadata = MetaData()
    Table("orders", metadata, Column("id", Integer, primary_key=True))
    found = drift(connection, metadata, include_object=carom.include_object(**where))
    assert [one[0] for one in found] == ["add_table"]
    nothing = carom.include_object(**where, also=lambda *_: False)
    assert drift(connection, metadata, include_object=nothing) == []


def test_a_downgrade_leaves_nothing_behind(place, connection):
    _, where = place
    run(connection, lambda: carom.upgrade(**where))
    run(connection, lambda: carom.downgrade(**where))
    assert inspect(connection).get_table_names(where.get("schema")) == []
    if connection.dialect.name == "postgresql":
        left = "SELECT COUNT(*) FROM pg_proc WHERE proname LIKE '%outbox_wake'"
        assert connection.execute(text(left)).scalar() == 0
    run(connection, lambda: carom.upgrade(**where))


def test_a_downgrade_does_not_forget_what_was_promised_unless_it_is_told_to(place, connection):
    url, where = place
    run(connection, lambda: carom.upgrade(**where))
    App("embedded://", database=Database(url, **where)).emit_on_sync(connection, "order.placed", {"id": 1})
    connection.commit()
    with pytest.raises(ConfigurationError, match=r"1 messages in .* were promised"):
        run(connection, lambda: carom.downgrade(**where))
    connection.rollback()
    run(connection, lambda: carom.downgrade(**where, lose_messages=True))


@pytest.mark.parametrize("name", ["postgresql", "sqlite"])
def test_offline_the_statements_are_printed(name):
    written = io.StringIO()
    context = MigrationContext.configure(dialect_name=name, opts={"as_sql": True, "output_buffer": written})
    with Operations.context(context):
        carom.upgrade()
        carom.downgrade()
    said = written.getvalue()
    assert "CREATE TABLE" in said
    assert "INSERT INTO" in said
    assert said.index("CREATE TABLE") < said.index("DROP TABLE")
    assert ("pg_notify('carom_outbox', '')" in said) is (name == "postgresql")
    assert "\\:" not in said
