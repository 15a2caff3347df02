"""The servers under the tests: they leave nothing behind however the tests end, and can be done anything to.

Whatever was started is recognised by the scratch directory, in the environment, the arguments or the directory of a
process.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pika
import pytest

from servers.existing import ExistingRabbit, can_enter
from servers.keeper import Keeper
from servers.management import Refused
from servers.programs import POSTGRES, RABBITMQ, Missing, find, install, source

TESTS = Path(__file__).parent.parent
SECONDS = 30

# A server as bad as they come: it ignores every request to end, as do its child and a daemon that it leaves to itself.
STUBBORN = "trap '' TERM INT HUP QUIT; sleep 1000 & (setsid sleep 1000 &) & sleep 1000"

TEST_WITH_A_SERVER = """
import os, threading
from servers.fixtures import HOUSE
from servers.programs import search_path

def test_with_a_server(pytestconfig):
    keeper = pytestconfig.stash[HOUSE].keeper
    environment = {{"PATH": search_path(), "HOME": str(keeper.scratch)}}
    keeper.ask("start", "stubborn", ["/bin/sh", "-c", {command!r}], environment, None, {end:d})
    print("SCRATCH", keeper.scratch, flush=True)
    {ending}
"""
TEST_WITH_REAL_SERVERS = """
import threading
from servers.fixtures import HOUSE

def test_with_real_servers(pytestconfig, rabbitmq_url, postgres_url):
    print("SCRATCH", pytestconfig.stash[HOUSE].keeper.scratch, flush=True)
    threading.Event().wait()
"""
FOR_EVER = "threading.Event().wait()"


@dataclass(frozen=True)
class Run:
    """A pytest of its own, in a process group of its own, as a terminal would start it."""

    process: subprocess.Popen[str]

    def scratch(self) -> Path:
        """Wait until it has servers and return their directory."""
        assert self.process.stdout is not None
        said = ""
        for line in self.process.stdout:
            said += line
            if found := re.search(r"SCRATCH (\S+)", line):
                return Path(found[1])
        pytest.fail(f"the run ended before it had servers: {said}")


@pytest.fixture
def pytest_run(tmp_path):
    """Start pytest on a file with this text; what is left of it is killed when the test is over."""
    processes = []

    def start(text: str, **environment: str) -> Run:
        (tmp_path / "test_inner.py").write_text(text, encoding="utf-8")
        options = ["-p", "servers.fixtures", "-p", "no:cacheprovider", "-p", "no:carom", "-p", "no:hypothesispytest"]
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-s", *options, "-c", os.devnull, "--rootdir", tmp_path, tmp_path],
            env={**os.environ, "PYTHONPATH": str(TESTS), **environment},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        return Run(process)

    yield start
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def living(scratch: Path) -> list[str]:
    """Return the processes that have to do with a scratch directory."""
    mark = str(scratch)
    if not Path("/proc/self").exists():
        listed = subprocess.run(["ps", "-axwwE", "-o", "command="], check=True, capture_output=True, text=True)
        return [line for line in listed.stdout.splitlines() if mark in line]
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes()
            seen = command + (process / "environ").read_bytes() + bytes((process / "cwd").readlink())
            if mark.encode() in seen:
                found.append(f"{process.name}: {command!r}")
    return found


def nothing_is_left(scratch: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while scratch.exists() or living(scratch):
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {list(scratch.glob('*'))} and {living(scratch)}")
        threading.Event().wait(0.05)


# However the tests end, nothing is left behind.


@pytest.mark.parametrize(
    ("ending", "code", "end"), [("pass", 0, signal.SIGTERM), ("raise RuntimeError", 1, 9), ("os._exit(9)", 9, 9)]
)
def test_nothing_is_left_when_the_tests_are_over(pytest_run, ending, code, end):
    run = pytest_run(TEST_WITH_A_SERVER.format(command=STUBBORN, end=end, ending=ending))
    scratch = run.scratch()
    run.process.communicate(timeout=SECONDS)
    assert run.process.returncode == code
    nothing_is_left(scratch)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_is_left_when_the_tests_are_ended(pytest_run, ending):
    run = pytest_run(TEST_WITH_A_SERVER.format(command=STUBBORN, end=9, ending=FOR_EVER))
    scratch = run.scratch()
    assert living(scratch), "the servers cannot be seen, so that nothing would be proved"
    os.killpg(run.process.pid, ending)  # as a terminal does it: to the whole group
    run.process.communicate(timeout=SECONDS)
    nothing_is_left(scratch)


def test_a_ctrl_c_is_over_only_when_nothing_is_left(pytest_run):
    run = pytest_run(TEST_WITH_A_SERVER.format(command=STUBBORN, end=9, ending=FOR_EVER))
    scratch = run.scratch()
    os.killpg(run.process.pid, signal.SIGINT)
    run.process.communicate(timeout=SECONDS)
    assert not scratch.exists()
    assert not living(scratch)


def test_nothing_is_left_while_a_process_of_the_tests_still_holds_the_pipe(pytest_run):
    ending = f"os.fork()\n    {FOR_EVER}"
    run = pytest_run(TEST_WITH_A_SERVER.format(command=STUBBORN, end=9, ending=ending))
    scratch = run.scratch()
    os.kill(run.process.pid, signal.SIGKILL)
    nothing_is_left(scratch)


def test_nothing_is_left_of_real_servers_when_the_tests_are_killed(pytest_run):
    run = pytest_run(TEST_WITH_REAL_SERVERS, CAROM_TEST_BROKER="", CAROM_TEST_DATABASE="")
    scratch = run.scratch()
    seen = "".join(living(scratch))
    assert "beam" in seen
    assert "postgres" in seen
    os.kill(run.process.pid, signal.SIGKILL)
    nothing_is_left(scratch)


if sys.platform == "linux":  # elsewhere no kernel helps with this

    def test_a_watchdog_that_is_killed_takes_its_servers_along():
        keeper = Keeper()
        keeper.ask("start", "one", ["/bin/sleep", "1000"], {"HOME": str(keeper.scratch)}, None, 15)
        keeper._process.kill()
        keeper.close()
        deadline = time.monotonic() + SECONDS
        while living(keeper.scratch) and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        left = living(keeper.scratch)
        (keeper.scratch / "one.log").unlink()
        keeper.scratch.rmdir()
        assert not left


def test_what_a_run_wants_undone_is_undone(tmp_path):
    keeper = Keeper()
    keeper.ask("undo", ["/bin/sh", "-c", f"echo undone > '{tmp_path}/undone'"])
    keeper.close()
    assert (tmp_path / "undone").read_text(encoding="utf-8") == "undone\n"
    nothing_is_left(keeper.scratch)


def test_an_order_that_cannot_be_obeyed_is_an_error_and_ends_nothing():
    keeper = Keeper()
    try:
        with pytest.raises(OSError, match="no-such-program"):
            keeper.ask("start", "one", ["no-such-program"], {}, None, 15)
        keeper.ask("start", "one", ["/bin/sleep", "1000"], {}, None, 15)
        assert keeper.ask("exited", "one") is None
        keeper.ask("kill", "one")
        assert keeper.ask("exited", "one") == -signal.SIGKILL
    finally:
        keeper.close()


# Who asks for no server has none.


def test_tests_that_ask_for_no_server_start_none(pytest_run):
    text = """
