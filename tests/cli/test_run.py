"""``carom run`` runs an app until it is told to stop, and stops whatever its handlers do."""

import signal

import pytest
from cli_stage import SHOP, carom, real, running, taken

from carom.cli.run import run

SLOW = """
import asyncio, threading, time
from carom import App

app = App("embedded:///shop.db", name="shop", exchange="shop", namespace="shop")

@app.listen("slow", queue="shop.slow")
async def slow(order: float) -> None:
    await asyncio.sleep(order)

@app.listen("stuck", queue="shop.stuck")
def stuck(order: int) -> None:
    threading.Event().wait()

@app.listen("blocking", queue="shop.blocking")
async def blocking(order: int) -> None:
    while True:
        time.sleep(0.01)
"""
USAGE = 2
LOG = ("--log-format", "json", "-v")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


def publish(folder, key, payload, app="shop:app"):
    found = real("publish", key, payload, "--app", app, cwd=folder)
    assert found.returncode == 0, found.stderr
    return found.stdout.decode().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(number, folder):
    identity = publish(folder, "order.created", "{}")
    with running("run", "shop:app", *LOG, cwd=folder) as worker:
        worker.wait_for("Handled", message_id=identity)
        worker.process.send_signal(number)
        assert worker.end() == 0, worker.log
        assert worker.process.stdout.read() == ""


def test_the_log_is_for_people_unless_it_is_asked_for(folder):
    publish(folder, "order.created", '{"reject": "a\\u001b[2Jb"}')
    with running("run", "shop:app", cwd=folder) as worker:
        line = worker.wait_for_line("dead letter")
        worker.process.terminate()
        assert worker.end() == 0
    assert " ERROR    message '" in line
    assert "\x1b" not in worker.log
    assert "shop listens to shop.charge" in worker.log
    (dead,) = taken(folder / "shop.db", "shop.charge.dlq")
    assert dead.headers["carom-reason"] == "rejected"


def test_quiet_keeps_what_goes_well_to_itself(folder):
    publish(folder, "order.created", '{"reject": "no"}')
    with running("run", "shop:app", "-q", cwd=folder) as worker:
        worker.wait_for_line("dead letter")
        worker.process.terminate()
        assert worker.end() == 0
    assert worker.log.count("\n") == 1


def test_another_broker_can_be_named(folder):
    with running("run", "shop:app", "--json", "--broker", "embedded:///other.db", cwd=folder) as worker:
        worker.wait_for("Started")
        worker.process.terminate()
        assert worker.end() == 0
    assert not (folder / "shop.db").exists()
    assert (folder / "other.db").exists()


def test_what_runs_may_finish_within_the_grace(folder):
    with running("run", "slow:app", *LOG, cwd=folder) as worker:
        worker.wait_for("Started")
        identity = publish(folder, "slow", "0.3", "slow:app")
        worker.wait_for("Received", message_id=identity)
        worker.process.terminate()
        worker.wait_for("Handled", message_id=identity)
        assert worker.end() == 0


def test_what_does_not_finish_within_the_grace_is_handed_back(folder):
    with running("run", "slow:app", *LOG, "--grace", "100ms", cwd=folder) as worker:
        worker.wait_for("Started")
        identity = publish(folder, "slow", "1000", "slow:app")
        worker.wait_for("Received", message_id=identity)
        worker.process.terminate()
        worker.wait_for("HandedBack", message_id=identity)
        assert worker.end() == 0
    assert [message.id for message in taken(folder / "shop.db", "shop.slow")] == [identity]


def test_a_second_signal_does_not_wait_for_the_grace(folder):
    with running("run", "slow:app", *LOG, "--grace", "1h", cwd=folder) as worker:
        worker.wait_for("Started")
        identity = publish(folder, "slow", "1000", "slow:app")
        worker.wait_for("Received", message_id=identity)
        worker.process.terminate()
        worker.wait_for("Stopping")
        worker.process.terminate()
        assert worker.end() == 0, worker.log
    assert [message.id for message in taken(folder / "shop.db", "shop.slow")] == [identity]


