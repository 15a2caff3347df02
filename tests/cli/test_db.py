"""``carom db`` makes the tables, compares them, and deletes what has been there long enough."""

import json
import sqlite3

import pytest
from cli_stage import SHOP, carom

MISSING, UNAVAILABLE, USAGE, CONFIGURATION = 5, 69, 2, 78


@pytest.fixture
def url(tmp_path):
    return f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}"


def test_upgrading_makes_the_tables_and_checking_finds_them(url, tmp_path):
    assert carom("db", "check", "--database", url).exit_code == MISSING
    assert carom("db", "upgrade", "--database", url).exit_code == 0
    found = carom("db", "check", "--database", url, "--json")
    assert found.exit_code == 0
    assert json.loads(found.stdout) == {"schema": 1, "database": f"sqlite at {tmp_path / 'shop.db'}", "fine": True}
    assert carom("db", "upgrade", "--database", url).exit_code == 0


def test_what_is_missing_is_said_and_nothing_is_made(url):
    found = carom("db", "upgrade", "--dry-run", "--database", url)
    assert found.exit_code == MISSING
    assert "there is no table carom_outbox" in found.stderr
    assert "carom db upgrade" in found.stderr
    assert carom("db", "check", "--database", url).exit_code == MISSING


def test_the_names_can_be_chosen(url, tmp_path):
    assert carom("db", "upgrade", "--database", url, "--prefix", "shop_").exit_code == 0
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    assert {"shop_outbox", "shop_inbox", "shop_lease", "shop_version"} <= names
    assert carom("db", "check", "--database", url).exit_code == MISSING
    found = carom("db", "check", "--database", url, "--prefix", "No Name")
    assert found.exit_code == CONFIGURATION
    assert "small letters" in found.stderr


def test_pruning_deletes_what_is_past_its_time_and_nothing_else(url, tmp_path):
    carom("db", "upgrade", "--database", url)
    connection = sqlite3.connect(tmp_path / "shop.db")
    with connection:
        for sent_at in (1, 2, 3, None):
            connection.execute(
                "INSERT INTO carom_outbox (id, exchange, routing_key, body, content_type, properties, headers, "
                "ordering_key, sent_at) VALUES ('a', '', '', '', '', '', '', '', ?)",
                (sent_at,),
            )
        for seen_at in (1, 2, 10**15):
            connection.execute("INSERT INTO carom_inbox VALUES ('billing', ?, 0, ?)", (str(seen_at), seen_at))
    connection.close()
    found = carom("db", "prune", "--database", url, "--batch", "2", "--json")
    assert found.exit_code == 0
    said = json.loads(found.stdout)
    assert (said["sent"], said["seen"]) == (3, 2)
    assert json.loads(carom("db", "prune", "--database", url, "--json").stdout)["sent"] == 0


def test_a_database_that_nobody_runs_is_unavailable():
    found = carom("db", "check", "--database", "postgresql+asyncpg://someone:secret-word@127.0.0.1:1/shop")
    assert found.exit_code == UNAVAILABLE
    assert "127.0.0.1:1/shop" in found.stderr
    assert "secret-word" not in found.stderr + found.stdout


def test_without_a_database_it_is_asked_which(tmp_path, monkeypatch):
    assert "--database URL" in carom("db", "check").stderr
    (tmp_path / "db_shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    found = carom("db", "check", "db_shop:app")
    assert found.exit_code == USAGE
    assert "db_shop:app has no database" in found.stderr
    assert carom("db", "check", "db_shop:app", "--database", "sqlite:///x.db").exit_code == MISSING


def test_the_database_comes_from_the_environment_too(url, tmp_path):
    (tmp_path / "url").write_text(url)
    assert carom("db", "upgrade", CAROM_DATABASE_FILE=str(tmp_path / "url")).exit_code == 0
    assert carom("db", "check", CAROM_DATABASE=url).exit_code == 0
