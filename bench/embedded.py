"""The embedded broker: publish, deliver, acknowledge in one process; in memory and in a file, with and without an App.

Rule: the clock stops when the last acknowledgement is settled, on disk where there is one; and the number counts only
if everything was confirmed and nothing is left.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.application import KEY, application
from bench.cases import Benchmark, Case, Target
from bench.job import BODY, ORDER, Job, Order, Sample, rate
from carom import Emit
from carom.brokers.embedded import MemoryBroker
from carom.brokers.embedded.file import FileBroker
from carom.core.effects import CONFIRMED
from carom.core.message import Message
from carom.core.topology import Binding, Exchange, Topology, quorum
from carom.ports import Broker, Delivery
from carom.runtime.clock import RealClock

BATCH = 250
AT_ONCE = 4
"""Batches under way at a time."""
PREFETCH = 500
SYNCS = 100
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
    return _with_disk(job, await _port(job, FileBroker(str(Path(job.path) / "port.db"), RealClock())))


async def memory_app(job: Job) -> Sample:
    """Pass messages from an App to its own listener, in memory."""
    return await _app(job, "embedded://")


async def file_app(job: Job) -> Sample:
    """Pass messages from an App to its own listener, in a file."""
    return _with_disk(job, await _app(job, f"embedded:///{Path(job.path) / 'app.db'}"))


async def _port(job: Job, broker: Broker) -> Sample:
    passing = Passing()

    def receive(delivery: Delivery) -> None:
        delivery.ack()
        passing.handled()

    async def publish(size: int) -> None:
        results = await broker.publish([_message(number) for number in range(size)])
        if results.count(CONFIRMED) != size:
            raise RuntimeError(f"{size - results.count(CONFIRMED)} of {size} messages were not confirmed")

    await broker.open()
    await broker.declare(TOPOLOGY)
    await broker.consume(QUEUE, receive, prefetch=PREFETCH, ended=print)
    await passing.through(job.warm_up, publish)
    started = time.perf_counter()
    await passing.through(job.messages, publish)
    left = await broker.depths([QUEUE, "dlq"])  # answered when the last acknowledgement is settled
    seconds = time.perf_counter() - started
    await broker.close()
    if any(depth is None or depth.ready or depth.unacked for depth in left.values()):
        raise RuntimeError(f"not everything was delivered once and acknowledged: {left}")
    return rate(job.messages, seconds)


async def _app(job: Job, url: str) -> Sample:
    passing = Passing()

    async def charge(order: Order) -> None:
        passing.handled()

    app = application(job, charge, broker=url)

    async def publish(size: int) -> None:
        await app.publish_many([Emit(KEY, ORDER) for _ in range(size)])

    async with app:
        await passing.through(job.warm_up, publish)
        started = time.perf_counter()
        await passing.through(job.messages, publish)
    return rate(job.messages, time.perf_counter() - started)  # what was acknowledged is settled before the app stops


class Passing:
    """Lets messages pass, from the first publish to the last that is handled."""

    def __init__(self) -> None:
        """Nothing is on its way."""
        self._left = 0
        self._ended = asyncio.Event()

    def handled(self) -> None:
        """Count a message that arrived and was handled."""
        self._left -= 1
        if not self._left:
            self._ended.set()

    async def through(self, count: int, publish: Callable[[int], Awaitable[None]]) -> None:
        """Publish so many in batches, some at a time; return when all were handled."""
        if not count:
            return
        self._left = count
        self._ended.clear()
        sizes = iter([min(BATCH, count - start) for start in range(0, count, BATCH)])

        async def work() -> None:
            for size in sizes:
                await publish(size)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        await self._ended.wait()


def _with_disk(job: Job, sample: Sample) -> Sample:
    """Say beside it how often a second the disk makes 64 KiB durable: what bounds every commit."""
    with tempfile.TemporaryFile(dir=job.path) as file:
        started = time.perf_counter()
        for _ in range(SYNCS):
            os.write(file.fileno(), bytes(65536))
            os.fsync(file.fileno())
        seconds = time.perf_counter() - started
    return Sample(sample.per_second, {"disk_syncs_per_second": SYNCS / seconds})


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
