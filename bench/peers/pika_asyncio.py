"""The limit: pika's asyncio adapter with callbacks and nothing around it, the library Carom itself is built on.

Rule: nothing is done here that a program could leave out: no reconnecting, no deadlines, no errors, no tasks where
a callback does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from bench.job import BODY, HEADERS, IN_FLIGHT, PREFETCH, Job, Order, Sample, Stopwatch, both, rate

RETURN_SECONDS = 60.0
DECODE = msgspec.json.Decoder(Order).decode


async def publish(job: Job) -> Sample:
    """Publish with confirms, mandatory, all properties and two headers, `IN_FLIGHT` unconfirmed at a time."""
    channel = await open_channel(job.url)
    confirms = Confirms()
    await ask(channel.confirm_delivery, confirms.confirmed)
    await _write(channel, confirms, job, job.warm_up)
    started = time.perf_counter()
    await _write(channel, confirms, job, job.messages)
    seconds = time.perf_counter() - started
    await close(channel)
    return rate(job.messages, seconds)


async def consume(job: Job) -> Sample:
    """Consume with a typed decode, each message acknowledged for itself."""

    def handle(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        DECODE(body)
        channel.basic_ack(method.delivery_tag)
        watch.count()

    ended = asyncio.get_running_loop().create_future()
    watch = Stopwatch(job, lambda: ended.set_result(None))
    await _consume(job, handle, ended)
    return watch.sample()


async def consume_coalesced(job: Job) -> Sample:
    """Consume with a typed decode and a task for each message; one ack for all that finished in a turn of the loop."""
    loop = asyncio.get_running_loop()
    finished: set[int] = set()
    tasks: set[asyncio.Task[None]] = set()
    next_tag = 1

    def flush(channel: Any) -> None:
        nonlocal next_tag
        first = next_tag
        while next_tag in finished:
            finished.discard(next_tag)
            next_tag += 1
        if next_tag > first:
            channel.basic_ack(next_tag - 1, multiple=True)

    async def work(channel: Any, tag: int, body: bytes) -> None:
        DECODE(body)
        if not finished:
            loop.call_soon(flush, channel)
        finished.add(tag)
        watch.count()

    def handle(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        task = loop.create_task(work(channel, method.delivery_tag, body))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    ended = loop.create_future()
    watch = Stopwatch(job, lambda: ended.set_result(None))
    await _consume(job, handle, ended)
    return watch.sample()


async def retry(job: Job) -> Sample:
    """Send every message to the delay queue and, when all have returned, consume them; see `bench.retry`."""
    failed = await _fail(job)
    await returned(job)
    succeeded = await consume(job)
    return both(failed, succeeded)


async def _fail(job: Job) -> Sample:
    """Publish each message to the delay queue, and acknowledge it when that is confirmed."""
    channel, out = await open_channel(job.url), await open_channel(job.url)
    delay = f"{job.queue}.delay"
    await ask(out.queue_declare, delay, durable=True, arguments=_delay_arguments(job))
    tags: dict[int, int] = {}
    sent = 0

    def confirmed(frame: Any) -> None:
        last = frame.method.delivery_tag
        for number in [one for one in tags if one <= last] if frame.method.multiple else (last,):
            channel.basic_ack(tags.pop(number))
            watch.count()

    def handle(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
        nonlocal sent
        DECODE(body)
        sent += 1
        tags[sent] = method.delivery_tag
        out.basic_publish("", delay, body, _again(properties), mandatory=True)

    await ask(out.confirm_delivery, confirmed)
    ended = asyncio.get_running_loop().create_future()
    watch = Stopwatch(job, lambda: ended.set_result(None))
    await ask(channel.basic_qos, prefetch_count=PREFETCH)
    channel.basic_consume(job.queue, handle)
    await ended
    await asyncio.sleep(0)  # the last ack is sent in the turn after
    await close(channel)
    await close(out)
    return watch.sample()


async def returned(job: Job) -> None:
    """Wait until every message is back in the queue. Raises TimeoutError long after that should be so."""
    channel = await open_channel(job.url)
    async with asyncio.timeout(job.delay_ms / 1000 + RETURN_SECONDS):
        while (await ask(channel.queue_declare, job.queue, passive=True)).method.message_count < job.total:
            await asyncio.sleep(0.05)
    await close(channel)


class Confirms:
    """What is not confirmed yet, and room for more."""

    def __init__(self) -> None:
        """Nothing is on its way."""
        self.sent = 0
        self.pending: set[int] = set()
        self._waiter: asyncio.Future[None] | None = None
        self._enough = 0

    def confirmed(self, frame: Any) -> None:
        """Take a confirm."""
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            self.pending.difference_update([one for one in self.pending if one <= tag])
        else:
            self.pending.discard(tag)
        if self._waiter is not None and len(self.pending) <= self._enough:
            waiter, self._waiter = self._waiter, None
            waiter.set_result(None)

    async def down_to(self, enough: int) -> None:
        """Wait until no more than this many are unconfirmed."""
        if len(self.pending) > enough:
            self._enough = enough
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


async def copy(url: str, queue: str, body: bytes, properties: Any, count: int) -> None:
    """Fill a queue with copies of a message."""
    channel = await open_channel(url)
    confirms = Confirms()
    await ask(channel.confirm_delivery, confirms.confirmed)
    for _ in range(count):
        confirms.sent += 1
        confirms.pending.add(confirms.sent)
        channel.basic_publish("", queue, body, properties)
        if len(confirms.pending) >= IN_FLIGHT:
            await confirms.down_to(IN_FLIGHT // 2)
    await confirms.down_to(0)
    await close(channel)


async def open_channel(url: str) -> Any:
    """Return an open channel on a connection of its own."""
    loop = asyncio.get_running_loop()
    opened, ready = loop.create_future(), loop.create_future()
    connection = AsyncioConnection(
        pika.URLParameters(url),
        custom_ioloop=loop,
        on_open_callback=opened.set_result,
        on_open_error_callback=lambda _, error: opened.set_exception(error),
    )
    await opened
    connection.channel(on_open_callback=ready.set_result)
    return await ready


async def close(channel: Any) -> None:
    """Close the connection of a channel, and wait until that is done."""
    closed = asyncio.get_running_loop().create_future()
    channel.connection.add_on_close_callback(lambda *_: closed.set_result(None))
    channel.connection.close()
    await closed


async def ask(method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a method of a channel and return what the server answers."""
    answered = asyncio.get_running_loop().create_future()
    method(*arguments, callback=answered.set_result, **options)
    return await answered


