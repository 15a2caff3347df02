"""A delay: how long after it was asked for a message comes back, on a broker that has nothing else to do.

Rule: it is timed from the moment a handler fails to the moment it is called again, in one process, by one clock.
"""

from __future__ import annotations

import asyncio
import statistics
import time

from bench.application import KEY, application
from bench.cases import Benchmark, Case, Target
from bench.job import ORDER, Job, Order, Sample
from carom import Message

ASKED_MS = 2_000
PAUSE_SECONDS = 0.05


def _two_seconds(_messages: int) -> int:
    return ASKED_MS


BENCHMARK = Benchmark(
    name="delay",
    about="milliseconds from a failure to the next attempt when the delay is 2 s and the broker idle",
    messages=60,
    rounds=1,
    warm_up=0.0,
    cases=(Case("carom", "carom, a delay of 2 s", __name__, "delay", delay_ms=_two_seconds),),
    targets={"carom": Target(at_least={"median_ms": 2_000}, at_most={"median_ms": 2_050})},
)


async def delay(job: Job) -> Sample:
    """Publish one message after the other, let each fail once, and time its return."""
    ended = asyncio.Event()
    failed: dict[str, float] = {}
    waited: list[float] = []

    async def charge(order: Order, message: Message) -> None:
        if message.attempt == 1:
            failed[message.id] = time.perf_counter()
            raise ConnectionError("the bank does not answer")
        waited.append((time.perf_counter() - failed[message.id]) * 1_000)
        if len(waited) == job.messages:
            ended.set()

    app = application(job, charge)
    async with app:
        for _ in range(job.messages):
            await app.publish(KEY, ORDER)
            await asyncio.sleep(PAUSE_SECONDS)
        await ended.wait()
    waited.sort()
    return Sample(
        None,
        {"median_ms": statistics.median(waited), "p95_ms": waited[int(0.95 * (len(waited) - 1))], "max_ms": waited[-1]},
    )
