"""Relaying: rows that were committed before, from PostgreSQL into a durable quorum queue, confirmed and deleted.

Rule: everybody publishes the same messages, all properties and two headers, mandatory, and a row is gone only after its
message was confirmed. The clock stops when the last row is gone.
"""

from __future__ import annotations

import asyncio
import time

from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from bench.application import KEY, application
from bench.cases import Benchmark, Case, Target, peer
from bench.job import HEADERS, ORDER, Job, Sample, rate
from carom import App, Emit
from carom.ports import Database
from carom.runtime import events

SEEDED = 2_000
POLL_S = 0.002
BARE = "bench.peers.bare_relay"

BENCHMARK = Benchmark(
    name="relay",
    about="rows in PostgreSQL → confirmed by a quorum queue → gone",
    messages=30_000,
    warm_up=0.2,
    database=True,
    cases=(
        Case("carom", "carom relay, keep_sent=0", __name__, "relay", needs="empty queue"),
        *(
            Case(
                f"bare-{batch}",
                f"asyncpg SELECT … FOR UPDATE SKIP LOCKED, pika, DELETE; batches of {batch}",
                BARE,
                f"relay_{batch}",
                "limit",
                "empty queue",
                declares=False,
            )
            for batch in (500, 1000, 2000)
        ),
        peer("kbairak", "the design of kbairak/outbox: aio-pika, gathers of 50", "relay", "empty queue", 0.5),
    ),
    targets={
        "carom": Target(
            ratios={"bare-500": 0.7, "bare-1000": 0.7, "bare-2000": 0.7, "kbairak": 2.5},
            at_least={"per_second": 25_000},
        )
    },
)


def database(job: Job) -> Database:
    """Return the database of a job, with tables of its own."""
    return Database(job.database, prefix=f"{job.queue.replace('.', '_')}_")


async def seed(app: App, job: Job, count: int) -> None:
    """Emit so many messages, in transactions of a few."""
    engine = create_async_engine(job.database)
    for start in range(0, count, SEEDED):
        async with AsyncSession(engine) as session, session.begin():
            size = min(SEEDED, count - start)
            app.emit_many(session, [Emit(KEY, ORDER, headers=HEADERS) for _ in range(size)])
    await engine.dispose()


async def relay(job: Job) -> Sample:
    """Relay everything; the app is as it comes, with its logging observer."""
    app = application(job, database=database(job), observers=None)
    await app.start(consume=False, relay=False)
    await seed(app, job, job.total)
    await app.stop()
    times: list[tuple[int, float]] = [(0, time.perf_counter())]

    def note(event: object) -> None:
        if isinstance(event, events.Relayed):
            times.append((times[-1][0] + event.count, time.perf_counter()))

    app.observe(note)
    await app.start(consume=False)
    while times[-1][0] < job.total or (app.relay is not None and app.relay.in_flight):
        await asyncio.sleep(POLL_S)
    ended = time.perf_counter()
    await app.stop()
    first, started = next((one for one in times if job.warm_up <= one[0] < job.total), times[0])
    return rate(job.total - first, ended - started)
