"""Dramatiq on RabbitMQ: threads, because it blocks, and its middleware as it comes.

Rule: it is used as its documentation shows, with the options that make it fastest while it keeps its promises.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from bench.job import ORDER, PREFETCH, Job, Sample, Stopwatch, rate

os.environ["dramatiq_queue_prefetch"] = str(PREFETCH)  # noqa: SIM112 - its name is written small; read at the import

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

PAYLOAD: dict[str, Any] = msgspec.to_builtins(ORDER)
PUBLISHING_THREADS = 8
WORKING_THREADS = 8
"""Its default."""


def publish(job: Job) -> Sample:
    """Send with ``confirm_delivery``: each waits for its confirm, so several threads send side by side."""
    actor = _actor(job, _nothing, confirm_delivery=True)
    with ThreadPoolExecutor(PUBLISHING_THREADS) as threads:
        _send(threads, actor, max(job.warm_up, PUBLISHING_THREADS if job.warm_up else 0))
        started = time.perf_counter()
        _send(threads, actor, job.messages)
        return rate(job.messages, time.perf_counter() - started)


def publish_unconfirmed(job: Job) -> Sample:
    """Send as it does by default: nobody knows whether a message arrived."""
    actor = _actor(job, _nothing, confirm_delivery=False)
    for _ in range(job.warm_up):
        actor.send(PAYLOAD)
    started = time.perf_counter()
    for _ in range(job.messages):
        actor.send(PAYLOAD)
    seconds = time.perf_counter() - started
    actor.broker.close()
    return rate(job.messages, seconds)


def _send(threads: ThreadPoolExecutor, actor: Any, count: int) -> None:
    shares = [len(range(number, count, PUBLISHING_THREADS)) for number in range(PUBLISHING_THREADS)]

    def send(share: int) -> None:
        for _ in range(share):
            actor.send(PAYLOAD)

    for one in [threads.submit(send, share) for share in shares]:
        one.result()


def consume(job: Job) -> Sample:
    """Work with the default number of threads; each message is acknowledged for itself."""

    def handle(order: dict[str, Any]) -> None:
        watch.count()

    ended = threading.Event()
    watch = Stopwatch(job, ended.set)
    actor = _actor(job, handle, confirm_delivery=False)
    worker = dramatiq.Worker(actor.broker, worker_threads=WORKING_THREADS)
    worker.start()
    ended.wait()
    worker.join()
    worker.stop()
    actor.broker.close()
    return watch.sample()


def _actor(job: Job, function: Any, *, confirm_delivery: bool) -> Any:
    broker = RabbitmqBroker(url=job.url, confirm_delivery=confirm_delivery)
    dramatiq.set_broker(broker)
    actor = dramatiq.actor(function, actor_name="charge", queue_name=job.queue, broker=broker)
    broker.queues_pending.clear()  # the queue is there, of type quorum, which it has no option for
    return actor


def _nothing(order: dict[str, Any]) -> None:
    """Stand in for an actor of another process."""
