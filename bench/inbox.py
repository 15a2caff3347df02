"""The inbox: a typed message, a row that its handler writes, the record that it was handled, one commit; then the ack.

Rule: every message has an id of its own, and afterwards there is a row for each, a record for each, and no message.
The limit writes the same rows and commits as often, with the driver alone and without a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from bench.application import CONCURRENCY, KEY
from bench.cases import Benchmark, Case, Target
from bench.job import IN_FLIGHT, ORDER, PREFETCH, Job, Order, Sample, Stopwatch
from carom import App, Emit
from carom.ports import Database

BATCH = 200
BATCHES_AT_ONCE = 4

BENCHMARK = Benchmark(
    name="inbox",
    about="an idempotent listener that writes a row, on PostgreSQL",
    messages=10_000,
    rounds=3,
    database=True,
    cases=(
        Case("carom", "carom idempotent=True, insert()", __name__, "one_by_one"),
        Case("carom-orm", "carom idempotent=True, AsyncSession.add", __name__, "one_by_one_orm"),
        Case("carom-batches", f"carom idempotent=True, batch={BATCH}, insert()", __name__, "in_batches"),
        Case("carom-transaction", "carom with a session, not idempotent, insert()", __name__, "without_memory"),
        Case("asyncpg", f"asyncpg alone, two inserts and a commit, {CONCURRENCY} at a time", __name__, "bare", "limit"),
        Case("asyncpg-batches", f"asyncpg alone, inserts of {BATCH} and a commit", __name__, "bare_batches", "limit"),
    ),
    targets={
        "carom": Target(at_least={"per_second": 2_500}),
        "carom-batches": Target(at_least={"per_second": 15_000}),
    },
)


class Tables(DeclarativeBase):
    """The application's own tables."""


class Charge(Tables):
    """What the handler writes."""

    __tablename__ = "bench_charges"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    note: Mapped[str]


INSERT = insert(Tables.metadata.tables[Charge.__tablename__])


async def one_by_one(job: Job) -> Sample:
    """Handle each message in a transaction of its own, and remember it."""
    return await _handle(job, idempotent=True)


async def one_by_one_orm(job: Job) -> Sample:
    """Do the same with an object for the row."""
    ended = asyncio.Event()
    watch = Stopwatch(job, ended.set)

    async def charge(order: Order, session: AsyncSession) -> None:
        session.add(Charge(customer=order.customer, note=order.note))
        watch.count()

    return await _measure(job, charge, ended, watch, idempotent=True)


async def without_memory(job: Job) -> Sample:
    """Handle each message in a transaction of its own."""
    return await _handle(job, idempotent=False)


async def _handle(job: Job, *, idempotent: bool) -> Sample:
    ended = asyncio.Event()
    watch = Stopwatch(job, ended.set)

    async def charge(order: Order, session: AsyncSession) -> None:
        await session.execute(INSERT, {"customer": order.customer, "note": order.note})
        watch.count()

    return await _measure(job, charge, ended, watch, idempotent=idempotent)


async def in_batches(job: Job) -> Sample:
    """Handle batches, each in a transaction."""
    ended = asyncio.Event()
    watch = Stopwatch(job, ended.set)

    async def charge(orders: list[Order], session: AsyncSession) -> None:
        await session.execute(INSERT, [{"customer": one.customer, "note": one.note} for one in orders])
        for _ in orders:
            watch.count()

    return await _measure(
        job, charge, ended, watch, batch=BATCH, prefetch=(BATCHES_AT_ONCE + 1) * BATCH, concurrency=BATCHES_AT_ONCE
    )


async def _measure(
    job: Job,
    charge: Callable[..., Any],
    ended: asyncio.Event,
    watch: Stopwatch,
    **options: Any,
) -> Sample:
    """Publish everything, then handle it; afterwards everything is there once."""
    prefix = f"{job.queue.replace('.', '_')}_"
    app = App(
        job.url,
        exchange=f"{job.queue}.events",
        namespace=job.queue,
        name="bench",
        database=Database(job.database, prefix=prefix),
        retry=(),
        observers=(),
    )
    app.listen(KEY, queue=job.queue, **{"prefetch": PREFETCH, "idempotent": True, **options})(charge)
    connection = await asyncpg.connect(_address(job))
    await _create(connection)
    await app.start(consume=False, relay=False)
    for start in range(0, job.total, IN_FLIGHT):
        await app.publish_many([Emit(KEY, ORDER) for _ in range(min(IN_FLIGHT, job.total - start))])
    await app.stop()
    await app.start(relay=False)
    await ended.wait()
    await app.stop()
    found = await connection.fetchval("SELECT count(*) FROM bench_charges")
    await connection.execute("DROP TABLE bench_charges")
    for table in ("outbox", "inbox", "lease", "version"):
        await connection.execute(f'DROP TABLE IF EXISTS "{prefix}{table}"')
    await connection.close()
    if found != job.total:
        raise AssertionError(f"{found} rows were written for {job.total} messages")
    return watch.sample()


async def bare(job: Job) -> Sample:
    """Write what is written for each message, so many at a time."""
    return await _bare(job, 1, CONCURRENCY)


async def bare_batches(job: Job) -> Sample:
    """Write what is written for each batch."""
    return await _bare(job, BATCH, BATCHES_AT_ONCE)


async def _bare(job: Job, size: int, at_once: int) -> Sample:
    watch = Stopwatch(job, lambda: None)
    connection = await asyncpg.connect(_address(job))
    await _create(connection)
    await connection.execute("CREATE TABLE bench_seen (queue text, id text, PRIMARY KEY (queue, id))")
    numbers = iter(range(0, job.total, size))

    async def work() -> None:
        own = await asyncpg.connect(_address(job))
        for start in numbers:
            ids = [f"{job.queue}-{start + index}" for index in range(min(size, job.total - start))]
            async with own.transaction():
                await own.execute(
                    "INSERT INTO bench_seen SELECT $1, unnest($2::text[]) ON CONFLICT DO NOTHING", job.queue, ids
                )
                await own.execute(
                    "INSERT INTO bench_charges (customer, note) SELECT $1, $2 FROM unnest($3::text[])",
                    ORDER.customer,
                    ORDER.note,
                    ids,
                )
            for _ in ids:
                watch.count()
        await own.close()

    await asyncio.gather(*(work() for _ in range(at_once)))
    await connection.execute("DROP TABLE bench_charges, bench_seen")
    await connection.close()
    return watch.sample()


async def _create(connection: asyncpg.Connection) -> None:
    await connection.execute("DROP TABLE IF EXISTS bench_charges, bench_seen")
    await connection.execute("CREATE TABLE bench_charges (id bigserial PRIMARY KEY, customer text, note text)")


def _address(job: Job) -> str:
    return job.database.replace("+asyncpg", "")
