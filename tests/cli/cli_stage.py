"""How the tests of the command line call it: in this process, or as a real one.

Rule: a real process has a deadline that is far beyond what a slow machine takes, and is never left behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

from click.testing import CliRunner

from carom import adapters
from carom.cli.program import program
from carom.runtime.clock import RealClock

DEADLINE_S = 60.0

SHOP = """
from carom import App, Reject

app = App("embedded:///shop.db", name="shop", exchange="shop", namespace="shop")

@app.listen("order.*", queue="shop.charge", retry=("2s", "5s"))
async def charge(order: dict) -> None:
    if "reject" in order:
        raise Reject(order["reject"])
"""


def environment(**variables):
    """Return the environment of this process without any setting of Carom, and with these variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CAROM_")}
    return {**inherited, "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8", **variables}


def carom(*arguments, stdin=None, **variables):
    """Run a command in this process."""
    unset = dict.fromkeys((name for name in os.environ if name.startswith("CAROM_")), None)
    return CliRunner().invoke(program, arguments, input=stdin, prog_name="carom", env={**unset, **variables})


def real(*arguments, cwd, stdin=b"", **variables):
    """Run a command as a process of its own, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "carom", *arguments],
        cwd=cwd,
        input=stdin,
        env=environment(**variables),
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )


class Running:
    """A command that runs beside the test, whose log lines are read as they come."""

    def __init__(self, process):
        self.process = process
        self.lines = []

    def wait_for(self, event, **facts):
        """Read the log, which is in JSON, up to an event with these facts."""
        for line in self._more():
            found = json.loads(line)
            if found.get("event") == event and facts.items() <= found.items():
                return found
        raise AssertionError(f"the process ended without {event}:\n{''.join(self.lines)}")

    def wait_for_line(self, part):
        """Read the log up to a line with this in it."""
        for line in self._more():
            if part in line:
                return line
        raise AssertionError(f"the process ended without {part!r}:\n{''.join(self.lines)}")

    def end(self):
        """Wait for the process to end by itself; returns its exit code."""
        list(self._more())
        return self.process.wait(DEADLINE_S)

    @property
    def log(self):
        """What it said so far."""
        return "".join(self.lines)

    def _more(self):
        while line := self.process.stderr.readline():
            self.lines.append(line)
            yield line


@contextmanager
def running(*arguments, cwd, **variables):
    """Start a command; it is gone when the test is."""
    process = subprocess.Popen(
        [sys.executable, "-m", "carom", *arguments],
        cwd=cwd,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(DEADLINE_S, process.kill)
    watchdog.start()
    try:
        yield Running(process)
    finally:
        watchdog.cancel()
        watchdog.join()
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def taken(file, queue, at_least=0):
    """Take what is ready out of a queue of a file, once there is that much: the dead are not missed at once."""

    async def take():
        broker = adapters.broker(f"embedded:///{file}", RealClock(), lambda _event: None)
        await broker.open()
        try:
            found = []
            deadline = time.monotonic() + DEADLINE_S
            while (delivery := await broker.get(queue)) is not None or len(found) < at_least:
                if delivery is not None:
                    delivery.ack()
                    found.append(delivery.message)
                assert time.monotonic() < deadline, f"{queue} has {len(found)} messages and not {at_least}"
            return found
        finally:
            await broker.close()

    return asyncio.run(take())
