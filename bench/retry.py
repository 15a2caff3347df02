"""Retrying: everything fails once, waits on the broker, comes back and succeeds.

Two stretches are timed: N messages are taken, fail, are published to the delay queue, confirmed and acknowledged;
and, when all of them have returned, N messages are taken again and succeed. The waiting between the two is not
timed: its length is chosen, and the broker moves the messages meanwhile. ``per_second`` is N by the sum of both.

Rule: the delay is longer than the first stretch, so that the two never overlap; it is an error if they do.
"""

from __future__ import annotations

import asyncio
import time

from bench import consume
from bench.application import CONCURRENCY, application
from bench.cases import Benchmark, Case, Target, limit
from bench.job import PREFETCH, Job, Order, Sample, Stopwatch, both, rate
from bench.peers.pika_asyncio import returned
from carom import Message

MESSAGES_A_SECOND = 3_000
"""How many fail in a second at the least; a machine slower than that would need a longer delay."""


def _until_all_failed(messages: int) -> int:
    return 2_000 + 1_000 * messages // MESSAGES_A_SECOND


def _a_second(_messages: int) -> int:
    return 1_000


BENCHMARK = Benchmark(
    name="retry",
    about="fail once, wait on the broker, return, succeed; the waiting is not counted",
    messages=20_000,
    rounds=3,
    cases=(
        Case(
            "carom",
            f"carom, all fail, then all succeed, concurrency {PREFETCH}",
            __name__,
            "apart",
            needs="full queue",
            delay_ms=_until_all_failed,
        ),
        Case(
            f"carom-{CONCURRENCY}",
            f"the same at the default concurrency of {CONCURRENCY}",
            __name__,
            "apart_by_default",
            needs="full queue",
            delay_ms=_until_all_failed,
        ),
        Case(
            "carom-flowing",
            "carom, some return while others fail, 1 s of waiting counted",
            __name__,
            "flowing",
            needs="full queue",
            delay_ms=_a_second,
        ),
        limit(
            "pika asyncio callbacks: copy, confirm, ack; then consume",
            "retry",
            "full queue",
            delay_ms=_until_all_failed,
        ),
    ),
    targets={"carom": Target(at_least={"per_second": 10_000})},
)
seed = consume.seed


async def apart(job: Job) -> Sample:
    """Let every message fail; wait until all have returned; let every message succeed."""
    return await _apart(job, PREFETCH)


async def apart_by_default(job: Job) -> Sample:
    """Do the same with as few at a time as by default: each waits for the confirm of its copy."""
    return await _apart(job, CONCURRENCY)


async def _apart(job: Job, concurrency: int) -> Sample:
    failed = await _fail(job, concurrency)
    await returned(job)
    return both(failed, await consume.consume(job))


async def _fail(job: Job, concurrency: int) -> Sample:
    ended = asyncio.Event()
    watch = Stopwatch(job, ended.set)
    early = 0

    async def charge(order: Order, message: Message) -> None:
        nonlocal early
        early += message.attempt > 1
        watch.count()
        raise ConnectionError("the bank does not answer")

    app = application(job, charge, concurrency=concurrency)
    async with app:
        await ended.wait()
        while app.busy:  # the last ones wait for their confirms
            await asyncio.sleep(0.001)
        sample = watch.sample_until(time.perf_counter())
    if early:
        raise RuntimeError(f"{early} messages returned after {job.delay_ms} ms, before the last had failed")
    return sample


async def flowing(job: Job) -> Sample:
    """Fail and succeed side by side, as in real life; the second that the last one waits is not taken out."""
    ended = asyncio.Event()
    left = job.total
    started = 0.0

    async def charge(order: Order, message: Message) -> None:
        nonlocal left, started
        if message.attempt == 1:
            started = started or time.perf_counter()
            raise ConnectionError("the bank does not answer")
        left -= 1
        if not left:
            ended.set()

    async with application(job, charge, concurrency=PREFETCH):
        await ended.wait()
        return rate(job.total, time.perf_counter() - started)
