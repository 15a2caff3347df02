"""Processes at one broker file are killed at any moment: nothing confirmed is lost, nothing settled comes back.

Run as a program, this file is the process that is killed: ``produce`` or ``consume``, a broker file and a diary. What
is in the diary the process knew for certain when it died.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from carom.brokers.embedded import journal
from carom.brokers.embedded.file import FileBroker
from carom.core.effects import CONFIRMED
from carom.core.message import Message
from carom.core.topology import Topology, quorum
from carom.runtime.clock import RealClock

TOPOLOGY = Topology(queues=(quorum("jobs", delivery_limit=100),))
PATIENCE_S = 20
PREFETCH = 20
UNNOTED = 4 * PREFETCH
"""How much a process may have settled without having come to note it: no more than it had in its hands."""


# --- the processes that are killed


class Diary:
    """What a process knows for certain: a write survives the process that made it."""

    def __init__(self, path):
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, lines):
        os.write(self._fd, "".join(f"{line}\n" for line in lines).encode())


async def produce(path, diary, name, count):
    """Publish so many messages, several batches at once, and note those that are confirmed."""
    broker = FileBroker(path, RealClock())
    await broker.open()

    async def batch(numbers):
        messages = [Message(routing_key="jobs", id=f"{name}.{number}", body=b"x" * 100) for number in numbers]
        results = await broker.publish(messages)
        diary.note(message.id for message, result in zip(messages, results, strict=True) if result == CONFIRMED)

    for start in range(0, count, 40):
        await asyncio.gather(*(batch(range(first, first + 10)) for first in range(start, start + 40, 10)))
    await broker.close()


async def consume(path, diary, _name, count):
    """Acknowledge every second message and keep the others; note what was kept, and what was settled for certain.

    With a count, acknowledge everything until so many are in the diaries of all consumers.
    """
    broker = FileBroker(path, RealClock())
    await broker.open()
    came = asyncio.Event()
    settled, kept = [], []

    def receive(delivery):
        if count or len(settled) <= len(kept):
            delivery.ack()
            settled.append(delivery.message.id)
        else:
            kept.append(delivery.message.id)
        came.set()

    await broker.consume("jobs", receive, prefetch=PREFETCH, ended=print)
    while True:
        await came.wait()
        came.clear()
        certain, settled[:] = list(settled), []
        known, kept[:] = list(kept), []
        await broker.depths(["jobs"])  # answered after all that was asked before is on disk
        diary.note([f"settled {one}" for one in certain] + [f"kept {one}" for one in known])


# --- the tests


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="carom-kill-") as name:
        yield Path(name)


@contextmanager
def process(role, folder, name, count=0, snapshot_after=0):
    command = [
        sys.executable,
        __file__,
        role,
        folder / "broker.db",
        folder / f"{name}.diary",
        name,
        count,
        snapshot_after,
    ]
    started = subprocess.Popen([str(part) for part in command])
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def kill(victim):
    victim.send_signal(signal.SIGKILL)
    victim.wait()


def diary(folder, name):
    path = folder / f"{name}.diary"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def noted(folder, word):
    lines = [line for path in folder.glob("*.diary") for line in path.read_text().split("\n")[:-1]]
    return [line.partition(" ")[2] for line in lines if line.startswith(word)]


@asynccontextmanager
async def opened(folder):
    broker = FileBroker(folder / "broker.db", RealClock())
    await broker.open()
    try:
        await broker.declare(TOPOLOGY)
        yield broker
    finally:
        await broker.close()


async def until(came, what):
    deadline = time.monotonic() + PATIENCE_S
    while not came():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0)


async def emptied(broker):
    deadline = time.monotonic() + PATIENCE_S
    depth = None
    while depth is None or depth.ready or depth.unacked:
        assert time.monotonic() < deadline, f"waited in vain for an empty queue: {depth}"
        depth = (await broker.depths(["jobs"]))["jobs"]


async def test_every_confirmed_message_survives_the_death_of_its_publisher(folder):
    chance = random.Random(7)
    async with opened(folder):
        pass
    for round_ in range(10):
        name = f"producer-{round_}"
        enough = chance.choice([0, 1, 200, 1000, 3000])
        with process("produce", folder, name, 1_000_000, chance.choice([0, 20_000])) as victim:
            await until(lambda: len(diary(folder, name)) >= enough, f"{enough} confirms")  # noqa: B023 - called at once
            kill(victim)
        async with opened(folder) as broker:
            there = Counter(message.id for message in await broker.contents("jobs"))
        confirmed = [line for path in folder.glob("*.diary") for line in path.read_text().split("\n")[:-1]]
        missing = [one for one in confirmed if there[one] != 1]
        assert missing == [], f"round {round_}: confirmed and not there exactly once"
    assert len(confirmed) > 1000, "the processes lived long enough to prove something"


async def test_what_a_dead_process_held_comes_back_to_a_living_one_and_what_it_settled_does_not(folder):
    chance = random.Random(11)
    async with opened(folder) as broker:
        for round_ in range(5):
            ids = {f"{round_}.{number}" for number in range(400)}
            await broker.publish([Message(routing_key="jobs", id=one) for one in ids])
            name = f"consumer-{round_}"
            enough = chance.randrange(1, 38)
            with process("consume", folder, name, 0, chance.choice([0, 5_000])) as victim:
                await until(lambda: len(diary(folder, name)) >= enough, f"{enough} lines")  # noqa: B023 - called at once
                kill(victim)
            settled, kept = set(noted(folder, "settled")) & ids, set(noted(folder, "kept")) & ids
            left = ids - settled
            inbox = {}

            def receive(delivery, inbox=inbox):
                delivery.ack()
                inbox.setdefault(delivery.message.id, []).append(delivery)

            subscription = await broker.consume("jobs", receive, prefetch=1000, ended=print)
            await until(lambda: kept <= inbox.keys(), "what the dead process held")  # noqa: B023 - called at once
            await emptied(broker)
            await subscription.cancel()
            again = {one for one, deliveries in inbox.items() if deliveries[0].redelivered}
            assert set(inbox) <= left, "what was settled for certain came again"
            assert all(len(deliveries) == 1 for deliveries in inbox.values())
            assert kept <= again
            assert {inbox[one][0].message.headers["x-delivery-count"] for one in again} == {1}
            assert len(left - set(inbox)) <= UNNOTED


async def test_two_publish_and_two_consume_and_the_totals_match(folder):
    async with opened(folder) as broker:
        with (
            process("produce", folder, "p1", 2000),
            process("produce", folder, "p2", 2000),
            process("consume", folder, "c1", 4000),
            process("consume", folder, "c2", 4000, 20_000),
        ):
            await until(lambda: len(noted(folder, "settled")) >= 4000, "4000 settled")
            assert (await broker.depths(["jobs"]))["jobs"].ready == 0
        published = [f"{name}.{number}" for name in ("p1", "p2") for number in range(2000)]
        assert sorted(noted(folder, "settled")) == sorted(published)


async def test_consumers_that_are_killed_over_and_over_lose_nothing(folder):
    chance = random.Random(13)
    published = []
    async with opened(folder) as broker:
        for round_ in range(6):
            published += (ids := [f"{round_}.{number}" for number in range(500)])
            await broker.publish([Message(routing_key="jobs", id=one) for one in ids])
            name = f"victim-{round_}"
            enough = chance.randrange(1, 200)
            with process("consume", folder, name, 500) as victim:
                await until(lambda: len(diary(folder, name)) >= enough, f"{enough} settled")  # noqa: B023 - called at once
                kill(victim)
        with process("consume", folder, "last", 500):
            await emptied(broker)
        counted = Counter(noted(folder, "settled"))
        assert {one: times for one, times in counted.items() if times > 1} == {}, "settled for certain, and again"
        assert counted.keys() <= set(published)
        assert len(published) - len(counted) <= 7 * UNNOTED


if __name__ == "__main__":
    role, file, lines, own_name, many, after = sys.argv[1:]
    if int(after):
        journal.SNAPSHOT_AFTER = int(after)
    asyncio.run({"produce": produce, "consume": consume}[role](Path(file), Diary(lines), own_name, int(many)))
