"""The place where a case is measured: a queue of its own on the broker, as full as is needed, gone afterwards.

Rule: every name begins with ``bench.`` and is used once; what a case or its peer may have declared is deleted by
name, however the case ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pika

from bench.application import application
from bench.cases import Case
from bench.job import Job
from bench.peers import pika_asyncio

QUORUM = {"x-queue-type": "quorum"}
SETTLE_SECONDS = 10.0
Seed = Callable[[Job], None]


class NotAsPromised(Exception):
    """A case left another number of messages behind than it should."""


@contextmanager
def place(case: Case, job: Job, seed: Seed) -> Iterator[Job]:
    """Prepare a queue for a case; afterwards check what is left in it, and delete it.

    ``seed`` publishes one message as the case's own subject does it: a full queue is full of copies of that.
    """
    job = replace(job, queue=f"bench.{uuid4().hex[:8]}")
    try:
        if not case.declares:
            _call(job, lambda channel: channel.queue_declare(job.queue, durable=True, arguments=QUORUM))
        if case.needs == "full queue":
            seed(job)
            properties, body = _take(job)
            asyncio.run(pika_asyncio.copy(job.url, job.queue, body, properties, job.total))
        yield job
        _check(case, job)
    finally:
        _delete(job)


def _take(job: Job) -> tuple[Any, bytes]:
    def take(channel: Any) -> Any:
        return channel.basic_get(job.queue, auto_ack=True)

    method, properties, body = _call(job, take)
    if method is None:
        raise NotAsPromised(f"the message to fill {job.queue} with did not arrive")
    return properties, body


def _check(case: Case, job: Job) -> None:
    """Check that everything published is there, or everything consumed is gone; an ack may take a moment."""
    expected = job.total if case.needs == "empty queue" else 0 if case.needs == "full queue" else None
    if expected is None:
        return
    deadline = time.monotonic() + SETTLE_SECONDS
    while (found := _depth(job)) != expected:
        if time.monotonic() > deadline:
            raise NotAsPromised(f"{case.name} left {found} messages in its queue instead of {expected}")
        time.sleep(0.05)


def _depth(job: Job) -> int:
    return int(_call(job, lambda channel: channel.queue_declare(job.queue, passive=True)).method.message_count)


def _delete(job: Job) -> None:
    topology = application(job).topology
    queues = {job.queue, f"{job.queue}.dead", f"{job.queue}.delay", *(one.name for one in topology.queues)}
    exchanges = {job.queue, *(one.name for one in topology.exchanges)}

    def delete(channel: Any) -> None:
        for queue in queues:
            channel.queue_delete(queue)
        for exchange in exchanges:
            channel.exchange_delete(exchange)

    _call(job, delete)


def _call(job: Job, do: Callable[[Any], Any]) -> Any:
    with pika.BlockingConnection(pika.URLParameters(job.url)) as connection:
        return do(connection.channel())
