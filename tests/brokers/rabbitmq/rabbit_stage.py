"""What the tests of the RabbitMQ adapter share: open brokers, names of their own, and waiting with a deadline."""

import asyncio
import itertools
import time
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import pika

from carom.brokers.rabbitmq import RabbitBroker
from carom.core.message import Message
from carom.core.topology import Queue, Topology, arguments
from carom.runtime.clock import RealClock

DEADLINE_S = 20.0
POLL_MS = 10
CLOCK = RealClock()
_numbers = itertools.count(1)


def fresh(short="queue"):
    """Return a name nobody has."""
    return f"test.{short}.{time.time_ns():x}.{next(_numbers)}"


def with_options(url, **options):
    """Return the URL with options of the adapter."""
    return f"{url}?{'&'.join(f'{name}={value}' for name, value in options.items())}"


def at(url, *, host=None, port=None, user=None, password=None, vhost=None):
    """Return the URL with other parts."""
    parts = urlsplit(url)
    credentials = f"{user or parts.username}:{password or parts.password}"
    netloc = f"{credentials}@{host or parts.hostname}:{port or parts.port}"
    return urlunsplit(parts._replace(netloc=netloc, path=parts.path if vhost is None else f"/{vhost}"))


def declared(*queues, exchanges=(), bindings=()):
    """Return a topology."""
    return Topology(tuple(exchanges), tuple(queues), tuple(bindings))


def queue(short="queue", kind="quorum", **options):
    """Return a queue that nobody has; ``max_length=5`` is its argument ``x-max-length``."""
    named = {"x-" + option.replace("_", "-"): value for option, value in options.items()}
    return Queue(fresh(short), arguments=arguments({"x-queue-type": kind, **named}))


def to(target, body=b"", **fields):
    """Return a message straight to a queue."""
    return Message(body=body, routing_key=target.name if isinstance(target, Queue) else target, **fields)


@asynccontextmanager
async def opened(url, events=None, **options):
    """Open a broker; its events are appended to a list."""
    report = None if events is None else events.append
    broker = RabbitBroker(with_options(url, **options) if options else url, RealClock(), report)
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


async def until(came, what, within_s=DEADLINE_S):
    """Wait until something came."""
    deadline = time.monotonic() + within_s
    while True:
        answer = came()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert time.monotonic() < deadline, f"waited {within_s} s in vain for {what}"
        await CLOCK.sleep(POLL_MS)


async def turns(count):
    """Let the loop go round so often: any moment of what goes on can be hit this way, and none waits for a clock."""
    for _ in range(count):
        await asyncio.sleep(0)


async def drained(broker, name):
    """Return the messages of a queue, taking all there are now."""
    messages = []
    while delivery := await broker.get(name):
        delivery.ack()
        messages.append(delivery.message)
    return messages


async def ready(broker, name):
    """Return how much of a queue is ready."""
    return (await broker.depths([name]))[name].ready


@asynccontextmanager
async def admin(url):
    """Give a channel of the library's own, to do what the adapter cannot; it blocks."""
    connection = await asyncio.to_thread(pika.BlockingConnection, pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def kinds(events):
    """Return the names of events."""
    return [type(event).__name__ for event in events]
