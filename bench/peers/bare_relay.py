"""The limit of a relay: asyncpg and pika's asyncio adapter in a loop, and nothing around them.

Rule: nothing is done here that a program could leave out: no leadership, no failures, no ordering, no events. The next
batch is read when the last one is gone.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import asyncpg
import pika

from bench.job import BODY, HEADERS, Job, Sample, rate
from bench.peers.pika_asyncio import ask, close, open_channel

TEXT = json.dumps(HEADERS)


class Confirms:
    """What is not confirmed yet, oldest first, so that one confirm for many costs no more than many."""

    def __init__(self) -> None:
        """Nothing is on its way."""
        self.sent = 0
        self.pending: dict[int, None] = {}
        self._empty: asyncio.Future[None] | None = None

    def confirmed(self, frame: Any) -> None:
        """Take a confirm."""
        tag, pending = frame.method.delivery_tag, self.pending
        if frame.method.multiple:
            while pending and (first := next(iter(pending))) <= tag:
                del pending[first]
        else:
            pending.pop(tag, None)
        if self._empty is not None and not pending:
            empty, self._empty = self._empty, None
            empty.set_result(None)

    async def all(self) -> None:
        """Wait until everything is confirmed."""
        if self.pending:
            self._empty = asyncio.get_running_loop().create_future()
            await self._empty


async def relay_500(job: Job) -> Sample:
    """Relay in batches of 500."""
    return await _relay(job, 500)


async def relay_1000(job: Job) -> Sample:
    """Relay in batches of 1,000."""
    return await _relay(job, 1000)


async def relay_2000(job: Job) -> Sample:
    """Relay in batches of 2,000."""
    return await _relay(job, 2000)


async def _relay(job: Job, batch: int) -> Sample:
    connection = await asyncpg.connect(job.database.replace("+asyncpg", ""))
    table = job.queue.replace(".", "_")
    await _fill(connection, table, job)
    channel = await open_channel(job.url)
    confirms = Confirms()
    await ask(channel.confirm_delivery, confirms.confirmed)
    done, first, started = 0, 0, time.perf_counter()
    while (sent := await _batch(connection, table, channel, confirms, job, batch)) > 0:
        done += sent
        if not first and job.warm_up <= done < job.total:
            first, started = done, time.perf_counter()
    seconds = time.perf_counter() - started
    await connection.execute(f"DROP TABLE {table}")
    await connection.close()
    await close(channel)
    return rate(done - first, seconds)


async def _fill(connection: Any, table: str, job: Job) -> None:
    await connection.execute(
        f"CREATE TABLE {table} (seq bigserial PRIMARY KEY, id text NOT NULL, routing_key text NOT NULL, "
        "body bytea NOT NULL, content_type text NOT NULL, headers text NOT NULL)"
    )
    records = [
        (f"0190b6a8-0000-7000-8000-{number:012d}", job.queue, BODY, "application/json", TEXT)
        for number in range(job.total)
    ]
    columns = ("id", "routing_key", "body", "content_type", "headers")
    await connection.copy_records_to_table(table, records=records, columns=columns)


async def _batch(connection: Any, table: str, channel: Any, confirms: Confirms, job: Job, batch: int) -> int:
    async with connection.transaction():
        rows = await connection.fetch(
            f"SELECT seq, id, routing_key, body, content_type, headers FROM {table} "  # noqa: S608 - a name of our own
            "ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED",
            batch,
        )
        for _, identity, routing_key, body, content_type, headers in rows:
            confirms.sent += 1
            confirms.pending[confirms.sent] = None
            properties = pika.BasicProperties(
                delivery_mode=2,
                content_type=content_type,
                message_id=identity,
                correlation_id=identity,
                timestamp=1_700_000_000,
                app_id="bench",
                headers=json.loads(headers),
            )
            channel.basic_publish("", routing_key, body, properties, mandatory=True)
        await confirms.all()
        await connection.execute(f"DELETE FROM {table} WHERE seq = ANY($1)", [row[0] for row in rows])  # noqa: S608 - a name of our own
    return len(rows)
