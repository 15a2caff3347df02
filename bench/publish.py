"""Publishing: with confirms, mandatory, all properties, 256 bytes of JSON, into a durable quorum queue.

Rule: a message counts when the broker has confirmed it; where a client knows of no confirm, its case says so.
"""

from __future__ import annotations

import asyncio
import time

from bench.application import KEY, application
from bench.cases import Benchmark, Case, Target, limit, peer
from bench.job import HEADERS, IN_FLIGHT, ORDER, Job, Sample, rate
from carom import App, Emit

BATCH = 250
TARGET = Target(ratios={"pika-asyncio": 0.8, "aio-pika": 2.5, "faststream": 3.0})

BENCHMARK = Benchmark(
    name="publish",
    about="publish with confirms, mandatory",
    messages=20_000,
    cases=(
        Case(
            "carom",
            f"carom publish_many, {IN_FLIGHT // BATCH} batches of {BATCH} at a time",
            __name__,
            "many",
            needs="empty queue",
        ),
        Case("carom-tasks", f"carom publish from {IN_FLIGHT} tasks", __name__, "from_tasks", needs="empty queue"),
        limit(f"pika asyncio callbacks, window {IN_FLIGHT}", "publish", "empty queue"),
        peer("aio-pika", f"aio-pika, gathers of {IN_FLIGHT}", "publish", "empty queue", 0.5),
        peer("faststream", f"FastStream, gathers of {IN_FLIGHT}", "publish", "empty queue", 0.5),
        peer("dramatiq", "Dramatiq confirm_delivery, 8 threads", "publish", "empty queue", 0.25),
        peer(
            "dramatiq-unconfirmed",
            "Dramatiq without confirms",
            "publish_unconfirmed",
            "empty queue",
            0.5,
            "dramatiq",
        ),
        peer("celery", "Celery confirm_publish, 8 threads", "publish", "empty queue", 0.1),
        peer("taskiq", f"Taskiq on aio-pika, gathers of {IN_FLIGHT}", "publish", "empty queue", 0.5, declares=True),
    ),
    targets={"carom": TARGET, "carom-tasks": Target()},
)


async def many(job: Job) -> Sample:
    """Publish in batches, several at a time."""
    app = application(job)
    await app.start(consume=False)
    await _publish_many(app, job.warm_up)
    started = time.perf_counter()
    await _publish_many(app, job.messages)
    seconds = time.perf_counter() - started
    await app.stop()
    return rate(job.messages, seconds)


async def _publish_many(app: App, count: int) -> None:
    sizes = iter([min(BATCH, count - start) for start in range(0, count, BATCH)])

    async def work() -> None:
        for size in sizes:
            await app.publish_many([Emit(KEY, ORDER, headers=HEADERS) for _ in range(size)])

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT // BATCH)))


async def from_tasks(job: Job) -> Sample:
    """Publish one by one from many tasks, as the requests of a web server would."""
    app = application(job)
    await app.start(consume=False)
    await _publish_each(app, job.warm_up)
    started = time.perf_counter()
    await _publish_each(app, job.messages)
    seconds = time.perf_counter() - started
    await app.stop()
    return rate(job.messages, seconds)


async def _publish_each(app: App, count: int) -> None:
    numbers = iter(range(count))

    async def work() -> None:
        for _ in numbers:
            await app.publish(KEY, ORDER, headers=HEADERS)

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
