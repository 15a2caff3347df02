"""aio-pika: a robust connection, confirms, `IN_FLIGHT` publishes gathered at a time; a callback for each message.

Rule: it is used as its documentation shows, with the options that make it fastest while it keeps its promises.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import aio_pika
import msgspec

from bench.job import BODY, HEADERS, IN_FLIGHT, PREFETCH, Job, Order, Sample, Stopwatch, rate

DECODE = msgspec.json.Decoder(Order).decode
SENT_AT = datetime(2023, 11, 14, tzinfo=UTC)


async def publish(job: Job) -> Sample:
    """Publish persistent, mandatory, confirmed."""
    connection = await aio_pika.connect_robust(job.url)
    channel = await connection.channel(publisher_confirms=True)
    await _write(channel.default_exchange, job.queue, 0, job.warm_up)
    started = time.perf_counter()
    await _write(channel.default_exchange, job.queue, job.warm_up, job.total)
    seconds = time.perf_counter() - started
    await connection.close()
    return rate(job.messages, seconds)


async def _write(exchange: Any, queue: str, first: int, last: int) -> None:
    for start in range(first, last, IN_FLIGHT):
        numbers = range(start, min(start + IN_FLIGHT, last))
        await asyncio.gather(*(exchange.publish(_message(number), queue, mandatory=True) for number in numbers))


def _message(number: int) -> Any:
    return aio_pika.Message(
        BODY,
        headers=dict(HEADERS),
        content_type="application/json",
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        message_id=f"0190b6a8-0000-7000-8000-{number:012d}",
        correlation_id="0190b6a8-0000-7000-8000-000000000000",
        timestamp=SENT_AT,
        app_id="bench",
    )


async def consume(job: Job) -> Sample:
    """Consume with a typed decode; each message is acknowledged when its callback ends."""

    async def handle(message: Any) -> None:
        async with message.process():
            DECODE(message.body)
        watch.count()

    connection = await aio_pika.connect_robust(job.url)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=PREFETCH)
    queue = await channel.get_queue(job.queue)
    ended = asyncio.get_running_loop().create_future()
    watch = Stopwatch(job, lambda: ended.set_result(None))
    await queue.consume(handle)
    await ended
    await asyncio.sleep(0.2)  # the last acks are still to be written
    await connection.close()
    return watch.sample()
