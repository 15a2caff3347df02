"""The shop whose tables are Alembic's, as its README says, on PostgreSQL and on SQLite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from databases import database_of_its_own, spoken_by

EXAMPLE = Path(__file__).parent.parent / "examples" / "alembic_shop"
SECONDS = 60


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'shop.db'}"
        return
    with database_of_its_own(request.getfixturevalue("postgres_url")) as made:
        yield spoken_by("psycopg", made)


@pytest.fixture
def shop(url, tmp_path):
    """Return a way to run a program of the example's."""

    def run(*words):
        return subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**os.environ, "SHOP_DATABASE": url},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    return run


@pytest.fixture
def alembic(shop):
    """Return a way to run Alembic, which has to end well."""

    def run(*words):
        done = shop("-m", "alembic", "-c", str(EXAMPLE / "alembic.ini"), *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def rows(url):
    """Return a way to look into the database."""
    engine = create_engine(url)

    def look(sql):
        with engine.connect() as connection:
            return connection.execute(text(sql)).fetchall()

    yield look
    engine.dispose()


def test_upgrade_order_check_and_downgrade(alembic, shop, rows, url):
    alembic("upgrade", "head")
    assert "No new upgrade operations detected" in alembic("check")
    placed = shop(str(EXAMPLE / "orders.py"), "ada", "1250")
    assert (placed.returncode, placed.stdout) == (0, "1\n"), placed.stderr
    refused = shop(str(EXAMPLE / "orders.py"), "bob", "0")
    assert refused.returncode == 1
    assert "nothing to pay" in refused.stderr
    assert rows("SELECT id, customer FROM orders") == [(1, "ada")]
    assert rows("SELECT routing_key, ordering_key FROM carom_outbox") == [("order.placed", "ada")]
    waits = shop("-m", "alembic", "-c", str(EXAMPLE / "alembic.ini"), "downgrade", "base")
    assert "1 messages in" in waits.stderr
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM carom_outbox"))
    alembic("downgrade", "base")
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]
    engine.dispose()


def test_without_the_revision_the_program_says_what_is_missing(alembic, shop):
    alembic("upgrade", "orders")
    done = shop(str(EXAMPLE / "orders.py"), "ada", "1250")
    assert done.returncode == 1
    assert "there is no table carom_outbox" in done.stderr