def test_a_thread_that_hangs_does_not_keep_the_process(folder):
    with running("run", "slow:app", *LOG, "--grace", "0s", cwd=folder) as worker:
        worker.wait_for("Started")
        identity = publish(folder, "stuck", "1", "slow:app")
        worker.wait_for("Received", message_id=identity)
        worker.process.terminate()
        worker.wait_for_line("1 handlers did not end")
        assert worker.end() == 1
    assert [message.id for message in taken(folder / "shop.db", "shop.stuck", at_least=1)] == [identity]


def test_a_handler_that_blocks_the_loop_does_not_keep_the_process_after_a_second_signal(folder):
    with running("run", "slow:app", *LOG, cwd=folder) as worker:
        worker.wait_for("Started")
        identity = publish(folder, "blocking", "1", "slow:app")
        worker.wait_for("Received", message_id=identity)
        worker.process.terminate()
        worker.process.send_signal(signal.SIGINT)
        worker.wait_for_line("a handler does not let go")
        assert worker.end() == 1
    assert [message.id for message in taken(folder / "shop.db", "shop.blocking", at_least=1)] == [identity]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("shop",), 2, "such as shop:app"),
        (("shop:nope",), 78, "it has shop:app"),
        (("shpo:app",), 78, "did you mean 'shop'?"),
        (("shop:app", "--broker", "smoke://signals"), 78, "no broker answers to"),
        (("shop:app", "--broker", "amqp://ada:secret@127.0.0.1:1/"), 69, "127.0.0.1"),
        (("shop:app", "--broker", "embedded:///no/such/folder/x.db"), None, "/no/such/folder"),
        (("shop:app", "--broker", "embedded:///text.db"), None, "text.db"),
        (("shop:app", "--grace", "a while"), 2, "is not a duration"),
    ],
)
def test_what_keeps_it_from_starting_is_one_sentence(arguments, code, said, folder):
    (folder / "text.db").write_text("this is not a database, " * 100)
    found = real("run", *arguments, cwd=folder)
    assert found.returncode == code if code else found.returncode in {69, 77, 78}
    assert said in found.stderr.decode()
    if code != USAGE:
        assert found.stderr.count(b"\n") == 1
    assert b"Traceback" not in found.stderr
    assert b"secret" not in found.stderr
    assert found.stdout == b""


def test_where_it_failed_is_shown_to_who_asks(folder):
    found = real("run", "shop:app", "--broker", "smoke://signals", "-vv", cwd=folder)
    assert found.returncode == 78
    assert b"Traceback" in found.stderr


def test_an_app_that_listens_to_nothing_has_nothing_to_run(tmp_path):
    (tmp_path / "idle_app.py").write_text("from carom import App\napp = App()\n")
    found = real("run", "idle_app:app", cwd=tmp_path)
    assert found.returncode == 78
    assert b"no listeners" in found.stderr


def test_the_help_names_the_variable_of_every_option():
    found = " ".join(carom("run", "--help").output.split())
    for name in ("BROKER", "GRACE", "LOG_FORMAT", "APP_DIR", "JSON", "VERBOSE", "QUIET"):
        assert f"CAROM_{name}" in found


def test_the_file_with_the_brokers_url_is_read_again_while_it_runs(tmp_path, monkeypatch):
    file = tmp_path / "url"
    file.write_text("amqp://user:first@host/", encoding="utf-8")
    monkeypatch.setenv("CAROM_BROKER_FILE", str(file))
    url = run.make_context("run", ["shop:app"]).params["broker"]
    file.write_text("amqp://user:second@host/", encoding="utf-8")
    assert url() == "amqp://user:second@host/"
    assert run.make_context("run", ["shop:app", "--broker", "amqp://host/"]).params["broker"] == "amqp://host/"
