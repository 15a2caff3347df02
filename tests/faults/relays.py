"""A shop on real servers whose relays are processes of their own, to be killed, stopped and continued.

Rule: whoever checks is not who is killed. What was committed is noted here, and what was handled is handled here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncSession

from brokers.rabbitmq.rabbit_stage import fresh, until
from carom import App
from carom.core.relaying import Patience
from carom.ports import Database
from stores.store_stage import drop

PROGRAM = """
import os
from carom import App
from carom.core.relaying import Patience
from carom.ports import Database

said = os.environ
database = Database(said["SHOP_DATABASE"], prefix=said["SHOP_PREFIX"], patience=Patience(attempts=3, first_ms=200))
name = said["SHOP_NAME"]
app = App(said["SHOP_BROKER"], database=database, exchange=name + ".events", namespace=name, name="shop")
"""
TAKEOVER_S = 15
"""A lease is five seconds, and the machine of the tests may be slow."""
DELIVERED_S = 60


class Process:
    """A relay in a process of its own; its log goes to a file."""

    def __init__(self, folder, number, environment):
        self.log = folder / f"relay-{number}.log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "carom", "relay", "shop:app", "--log-format", "json", "-v"]
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stderr=log)

    def said(self, event):
        """Return how often an event is in the log."""
        events = []
        for line in self.log.read_text().splitlines():
            with suppress(ValueError):  # the line that is being written
                events.append(json.loads(line).get("event"))
        return events.count(event)

    @property
    def is_stopped(self):
        with suppress(OSError):
            return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        return False

    def send(self, number):
        self.process.send_signal(number)

    def end(self):
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


class Shop:
    """Emits, handles what arrives, and knows what has to."""

    def __init__(self, folder, broker, database, concurrency):
        self.folder = folder
        self.name = fresh("shop")
        self.prefix = f"t{time.time_ns():x}_"
        self.url = "postgresql+asyncpg://" + database.partition("://")[2]
        self.plain_url = database
        self.broker = broker
        self.found = []
        self.handled = []
        self.seen = set()
        self.committed = set()
        self.rolled_back = set()
        self.processes = []
        self._numbers = iter(range(10**9))
        (folder / "shop.py").write_text(PROGRAM)
        self.app = App(
            broker,
            database=Database(self.url, prefix=self.prefix, patience=Patience(attempts=3, first_ms=200)),
            exchange=f"{self.name}.events",
            namespace=self.name,
            name="shop",
            observers=[self.found.append],
        )

        @self.app.listen("job.*", queue=f"{self.name}.jobs", concurrency=concurrency)
        async def work(number: int) -> None:
            self.handled.append(number)
            self.seen.add(number)

    def relay(self, failpoints=""):
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CAROM_")},
            "SHOP_BROKER": self.broker,
            "SHOP_DATABASE": self.url,
            "SHOP_PREFIX": self.prefix,
            "SHOP_NAME": self.name,
            "CAROM_FAILPOINTS": failpoints,
        }
        process = Process(self.folder, len(self.processes), environment)
        self.processes.append(process)
        return process

    async def leading(self, process):
        await until(lambda: process.said("Leading") > 0, "the lead", TAKEOVER_S)
        return process

    def session(self):
        return AsyncSession(self.app.store.engines.asynchronous)

    async def emit(self, count, *, key=None, to="job.do", rolled_back=0):
        """Emit numbers in a transaction that is committed, and others in one that is not; return the former."""
        numbers = [next(self._numbers) for _ in range(count)]
        lost = [next(self._numbers) for _ in range(rolled_back)]
        async with self.session() as session:
            for number in lost:
                self.app.emit(session, to, number, key=key)
            await session.flush()
            await session.rollback()
            for number in numbers:
                self.app.emit(session, to, number, key=None if key is None else f"{key}{number % 5}")
            await session.commit()
        self.committed.update(numbers)
        self.rolled_back.update(lost)
        return numbers

    async def delivered(self, within_s=DELIVERED_S):
        """Wait until everything that was committed is handled, and the outbox is empty; nothing else ever was."""
        await until(lambda: self.committed <= self.seen, "every message", within_s)
        await until(self._is_empty, "an empty outbox", within_s)
        assert not self.rolled_back & self.seen
        assert self.seen <= self.committed

    def first_arrivals(self, lane):
        """Return the numbers of an ordering key in the order in which each arrived first."""
        return list(dict.fromkeys(number for number in self.handled if number % 5 == lane))

    def in_order(self):
        return all(self.first_arrivals(lane) == sorted(self.first_arrivals(lane)) for lane in range(5))

    def twice(self):
        """Return how many arrived more than once."""
        return sum(count > 1 for count in Counter(self.handled).values())

    async def backlog(self):
        return await self.app.store.backlog()

    async def _is_empty(self):
        found = await self.backlog()
        return found.ready + found.later + found.failing == 0


@asynccontextmanager
async def shop(folder, broker, database, *, relay=False, concurrency=1):
    """Give a shop that handles; it relays itself only when it is said to."""
    made = Shop(folder, broker, database, concurrency)
    try:
        async with _started(made.app, relay):
            yield made
            for process in made.processes:
                process.end()
    finally:
        for process in made.processes:
            process.end()
        drop(made.plain_url, made.prefix)


@asynccontextmanager
async def _started(app, relay):
    await app.start(relay=relay)
    try:
        yield
    finally:
        await app.stop(grace="5s")
