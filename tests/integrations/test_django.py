"""Django: migrations, checks, emitting in its transactions, its test cases, and addresses made of its settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connections
from sqlalchemy import create_engine, inspect, text

from brokers.rabbitmq.rabbit_stage import until
from carom.errors import ConfigurationError
from carom.integrations.django.connections import _mysql, database, fresh_connections, url
from databases import database_of_its_own, spoken_by
from processes import Programs

PROJECT = Path(__file__).parent / "django_project"
SECONDS = 120


@pytest.fixture(params=["postgresql", "sqlite"])
def place(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'own.db'}"
        return
    with database_of_its_own(request.getfixturevalue("postgres_url")) as made:
        yield spoken_by("psycopg", made)


@pytest.fixture
def other(request, place, tmp_path):
    """Where a second database of the same kind is."""
    if place.startswith("sqlite"):
        yield f"sqlite:///{tmp_path / 'other.db'}"
        return
    with database_of_its_own(request.getfixturevalue("postgres_url")) as made:
        yield spoken_by("psycopg", made)


@pytest.fixture
def django(place, other, tmp_path):
    """Return a way to run Django's own command."""

    def run(*words, fails=False, **environment):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "django", *words],
            cwd=tmp_path,
            env={
                **os.environ,
                "PROJECT_DEFAULT": place,
                "PROJECT_OTHER": other,
                "DJANGO_SETTINGS_MODULE": "project",
                "PYTHONPATH": str(PROJECT),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture
def tables(place):
    """Return a way to list the tables."""
    engine = create_engine(place)
    yield lambda: {name for name in inspect(engine).get_table_names() if name.startswith("post_")}
    engine.dispose()


def test_the_cases_of_the_project_pass(django):
    said = django("test", "cases")
    assert "Ran 23 tests" in said, said


def test_migrations_go_forwards_backwards_and_forwards_again(django, tables, place):
    assert "carom.W001" in django("check", "--database", "default")
    django("migrate")
    made = tables()
    assert made == {"post_outbox", "post_inbox", "post_lease", "post_version"}
    assert "carom.W001" not in django("check", "--database", "default")
    django("migrate", "carom", "zero")
    assert tables() == set()
    django("migrate")
    assert tables() == made
    if place.startswith("postgresql"):
        engine = create_engine(place)
        with engine.connect() as connection:
            found = connection.scalar(text("SELECT COUNT(*) FROM pg_trigger WHERE tgname = 'post_outbox_wake'"))
        engine.dispose()
        assert found == 1


def test_tables_that_carom_db_upgrade_made_are_taken_over(django, tables):
    django("migrate")
    engine_tables = tables()
    django("migrate", "--fake", "carom", "zero")
    django("migrate")
    assert tables() == engine_tables


def test_the_statements_can_be_printed(django, place):
    said = django("sqlmigrate", "carom", "0001")
    assert "post_outbox" in said
    assert "CREATE TABLE" in said
    assert ("pg_notify" in said) is place.startswith("postgresql")


def test_a_relay_of_an_app_that_is_not_there_says_so(django):
    said = django("carom_relay", fails=True, PROJECT_APP="nosuchmodule:app")
    assert "nosuchmodule cannot be imported" in said


async def test_another_database_has_a_relay_of_its_own(django, other, place, tmp_path):
    django("migrate", "--database", "other")
    environment = {"PROJECT_DEFAULT": place, "PROJECT_OTHER": other, "DJANGO_SETTINGS_MODULE": "project"}
    engine = create_engine(other)

    def leads():
        with engine.connect() as connection:
            return connection.scalar(text("SELECT COUNT(*) FROM post_lease WHERE name = 'relay'")) == 1

    with Programs(tmp_path, {**environment, "PYTHONPATH": str(PROJECT)}) as programs:
        programs.start("relay", "django", "carom_relay", "--using", "other")
        await until(leads, "a relay of the other database", SECONDS)
        assert programs.stop("relay") == 0, programs.said("relay")
    engine.dispose()


# -- addresses, made of settings


@pytest.fixture(scope="module", autouse=True)
def configured():
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})


def address(monkeypatch, **given):
    known = {**connections.settings["default"], "ENGINE": "django.db.backends.postgresql", **given}
    monkeypatch.setitem(connections.settings, "asked", known)
    try:
        return url("asked")
    finally:
        del connections["asked"]


def test_credentials_are_quoted(monkeypatch):
    made = address(monkeypatch, NAME="shop", USER="me@home", PASSWORD="p:a/s@s?w%rd", HOST="db", PORT="5433")  # noqa: S106 - made up
    assert made.render_as_string(hide_password=False) == (
        "postgresql+psycopg://me%40home:p%3Aa%2Fs%40s%3Fw%25rd@db:5433/shop"
    )
    assert "rd@" not in str(made)


def test_what_is_not_said_is_left_to_the_driver(monkeypatch):
    assert str(address(monkeypatch, NAME="shop")) == "postgresql+psycopg:///shop"


def test_a_socket_and_the_driver_s_options_are_kept_and_django_s_own_are_not(monkeypatch):
    made = address(
        monkeypatch, NAME="shop", HOST="/var/run", OPTIONS={"sslmode": "require", "isolation_level": 3, "pool": True}
    )
    assert dict(made.query) == {"sslmode": "require", "host": "/var/run"}
    assert made.host is None


def test_without_psycopg_the_options_are_asyncpg_s(monkeypatch):
    monkeypatch.setattr("carom.integrations.django.connections.find_spec", lambda _name: None)
    made = address(monkeypatch, NAME="shop", OPTIONS={"sslmode": "require"})
    assert (made.drivername, dict(made.query)) == ("postgresql", {"ssl": "require"})


def test_a_file_is_a_file(monkeypatch):
    made = address(monkeypatch, ENGINE="django.db.backends.sqlite3", NAME=Path("/srv/shop.db"))
    assert str(made) == "sqlite:////srv/shop.db"


def test_mysql_has_a_socket_and_a_character_set():
    assert _mysql({"charset": "utf8mb4", "init_command": "SET x"}, "/run/m.sock") == {
        "charset": "utf8mb4",
        "unix_socket": "/run/m.sock",
    }


def test_a_coroutine_function_has_no_connections_of_its_own():
    async def handle(_body: bytes) -> None: ...

    with pytest.raises(ConfigurationError, match="write def"):
        fresh_connections(handle)


def test_the_database_is_verified_and_not_made():
    made = database(keep_sent="1h")
    assert (made.tables, made.prefix, made.keep_sent) == ("verify", "carom_", "1h")
