"""Emit: what a promise costs beside a plain insert of the same size; claiming, marking and admitting rows.

    .venv/bin/python -m bench.emit --database postgresql://host/empty

It takes a database that is its own. What is compared is measured in turns, in the same transactions: an order is
inserted through the ORM, and beside it either a row like that of an outbox, through the ORM, or a promise.

Rule: the median of the rounds counts, and a ratio is one median by another of the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import uuid4

from sqlalchemy import BigInteger, Identity, LargeBinary, Text, make_url
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from carom.core.message import Message
from carom.core.relaying import Entry, Sent
from carom.ports import Database
from carom.stores import SqlStore, connect

ROUNDS, TIMES, WARM = 7, 200, 50
MANY = 20_000
BATCH, RELAYED = 1_000, 20
TASKS, EACH, INBOX_BATCH, BATCHES = 16, 100, 200, 50
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Tables(DeclarativeBase):
    """The application's own tables."""


class Order(Tables):
    """What the application is about."""

    __tablename__ = "bench_order"
    id: Mapped[str] = mapped_column(Text, primary_key=True)
    amount: Mapped[int]


class Plain(Tables):
    """A row like that of an outbox, as one would write it oneself."""

    __tablename__ = "bench_plain"
    seq: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    id: Mapped[str] = mapped_column(Text)
    exchange: Mapped[str] = mapped_column(Text)
    routing_key: Mapped[str] = mapped_column(Text)
    body: Mapped[bytes] = mapped_column(LargeBinary)
    content_type: Mapped[str] = mapped_column(Text)
    properties: Mapped[str] = mapped_column(Text)
    headers: Mapped[str] = mapped_column(Text)


def order() -> Order:
    """Return an order that is not there yet."""
    return Order(id=str(uuid4()), amount=1)


def entry() -> Entry:
    """Return a message of 256 bytes with what the runtime adds to it."""
    fields: dict[str, Any] = {"exchange": "events", "routing_key": "order.created", "content_type": "application/json"}
    fields |= {"correlation_id": "x" * 36, "headers": {"traceparent": TRACE}}
    return Entry(Message(body=b"x" * 256, id=str(uuid4()), **fields))


def plain() -> Plain:
    """Return a row of the same size."""
    headers, properties = json.dumps({"traceparent": TRACE}), json.dumps({"correlation_id": "x" * 36})
    named = {"id": str(uuid4()), "exchange": "events", "routing_key": "order.created", "body": b"x" * 256}
    return Plain(**named, content_type="application/json", properties=properties, headers=headers)


Case = Callable[[], Awaitable[None]]


def pairs(store: SqlStore) -> Mapping[str, tuple[Case, Case]]:
    """Return what is compared: with a promise, and with a plain row."""
    waiting, threaded = store.engines.asynchronous, store.engines.synchronous

    async def promise() -> None:
        async with AsyncSession(waiting) as session:
            session.add(order())
            store.add(session, [entry()])
            await session.commit()

    async def insert() -> None:
        async with AsyncSession(waiting) as session:
            session.add(order())
            session.add(plain())
            await session.commit()

    async def promise_now() -> None:
        with Session(threaded) as session:
            session.add(order())
            store.add(session, [entry()])
            session.commit()

    async def insert_now() -> None:
        with Session(threaded) as session:
            session.add(order())
            session.add(plain())
            session.commit()

    return {
        f"emit, AsyncSession on {waiting.dialect.driver}": (promise, insert),
        f"emit, Session on {threaded.dialect.driver}": (promise_now, insert_now),
    }


async def compared(one: Case, other: Case) -> tuple[float, float]:
    """Return the median times of both, in seconds, measured in turns."""
    for case in (one, other):
        for _ in range(WARM):
            await case()
    times: dict[Case, list[float]] = {one: [], other: []}
    for _ in range(ROUNDS):
        for case in (one, other):
            began = time.perf_counter()
            for _ in range(TIMES):
                await case()
            times[case].append((time.perf_counter() - began) / TIMES)
    return statistics.median(times[one]), statistics.median(times[other])


