"""FastStream on RabbitMQ: its own publisher and a typed subscriber, with msgspec as its serializer and no logging.

Rule: it is used as its documentation shows, with the options that make it fastest while it keeps its promises.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fast_depends.msgspec import MsgSpecSerializer
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

from bench.job import HEADERS, IN_FLIGHT, ORDER, PREFETCH, Job, Order, Sample, Stopwatch, rate


async def publish(job: Job) -> Sample:
    """Publish persistent, mandatory, confirmed; `IN_FLIGHT` gathered at a time."""
    async with _broker(job) as broker:
        await _write(broker, job.queue, 0, job.warm_up)
        started = time.perf_counter()
        await _write(broker, job.queue, job.warm_up, job.total)
        return rate(job.messages, time.perf_counter() - started)


async def _write(broker: Any, queue: str, first: int, last: int) -> None:
    for start in range(first, last, IN_FLIGHT):
        numbers = range(start, min(start + IN_FLIGHT, last))
        await asyncio.gather(*(_publish(broker, queue, number) for number in numbers))


async def _publish(broker: Any, queue: str, number: int) -> None:
    await broker.publish(
        ORDER,
        queue,
        persist=True,
        mandatory=True,
        headers=HEADERS,
        message_id=f"0190b6a8-0000-7000-8000-{number:012d}",
        correlation_id="0190b6a8-0000-7000-8000-000000000000",
    )


async def consume(job: Job) -> Sample:
    """Consume into a msgspec.Struct; each message is acknowledged when its handler ends."""

    async def handle(order: Order) -> None:
        watch.count()

    broker = _broker(job)
    ended = asyncio.get_running_loop().create_future()
    watch = Stopwatch(job, lambda: ended.set_result(None))
    broker.subscriber(RabbitQueue(job.queue, declare=False))(handle)
    async with broker:
        await broker.start()
        await ended
    return watch.sample()


def _broker(job: Job) -> Any:
    return RabbitBroker(
        job.url, logger=None, serializer=MsgSpecSerializer(), default_channel=Channel(prefetch_count=PREFETCH)
    )