from servers.fixtures import HOUSE

def test_without_servers(pytestconfig):
    assert not pytestconfig.stash[HOUSE].has_started
"""
    run = pytest_run(text)
    said, _ = run.process.communicate(timeout=SECONDS)
    assert run.process.returncode == 0, said


def test_tests_that_stop_the_server_are_not_run_on_somebody_elses_and_named(pytest_run):
    tests = ("def test_that_kills(rabbitmq): ...", "def test_other(): ...", "def test_pg(postgres): ...")
    run = pytest_run(
        "\n".join(tests),
        CAROM_TEST_BROKER="amqp://somebody.invalid/",
        CAROM_TEST_DATABASE="postgresql://somebody.invalid/",
    )
    said, _ = run.process.communicate(timeout=SECONDS)
    assert run.process.returncode == 0, said
    assert "1 passed, 2 deselected" in said
    assert "somebody else's" in said
    assert "::test_that_kills\n" in said
    assert "::test_pg\n" in said


# The servers can be done anything to.


def test_a_killed_rabbitmq_comes_back_with_what_it_confirmed(rabbitmq):
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("faults.kept", durable=True, arguments={"x-queue-type": "quorum"})
        channel.basic_publish("", "faults.kept", b"kept", pika.BasicProperties(delivery_mode=2), mandatory=True)
        rabbitmq.remember_queues()
        rabbitmq.kill()
        assert not rabbitmq.answers()
        with pytest.raises(pika.exceptions.AMQPError):
            connection.process_data_events(SECONDS)
    rabbitmq.restart()
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        _, _, body = connection.channel().basic_get("faults.kept", auto_ack=True)
    assert body == b"kept"
    rabbitmq.delete_queue("faults.kept")


def test_rabbitmq_is_alarmed_stopped_and_closed_and_heals(rabbitmq):
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
    rabbitmq.close_connections()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        connection.process_data_events(SECONDS)
    rabbitmq.raise_memory_alarm()
    assert "memory" in rabbitmq.ctl("eval", "rabbit_alarm:get_alarms().")
    rabbitmq.stop_app()
    assert not rabbitmq.answers()
    rabbitmq.heal()
    assert rabbitmq.answers()
    assert "memory" not in rabbitmq.ctl("eval", "rabbit_alarm:get_alarms().")


def test_a_killed_postgres_comes_back(postgres):
    assert postgres.answers()
    postgres.kill()
    assert not postgres.answers()
    postgres.heal()
    assert postgres.answers()


def test_a_vhost_is_of_one_test_alone(rabbitmq_url, empty_rabbitmq_url):
    assert can_enter(empty_rabbitmq_url)
    assert empty_rabbitmq_url != rabbitmq_url


def test_a_run_on_somebody_elses_rabbitmq_has_a_vhost_and_deletes_it(rabbitmq):
    existing = ExistingRabbit(f"{rabbitmq.url}?management={rabbitmq.management_url}")
    assert existing.vhost is not None
    assert can_enter(existing.url)
    assert "management" not in existing.url
    existing.close()
    assert not can_enter(existing.url)
    with pytest.raises(Refused, match="404"):
        rabbitmq.management.ask("GET", "vhosts", existing.vhost)


def test_a_run_on_a_rabbitmq_that_lets_nobody_make_vhosts_uses_the_one_it_was_given(rabbitmq):
    existing = ExistingRabbit(f"{rabbitmq.url}?management=http://127.0.0.1:9")
    assert (existing.vhost, existing.url) == (None, rabbitmq.url)
    existing.close()
    assert can_enter(rabbitmq.url)


# Where the programs are, and where they are not.


def program_in(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (folder / name).chmod(0o755)


def test_the_newest_complete_programs_are_taken(tmp_path):
    server = replace(POSTGRES, folders=(f"{tmp_path}/*/bin",), needs=("carom-stand-in", "carom-stand-in-2"))
    for version in ("9", "15", "100"):
        program_in(tmp_path / version / "bin", *server.needs)
    program_in(tmp_path / "200" / "bin", server.needs[0])
    assert find(server) == tmp_path / "100" / "bin"


def test_programs_are_found_without_a_path(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert find(RABBITMQ) or find(POSTGRES) or source(RABBITMQ)


def test_what_is_missing_is_said_with_what_to_install():
    absent = replace(RABBITMQ, folders=(), needs=("carom-stand-in",))
    with pytest.raises(Missing) as missing:
        source(absent, docker=lambda: None)
    for words in (
        "RabbitMQ",
        "apt-get install rabbitmq-server",
        "brew install rabbitmq",
        "Docker",
        "CAROM_TEST_BROKER",
    ):
        assert words in str(missing.value)


def apt_that(tmp_path: Path, does: str) -> str:
    """Make a program that notes what it is asked to do and what it finds, and then does this."""
    program = tmp_path / "apt-get"
    script = f'#!/bin/sh\ncd "{tmp_path}"\necho "$@" >> asked\n[ -x policy ] && ./policy; echo $? >> policies\n{does}\n'
    program.write_text(script, encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def test_installing_starts_no_service_and_leaves_no_policy(tmp_path):
    install(apt_that(tmp_path, "exit 0"), ["one", "two"], tmp_path / "policy")
    asked = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    assert asked == ["update", "install -y --no-install-recommends one two"]
    assert (tmp_path / "policies").read_text(encoding="utf-8").split() == ["101", "101"]
    assert not (tmp_path / "policy").exists()


def test_a_policy_of_somebody_else_is_left_alone(tmp_path):
    policy = tmp_path / "policy"
    policy.write_text("#!/bin/sh\nexit 7\n", encoding="utf-8")
    policy.chmod(0o700)
    install(apt_that(tmp_path, "exit 0"), ["one"], policy)
    assert policy.read_text(encoding="utf-8") == "#!/bin/sh\nexit 7\n"
    assert stat.S_IMODE(policy.stat().st_mode) == 0o700


def test_what_apt_cannot_install_is_said_with_what_it_said(tmp_path):
    with pytest.raises(Missing, match=r"(?s)could not install one; it said.*no such package"):
        install(apt_that(tmp_path, "echo no such package; exit 100"), ["one"], tmp_path / "policy")
    assert not (tmp_path / "policy").exists()