async def many(store: SqlStore) -> Mapping[str, float]:
    """Return how many rows a second are added and flushed, by session."""
    found: dict[str, list[float]] = {}
    for _ in range(3):
        entries = [entry() for _ in range(MANY)]
        async with AsyncSession(store.engines.asynchronous) as session:
            began = time.perf_counter()
            store.add(session, entries)
            await session.flush()
            found.setdefault("emit_many, AsyncSession", []).append(MANY / (time.perf_counter() - began))
            await session.commit()
        with Session(store.engines.synchronous) as plainly:
            began = time.perf_counter()
            store.add(plainly, entries)
            plainly.flush()
            found.setdefault("emit_many, Session", []).append(MANY / (time.perf_counter() - began))
    return {name: statistics.median(rates) for name, rates in found.items()}


async def relayed(store: SqlStore) -> Mapping[str, float]:
    """Return how many rows a second are claimed, and marked as sent, by one who does nothing else."""
    lease = await store.lead("bench", 600_000)
    if lease is None:
        raise SystemExit("somebody leads: this takes a database of its own")
    claims, marks = [], []
    for _ in range(RELAYED):
        began = time.perf_counter()
        rows = await store.claim(BATCH, [])
        claimed = time.perf_counter()
        await store.mark(lease, [Sent(row.seq) for row in rows])
        claims.append((claimed - began) / len(rows))
        marks.append((time.perf_counter() - claimed) / len(rows))
    claim, mark = statistics.median(claims), statistics.median(marks)
    return {"claim 1000": 1 / claim, "mark 1000": 1 / mark, "claim and mark 1000": 1 / (claim + mark)}


async def handled(store: SqlStore) -> Mapping[str, tuple[float, float]]:
    """Return how many messages a second 16 tasks handle with one order each: with the inbox, and without."""

    async def once(size: int, times: int, *, inbox: bool) -> None:
        for _ in range(times):
            orders = [order() for _ in range(size)]
            if inbox:
                async with store.begin(synchronous=False) as unit:
                    await unit.admit("billing.charge", [(one.id, 1) for one in orders])
                    unit.session.add_all(orders)  # type: ignore[attr-defined]  # it is an AsyncSession
                    await unit.commit()
            else:
                async with AsyncSession(store.engines.asynchronous, expire_on_commit=False) as session:
                    session.add_all(orders)
                    await session.commit()

    async def rate(size: int, times: int, tasks: int, *, inbox: bool) -> float:
        began = time.perf_counter()
        await asyncio.gather(*(once(size, times, inbox=inbox) for _ in range(tasks)))
        return size * times * tasks / (time.perf_counter() - began)

    found = {}
    for name, size, times, tasks in (
        ("handle one by one, 16 at a time", 1, EACH, TASKS),
        ("handle in batches of 200", INBOX_BATCH, BATCHES // 4, 4),
    ):
        both: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(4):
            for inbox in (False, True):
                both[inbox].append(await rate(size, times, tasks, inbox=inbox))
        found[name] = (statistics.median(both[True][1:]), statistics.median(both[False][1:]))
    return found


async def measure(url: str) -> None:
    """Print a line of JSON for each case."""
    chosen = make_url(url)
    for driver in ("asyncpg", "psycopg"):
        store = connect(Database(chosen.set(drivername=f"postgresql+{driver}"), prefix=f"bench_{driver}_"))
        await store.open("apply")
        async with store.engines.asynchronous.begin() as connection:
            await connection.run_sync(Tables.metadata.create_all)
        for name, (one, other) in pairs(store).items():
            with_promise, with_row = await compared(one, other)
            _say(name, 1 / with_promise, {"time of a plain ORM insert": with_promise / with_row})
        for name, rate in (await many(store)).items():
            _say(f"{name} on {driver}", rate, {})
        for name, rate in (await relayed(store)).items():
            _say(f"{name} on {driver}", rate, {})
        for name, (inbox, without) in (await handled(store)).items():
            _say(f"{name}, {driver}", inbox, {"the same without an inbox": inbox / without})
        await store.close()


def _say(case: str, per_second: float, ratios: Mapping[str, float]) -> None:
    ratio_to = {name: round(ratio, 3) for name, ratio in ratios.items()}
    said = {"bench": "emit", "case": case, "per_second": round(per_second, 1), "ratio_to": ratio_to}
    print(json.dumps(said), flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="bench.emit", description="What an outbox and an inbox cost on PostgreSQL.")
    parser.add_argument("--database", required=True, metavar="URL")
    asyncio.run(measure(parser.parse_args().database))


if __name__ == "__main__":
    main()
