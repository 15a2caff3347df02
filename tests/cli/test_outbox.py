"""``carom outbox`` shows and changes what waits; ``carom relay`` and ``carom run`` publish it.

Rule: the database is a file, and so is the broker; who writes into them is another process or another connection.
"""

import asyncio
import json
import signal
import sqlite3
from contextlib import closing

import pytest
from cli_stage import carom, running
from sqlalchemy.ext.asyncio import AsyncSession

from carom import App
from carom.cli.output import DRIFT, NOTHING_MATCHED, OK, PARTLY

SHOP = """
from carom import App
app = App("embedded:///broker.db", database="sqlite+aiosqlite:///outbox.db", name="shop")
"""
LISTENING = """
@app.listen("order.*", queue="shop.charge")
async def charge(order: dict) -> None: ...
"""
LOG = ("--log-format", "json", "-v")
USAGE = 2


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "listening.py").write_text(SHOP + LISTENING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "shop", raising=False)
    return tmp_path


def emit(folder, *keys, **options):
    """Emit messages into the file as a program of its own would; nobody relays."""

    async def work():
        app = App("embedded://", database=f"sqlite+aiosqlite:///{folder}/outbox.db", name="shop", observers=())
        await app.start(consume=False, relay=False)
        async with AsyncSession(app.store.engines.asynchronous) as session, session.begin():
            for key in keys:
                app.emit(session, key, {}, **options)
        await app.stop()

    asyncio.run(work())


def fail(folder, seq, *, parked):
    far = 4_000_000_000_000
    values = ("no route\x1b[2J", far if parked else None, None if parked else far, seq)
    sql = "UPDATE carom_outbox SET attempts = 3, last_error = ?, parked_at = ?, wait_until = ? WHERE seq = ?"
    with closing(sqlite3.connect(folder / "outbox.db")) as connection:
        connection.execute(sql, values)
        connection.commit()


def outbox(*arguments):
    found = carom("outbox", *arguments, "--json")
    return found.exit_code, json.loads(found.stdout)


@pytest.fixture
def filled(folder):
    emit(folder, "order.created", "order.paid")
    emit(folder, "order.late", delay="1h")
    emit(folder, "order.failing", "order.parked")
    fail(folder, 4, parked=False)
    fail(folder, 5, parked=True)
    return folder


def test_status_counts_by_state(filled):
    code, found = outbox("status", "shop:app")
    assert code == OK
    counts = {name: found["outbox"][name] for name in ("ready", "later", "failing", "parked", "sent")}
    assert counts == {"ready": 2, "later": 1, "failing": 1, "parked": 1, "sent": 0}
    text = carom("outbox", "status", "shop:app").stdout
    assert "the oldest for" in text
    assert "carom outbox list --state parked" in text


def test_list_shows_what_waits_and_escapes_what_does_not_print(filled):
    code, found = outbox("list", "shop:app")
    assert code == OK
    assert [row["seq"] for row in found["messages"]] == [1, 2, 3, 4, 5]
    text = carom("outbox", "list", "shop:app", "--state", "parked", "--limit", "1").stdout
    assert "\x1b" not in text
    assert "order.parked" in text
    assert "no route\\x1b" in text


def test_nothing_to_list_is_an_exit_code_of_its_own(folder):
    emit(folder)
    assert carom("outbox", "list", "shop:app").exit_code == NOTHING_MATCHED
    assert outbox("retry", "shop:app", "--all", "--yes")[0] == NOTHING_MATCHED
    assert outbox("cancel", "shop:app", "7", "--yes") == (
        NOTHING_MATCHED,
        {"schema": 1, "changed": 0, "dry_run": False, "messages": []},
    )


def test_parked_and_failing_messages_are_retried(filled):
    code, found = outbox("retry", "shop:app", "--state", "parked", "--yes")
    assert (code, found["changed"]) == (OK, 1)
    code, found = outbox("retry", "shop:app", "--all", "--yes")
    assert (code, found["changed"]) == (OK, 1)
    assert outbox("status", "shop:app")[1]["outbox"]["ready"] == 4


def test_what_waits_until_it_is_due_is_expedited(filled):
    code, found = outbox("expedite", "shop:app", "3", "--yes")
    assert (code, found["changed"]) == (OK, 1)
    assert outbox("status", "shop:app")[1]["outbox"]["later"] == 0


def test_messages_are_cancelled_by_number_and_those_that_are_not_there_are_missed(filled):
    code, found = outbox("cancel", "shop:app", "1", "5", "99", "--yes")
    assert (code, found["changed"]) == (PARTLY, 2)
    assert [row["seq"] for row in outbox("list", "shop:app")[1]["messages"]] == [2, 3, 4]


def test_a_dry_run_changes_nothing(filled):
    code, found = outbox("cancel", "shop:app", "--all", "--dry-run")
    assert (code, found["changed"], found["dry_run"], len(found["messages"])) == (OK, 0, True, 5)
    shown = carom("outbox", "cancel", "shop:app", "1", "--dry-run")
    assert "order.created" in shown.stdout
    assert "1 message in all" in shown.stderr
    assert len(outbox("list", "shop:app")[1]["messages"]) == 5


def test_nothing_is_changed_without_being_asked_or_told(filled):
    assert carom("outbox", "cancel", "shop:app", "--all").exit_code == USAGE
    assert carom("outbox", "cancel", "shop:app").exit_code == USAGE
    assert carom("outbox", "cancel", "shop:app", "1", "--all", "--yes").exit_code == USAGE
    assert len(outbox("list", "shop:app")[1]["messages"]) == 5


def test_missing_tables_are_not_made_by_looking(folder):
    found = carom("outbox", "status", "shop:app")
    assert found.exit_code == DRIFT
    assert "there is no table" in found.stderr


def test_another_database_may_be_named(filled):
    found = carom("outbox", "list", "shop:app", "--database", "sqlite+aiosqlite:///elsewhere.db")
    assert found.exit_code == DRIFT
    found = carom("outbox", "list", "shop:app", CAROM_DATABASE="sqlite+aiosqlite:///elsewhere.db")
    assert found.exit_code == DRIFT


def test_a_relay_publishes_what_was_emitted_and_ends_when_it_is_told_to(folder):
    emit(folder, "order.created", "order.paid")
    with running("run", "listening:app", "--no-relay", *LOG, cwd=folder) as worker:
        worker.wait_for("Started")
        with running("relay", "shop:app", *LOG, cwd=folder) as relay:
            assert relay.wait_for("Relayed")["count"] == 2
            worker.wait_for("Handled")
            relay.process.send_signal(signal.SIGTERM)
            assert relay.end() == 0, relay.log
        worker.process.terminate()
        assert worker.end() == 0


def test_run_relays_too_and_needs_no_listener_for_that(folder):
    emit(folder, "order.created")
    with running("run", "listening:app", *LOG, cwd=folder) as worker:
        worker.wait_for("Handled")
        worker.process.terminate()
        assert worker.end() == 0
    with running("run", "shop:app", *LOG, cwd=folder) as worker:
        worker.wait_for("Leading")
        worker.process.terminate()
        assert worker.end() == 0
    found = carom("run", "shop:app", "--no-relay")
    assert "nothing to run" in found.stderr


def test_a_relay_needs_a_database(folder):
    (folder / "without.py").write_text('from carom import App\napp = App("embedded:///broker.db", name="shop")\n')
    found = carom("relay", "without:app")
    assert found.exit_code == 78
    assert "has no database whose outbox" in found.stderr
