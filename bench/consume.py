"""Consuming: a typed message, a handler that does nothing, an acknowledgement; from a queue that was filled before.

Rule: the queue is filled with copies of a message that the one who consumes published itself, and is empty afterwards.
"""

from __future__ import annotations

import asyncio

from bench.application import KEY, application
from bench.cases import Benchmark, Case, Target, limit, peer
from bench.job import ORDER, PREFETCH, Job, Order, Sample, Stopwatch

BENCHMARK = Benchmark(
    name="consume",
    about=f"consume a typed message, prefetch {PREFETCH}, and acknowledge it",
    messages=20_000,
    cases=(
        Case("carom", "carom @app.listen, async def, msgspec.Struct", __name__, "consume", needs="full queue"),
        limit("pika asyncio callbacks, typed, single acks", "consume", "full queue"),
        limit(
            "pika asyncio, typed, a task each, coalesced acks",
            "consume_coalesced",
            "full queue",
            "pika-asyncio-coalesced",
        ),
        peer("aio-pika", "aio-pika, typed, message.process()", "consume", "full queue", 0.5),
        peer("faststream", "FastStream, msgspec.Struct, logging off", "consume", "full queue", 0.25),
        peer("dramatiq", "Dramatiq, 8 threads", "consume", "full queue", 0.25),
        peer("celery", "Celery, solo pool, acks_late", "consume", "full queue", 0.25),
        peer("taskiq", "Taskiq on aio-pika, one receiver", "consume", "full queue", 0.25, declares=True),
    ),
    targets={"carom": Target(ratios={"pika-asyncio": 0.75, "aio-pika": 3.0, "faststream": 5.0})},
)


async def seed(job: Job) -> Sample:
    """Publish the message that the queue is then filled with copies of; the app's topology is there afterwards."""
    app = application(job)
    await app.start(consume=False)
    await app.publish(KEY, ORDER)
    await app.stop()
    return Sample(None)


async def consume(job: Job) -> Sample:
    """Handle everything in the queue."""
    ended = asyncio.Event()
    watch = Stopwatch(job, ended.set)

    async def charge(order: Order) -> None:
        watch.count()

    app = application(job, charge)
    async with app:
        await ended.wait()
    return watch.sample()
