"""The app that is measured: listeners on a queue of the benchmark's own, in a namespace of its own.

Rule: it is made as a user makes it, from the public API; no observer unless one is asked for, as logging is off for
everybody here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bench.job import PREFETCH, Job, Order
from carom import App
from carom.ports import Observer

KEY = "order.created"
CONCURRENCY = 16
"""Carom's default."""
Handle = Callable[[Order], Awaitable[None]] | Callable[..., Awaitable[None]]


def application(
    job: Job,
    handle: Handle | None = None,
    *,
    broker: Any = None,
    concurrency: int = CONCURRENCY,
    database: object = None,
    observers: Sequence[Observer] | None = (),
) -> App:
    """Return an app with one typed listener on ``job.queue``; its retries wait for ``job.delay_ms``."""
    app = App(
        job.url if broker is None else broker,
        exchange=f"{job.queue}.events",
        namespace=job.queue,
        name="bench",
        database=database,
        observers=observers,
    )
    retry = (job.delay_ms / 1000,) if job.delay_ms else ()
    app.listen(KEY, queue=job.queue, prefetch=PREFETCH, concurrency=concurrency, retry=retry)(handle or _nothing)
    return app


async def _nothing(order: Order) -> None:
    """Take an order and do nothing with it."""
