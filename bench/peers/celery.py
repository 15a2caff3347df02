"""Celery on RabbitMQ: one process, as everybody here, with its fastest pool for tasks that do nothing.

Rule: it is used as its documentation shows, with the options that make it fastest while it keeps its promises.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from celery import Celery
from celery.exceptions import WorkerShutdown
from celery.worker.consumer.delayed_delivery import DelayedDelivery
from kombu import Queue
from kombu.asynchronous import get_event_loop

from bench.job import ORDER, PREFETCH, Job, Sample, Stopwatch, rate

PAYLOAD: dict[str, Any] = msgspec.to_builtins(ORDER)
THREADS = 8


def publish(job: Job) -> Sample:
    """Send with ``confirm_publish``: each waits for its confirm, so several threads send side by side."""
    task = _app(job).task(_nothing, name="charge", ignore_result=True)
    with ThreadPoolExecutor(THREADS) as threads:
        _send(threads, task, max(job.warm_up, THREADS if job.warm_up else 0))
        started = time.perf_counter()
        _send(threads, task, job.messages)
        return rate(job.messages, time.perf_counter() - started)


def _send(threads: ThreadPoolExecutor, task: Any, count: int) -> None:
    def send(share: int) -> None:
        for _ in range(share):
            task.apply_async((PAYLOAD,))

    for one in [threads.submit(send, len(range(number, count, THREADS))) for number in range(THREADS)]:
        one.result()


def consume(job: Job) -> Sample:
    """Execute tasks in the process itself; each is acknowledged when it is done."""

    def handle(order: dict[str, Any]) -> None:
        watch.count()

    watch = Stopwatch(job, _stop)
    app = _app(job)
    # For quorum queues it declares 28 exchanges and queues to delay tasks with, which would be left on the broker.
    DelayedDelivery.include_if = lambda _step, _consumer: False
    app.task(handle, name="charge", ignore_result=True)
    app.Worker(
        pool="solo",
        concurrency=1,
        loglevel="CRITICAL",
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    ).start()
    return watch.sample()


def _stop() -> None:
    """Stop when the last message is acknowledged, which happens after its task has ended."""
    get_event_loop().call_later(0.2, _shut_down)


def _shut_down() -> None:
    raise WorkerShutdown(0)


def _app(job: Job) -> Any:
    app = Celery(broker=job.url, set_as_current=True)
    app.conf.update(
        task_queues=[Queue(job.queue, exchange="", routing_key=job.queue, queue_arguments={"x-queue-type": "quorum"})],
        task_default_queue=job.queue,
        task_default_exchange="",
        task_default_routing_key=job.queue,
        task_acks_late=True,
        worker_prefetch_multiplier=PREFETCH,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_enable_remote_control=False,
        broker_pool_limit=THREADS,
        broker_transport_options={"confirm_publish": True},
        broker_connection_retry_on_startup=False,
        task_default_delivery_mode=2,
    )
    return app


def _nothing(order: dict[str, Any]) -> None:
    """Stand in for a task of another process."""