async def _write(channel: Any, confirms: Confirms, job: Job, count: int) -> None:
    for _ in range(count):
        confirms.sent += 1
        confirms.pending.add(confirms.sent)
        properties = pika.BasicProperties(
            delivery_mode=2,
            content_type="application/json",
            message_id=f"0190b6a8-0000-7000-8000-{confirms.sent:012d}",
            correlation_id="0190b6a8-0000-7000-8000-000000000000",
            timestamp=1_700_000_000,
            app_id="bench",
            headers=HEADERS,
        )
        channel.basic_publish("", job.queue, BODY, properties, mandatory=True)
        if len(confirms.pending) >= IN_FLIGHT:
            await confirms.down_to(IN_FLIGHT // 2)
    await confirms.down_to(0)


async def _consume(job: Job, handle: Callable[..., None], ended: asyncio.Future[None]) -> None:
    channel = await open_channel(job.url)
    await ask(channel.basic_qos, prefetch_count=PREFETCH)
    channel.basic_consume(job.queue, handle)
    await ended
    await asyncio.sleep(0)  # the last ack is sent in the turn after
    await close(channel)


def _delay_arguments(job: Job) -> dict[str, Any]:
    return {
        "x-queue-type": "quorum",
        "x-message-ttl": job.delay_ms,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": job.queue,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }


def _again(properties: Any) -> Any:
    properties.headers = {**(properties.headers or {}), "attempt": 2}
    return properties
