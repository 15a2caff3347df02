"""The embedded broker: publish, deliver, acknowledge in one process; in memory and in one file, with an App and without.

Rule: nothing is measured but what a program does: no server, no network; the file is written as durably as always.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.application import KEY, application
from bench.cases import Benchmark, Case, Target
from bench.job import BODY, ORDER, Job, Order, Sample, Stopwatch
from carom import Emit
from carom.brokers.embedded import MemoryBroker
from carom.brokers.embedded.file import FileBroker
from carom.core.message import Message
from carom.core.topology import Binding, Exchange, Topology, quorum
from carom.ports import Broker, Delivery
from carom.runtime.clock import RealClock

BATCH = 250
AT_ONCE = 4
"""Batches under way at a time."""
PREFETCH = 500
QUEUE = "billing.charge"
TOPOLOGY = Topology(
    exchanges=(Exchange("events"), Exchange("dead", "direct")),
    queues=(
        quorum(QUEUE, dead_letter_exchange="dead", dead_letter_routing_key="dlq", delivery_limit=20),
        quorum("dlq"),
    ),
    bindings=(Binding("events", QUEUE, "order.*"), Binding("dead", "dlq", "dlq", "queue")),
)

BENCHMARK = Benchmark(
    name="embedded",
    about="publish, deliver and acknowledge in one process, without a server",
    messages=50_000,
    embedded=True,
    cases=(
        Case("memory-port", "in memory, at the port", __name__, "memory_port", needs="nothing"),
        Case("memory-app", "in memory, through an App", __name__, "memory_app", needs="nothing"),
        Case("file-port", "in a file, at the port", __name__, "file_port", needs="nothing"),
        Case("file-app", "in a file, through an App", __name__, "file_app", needs="nothing"),
    ),
    targets={
        "memory-port": Target(at_least={"per_second": 40_000}),
        "memory-app": Target(at_least={"per_second": 20_000}),
        "file-port": Target(at_least={"per_second": 10_000}),
        "file-app": Target(at_least={"per_second": 10_000}),
    },
)


async def memory_port(job: Job) -> Sample:
    """Pass messages through the broker in memory, as an adapter is used by the runtime."""
    return await _port(job, MemoryBroker(RealClock()))


async def file_port(job: Job) -> Sample:
    """Pass messages through the broker in a file."""
    return await _port(job, FileBroker(str(Path(job.path) / "port.db"), RealClock()))


async def memory_app(job: Job) -> Sample:
    """Pass messages from an App to its own listener, in memory."""
    return await _app(job, "embedded://")


async def file_app(job: Job) -> Sample:
    """Pass messages from an App to its own listener, in a file."""
    return await _app(job, f"embedded:///{Path(job.path) / 'app.db'}")


async def _port(job: Job, broker: Broker) -> Sample:
    ended = asyncio.Event()
    watch = Stopwatch(job, ended.set)

    def receive(delivery: Delivery) -> None:
        delivery.ack()
        watch.count()

    await broker.open()
    await broker.declare(TOPOLOGY)
    await broker.consume(QUEUE, receive, prefetch=PREFETCH, ended=print)
    starts = iter(range(0, job.total, BATCH))

    async def publish() -> None:
        for start in starts:
            await broker.publish([_message(number) for number in range(start, min(start + BATCH, job.total))])

    await asyncio.gather(*(publish() for _ in range(AT_ONCE)))
    await ended.wait()
    await broker.close()
    return watch.sample()


async def _app(job: Job, url: str) -> Sample:
    ended = asyncio.Event()
    watch = Stopwatch(job, ended.set)

    async def charge(order: Order) -> None:
        watch.count()

    app = application(job, charge, broker=url)
    starts = iter(range(0, job.total, BATCH))

    async def publish() -> None:
        for start in starts:
            await app.publish_many([Emit(KEY, ORDER) for _ in range(start, min(start + BATCH, job.total))])

    async with app:
        await asyncio.gather(*(publish() for _ in range(AT_ONCE)))
        await ended.wait()
    return watch.sample()


def _message(number: int) -> Message:
    return Message(
        body=BODY,
        exchange="events",
        routing_key=KEY,
        id=f"message-{number}",
        correlation_id="correlation",
        content_type="application/json",
        headers={"tenant": "a"},
    )
