"""Memory: what a process that publishes and consumes weighs while a million messages pass through it.

Rule: the weight is looked at from the first tenth on, when everything that is made once has been made.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import time
from pathlib import Path

from bench.application import KEY, application
from bench.cases import Benchmark, Case, Target
from bench.job import ORDER, Job, Order, Sample, rate
from carom import App, Emit, Message

BATCH = 250
BACKLOG = 5_000
"""How many messages wait in the queue at the most; so the process cannot be waiting for the broker to forget."""
LOOKS = 10
FAILING = 20
"""One of so many fails once and comes back, so that the way of a retry is in it too."""
MIB = 1024 * 1024


def _a_second(_messages: int) -> int:
    return 1_000


BENCHMARK = Benchmark(
    name="memory",
    about="MiB of a process through which a million messages pass, one in twenty of them twice",
    messages=1_000_000,
    rounds=1,
    warm_up=0.0,
    cases=(
        Case("carom", "carom publishes and consumes, one in 20 fails once", __name__, "memory", delay_ms=_a_second),
    ),
    targets={"carom": Target(at_most={"growth_mib": 8})},
)


async def memory(job: Job) -> Sample:
    """Publish and consume side by side, and look at the weight ten times."""
    ended = asyncio.Event()
    weights: list[float] = []
    handled = 0

    async def charge(order: Order, message: Message) -> None:
        nonlocal handled
        if message.attempt == 1 and message.headers.get("fails"):
            raise ConnectionError("the bank does not answer")
        handled += 1
        if handled % max(1, job.messages // LOOKS) == 0:
            weights.append(_weight())
        if handled == job.messages:
            ended.set()

    app = application(job, charge)
    async with app:
        started = time.perf_counter()
        for published in range(0, job.messages, BATCH):
            while published - handled > BACKLOG:
                await asyncio.sleep(0.005)
            await _publish(app, published, min(published + BATCH, job.messages))
        await ended.wait()
        sample = rate(job.messages, time.perf_counter() - started)
    more = {
        "first_mib": weights[0],
        "last_mib": weights[-1],
        "highest_mib": max(weights),
        "growth_mib": max(weights) - weights[0],
    }
    return Sample(sample.per_second, more)


async def _publish(app: App, first: int, last: int) -> None:
    numbers = range(first, last)
    await app.publish_many([Emit(KEY, ORDER, headers={"fails": number % FAILING == 0}) for number in numbers])


def _weight() -> float:
    """Return the resident memory of this process in MiB."""
    gc.collect()
    statistics = Path("/proc/self/statm")
    if statistics.exists():
        return int(statistics.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB
    said = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, check=True)  # noqa: S603, S607 - where there is no /proc there is a ps, and its arguments are ours
    return int(said.stdout) / 1024
