"""Latency: from `emit` in one process, through a commit and the relay of another, to the call of a handler there.

Rule: the emitter keeps its pace whatever becomes of what it emits: a message that waits makes no other one late. The
time of both processes is the machine's own clock; what the commit takes is part of it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from bench import environment
from bench.application import KEY, application
from bench.cases import Benchmark, Case, Target
from bench.job import HEADERS, ORDER, Job, Order, Sample
from bench.relay import database

PER_SECOND = 1_000
SESSIONS = 8
MS = 1e6

BENCHMARK = Benchmark(
    name="latency",
    about=f"milliseconds from emit to handler at {PER_SECOND:,} messages a second, one commit each",
    messages=15_000,
    rounds=3,
    database=True,
    cases=(
        Case("carom", "carom, SQLAlchemy commits in one process, relay and consumer in another", __name__, "arrive"),
        Case("carom-direct", "app.publish in one process, consumer in another: no outbox", __name__, "arrive_directly"),
    ),
    targets={"carom": Target(at_most={"p50_ms": 5, "p99_ms": 30})},
)


async def arrive(job: Job) -> Sample:
    """Relay and handle what another process emits, and look at the clock."""
    return await _arrive(job, "emit")


async def arrive_directly(job: Job) -> Sample:
    """Handle what another process publishes: what is left when there is no database between them."""
    return await _arrive(job, "publish")


async def _arrive(job: Job, emitter_does: str) -> Sample:
    took: list[float] = []
    ended = asyncio.Event()

    async def charge(order: Order) -> None:
        took.append((time.time_ns() - order.id) / MS)
        if len(took) == job.total:
            ended.set()

    app = application(job, charge, database=database(job), observers=None)
    async with app:
        command = [
            sys.executable,
            "-m",
            "bench.worker",
            __name__,
            emitter_does,
            msgspec.json.encode(asdict(job)).decode(),
        ]
        emitter = subprocess.Popen(command, cwd=environment.ROOT, stdout=subprocess.DEVNULL)  # noqa: ASYNC220, S603 - a worker of our own, started before anything is measured
        try:
            await ended.wait()
            await asyncio.to_thread(emitter.wait)
        finally:
            emitter.kill()
    found = sorted(took[job.warm_up :])
    return Sample(
        None, {f"p{part}_ms": found[int(len(found) * part / 100)] for part in (50, 95, 99)} | {"max_ms": found[-1]}
    )


async def emit(job: Job) -> Sample:
    """Emit at a steady pace, each message in a transaction of its own."""
    app = application(job, database=database(job))
    engine = create_async_engine(job.database, pool_size=SESSIONS, max_overflow=0)

    async def one(order: Order) -> None:
        async with AsyncSession(engine) as session:
            app.emit(session, KEY, order, headers=HEADERS)
            await session.commit()

    sample = await _paced(job, one)
    await engine.dispose()
    return sample


async def publish(job: Job) -> Sample:
    """Publish at a steady pace, each message confirmed by itself."""
    app = application(job)
    await app.start(consume=False)

    async def one(order: Order) -> None:
        await app.publish(KEY, order, headers=HEADERS)

    sample = await _paced(job, one)
    await app.stop()
    return sample


async def _paced(job: Job, one: Callable[[Order], Awaitable[None]]) -> Sample:
    started = time.perf_counter()
    numbers = iter(range(job.total))

    async def work() -> None:
        for number in numbers:
            await asyncio.sleep(max(0.0, started + number / PER_SECOND - time.perf_counter()))
            await one(Order(time.time_ns(), ORDER.customer, ORDER.note))

    await asyncio.gather(*(work() for _ in range(SESSIONS)))
    return Sample(job.total / (time.perf_counter() - started))
