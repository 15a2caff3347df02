"""The program of `test_promises`: ``python -m promised work`` handles, ``python -m promised relay`` relays.

Rule: every effect of a handler is a row, and no row is unique, so that an effect that happens twice shows.
"""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec
from sqlalchemy import Column, Integer, MetaData, String, Table
from sqlalchemy.ext.asyncio import AsyncSession

from carom import App, Message, Reject

METADATA = MetaData()
EFFECTS = Table(
    "effects",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("queue", String, nullable=False),
    Column("number", Integer, nullable=False),
)


class Job(msgspec.Struct):
    number: int
    kind: str


class Unlucky(Exception):
    """The first attempt of a flaky job."""


def build(broker: str, database: str) -> App:
    """Make the app."""
    app = App(
        broker,
        database=database,
        name="promised",
        namespace="promised",
        exchange="promised",
        retry=("50ms", "200ms"),
        grace="5s",
    )

    @app.listen("job", queue="promised.work", idempotent=True, concurrency=4, prefetch=6)
    async def work(job: Job, message: Message, session: AsyncSession) -> None:
        await session.execute(EFFECTS.insert().values(queue="work", number=job.number))
        if job.kind == "chain":
            app.emit(session, "followed", job, key=f"chain-{job.number % 10}")
        if job.kind == "poison":
            raise Reject("it can never be done")
        if job.kind == "flaky" and message.attempt == 1:
            raise Unlucky

    @app.listen("followed", queue="promised.count", idempotent=True, concurrency=4)
    async def count(job: Job, session: AsyncSession) -> None:
        await session.execute(EFFECTS.insert().values(queue="count", number=job.number))

    return app


if __name__ == "__main__":
    made = build(os.environ["CAROM_BROKER"], os.environ["CAROM_DATABASE"])
    does_work = sys.argv[1] == "work"
    asyncio.run(made.run(consume=does_work, relay=not does_work))
