"""Taskiq with its aio-pika broker: tasks kicked `IN_FLIGHT` at a time, one receiver in this process.

Rule: it is used as its documentation shows, with the options that make it fastest while it keeps its promises.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from taskiq.receiver import Receiver
from taskiq_aio_pika import AioPikaBroker, Exchange, Queue

from bench.job import IN_FLIGHT, ORDER, PREFETCH, Job, Sample, Stopwatch, rate

PAYLOAD: dict[str, Any] = msgspec.to_builtins(ORDER)


async def publish(job: Job) -> Sample:
    """Kick tasks: persistent and confirmed by aio-pika."""
    broker = _broker(job)
    task = broker.register_task(_nothing, task_name="charge")
    await broker.startup()
    await _write(task, job.warm_up)
    started = time.perf_counter()
    await _write(task, job.messages)
    seconds = time.perf_counter() - started
    await broker.shutdown()
    return rate(job.messages, seconds)


async def _write(task: Any, count: int) -> None:
    for start in range(0, count, IN_FLIGHT):
        await asyncio.gather(*(task.kiq(PAYLOAD) for _ in range(start, min(start + IN_FLIGHT, count))))


async def consume(job: Job) -> Sample:
    """Execute tasks, each acknowledged when it is done."""

    async def handle(order: dict[str, Any]) -> None:
        watch.count()

    finish = asyncio.Event()
    watch = Stopwatch(job, finish.set)
    broker = _broker(job)
    broker.is_worker_process = True
    broker.register_task(handle, task_name="charge")
    await broker.startup()
    await Receiver(broker, run_startup=False, max_async_tasks=PREFETCH, max_prefetch=PREFETCH).listen(finish)
    await broker.shutdown()
    return watch.sample()


def _broker(job: Job) -> Any:
    return AioPikaBroker(
        job.url,
        qos=PREFETCH,
        exchange=Exchange(name=job.queue),
        task_queues=[Queue(name=job.queue)],
        dead_letter_queue=Queue(name=f"{job.queue}.dead"),
    )


async def _nothing(order: dict[str, Any]) -> None:
    """Stand in for a task of another process."""
