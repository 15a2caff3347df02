"""The relay of kbairak/outbox as its design describes it: aio-pika, a gather of 50, and one statement that marks them.

Rule: what it does for each batch is done here and nothing else: select, skip locked, in a transaction; publish all at
once; delete. Its metrics and its waiting for a notification are left out.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aio_pika
import asyncpg

from bench.job import BODY, HEADERS, Job, Sample, rate

BATCH = 50


async def relay(job: Job) -> Sample:
    """Relay everything."""
    pool = await asyncpg.create_pool(job.database.replace("+asyncpg", ""))
    table = job.queue.replace(".", "_")
    async with pool.acquire() as connection:
        await _fill(connection, table, job)
    broker = await aio_pika.connect_robust(job.url)
    channel = await broker.channel(publisher_confirms=True)
    done, first, started = 0, 0, time.perf_counter()
    while (sent := await _batch(pool, table, channel.default_exchange)) > 0:
        done += sent
        if not first and job.warm_up <= done < job.total:
            first, started = done, time.perf_counter()
    seconds = time.perf_counter() - started
    await pool.execute(f"DROP TABLE {table}")
    await broker.close()
    await pool.close()
    return rate(done - first, seconds)


async def _fill(connection: Any, table: str, job: Job) -> None:
    await connection.execute(
        f"CREATE TABLE {table} (id serial PRIMARY KEY, routing_key text NOT NULL, body bytea NOT NULL, "
        "tracking_ids jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), expiration interval, "
        "send_after timestamptz NOT NULL, sent_at timestamptz)"
    )
    await connection.execute(f"CREATE INDEX ON {table} (send_after, created_at) WHERE sent_at IS NULL")
    await connection.execute(
        f"INSERT INTO {table} (routing_key, body, tracking_ids, send_after) "  # noqa: S608 - a name of our own
        "SELECT $1, $2, $3, now() FROM generate_series(1, $4)",
        job.queue,
        BODY,
        json.dumps(["0190b6a8-0000-7000-8000-000000000000"]),
        job.total,
    )


async def _batch(pool: Any, table: str, exchange: Any) -> int:
    async with pool.acquire() as connection, connection.transaction():
        rows = await connection.fetch(
            f"SELECT id, routing_key, body, tracking_ids, expiration FROM {table} "  # noqa: S608 - a name of our own
            "WHERE sent_at IS NULL AND send_after <= now() ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED",
            BATCH,
        )
        await asyncio.gather(
            *(
                exchange.publish(
                    aio_pika.Message(
                        row["body"],
                        content_type="application/json",
                        headers={**HEADERS, "x-outbox-tracking-ids": row["tracking_ids"]},
                        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                    ),
                    row["routing_key"],
                )
                for row in rows
            )
        )
        await connection.execute(f"DELETE FROM {table} WHERE id = ANY($1)", [row["id"] for row in rows])  # noqa: S608 - a name of our own
    return len(rows)
