"""Outbox: how PostgreSQL finds what a relay asks for among millions of rows, and how long that takes.

    .venv/bin/python -m bench.outbox --database postgresql+asyncpg://host/empty --rows 10000000

Most rows are sent ones that are kept; of a thousand, 900 are sent, 40 wait, 5 wait after a failure, 5 are parked and 50
are ready. It takes a database that is its own, and leaves its tables there for whoever wants to look.

Rule: what is explained is what the store runs, the very statements with their parameters.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, event, text

from carom.core.relaying import Again, Parked, Sent
from carom.ports import Database, Lease
from carom.stores import SqlStore, connect

FILL = """
INSERT INTO {outbox} (id, exchange, routing_key, body, content_type, properties, headers, ordering_key,
                      wait_until, attempts, last_error, sent_at, parked_at)
SELECT md5(n::text), 'events', 'order.created', '\\x00010203040506070809'::bytea, 'application/json', '', '',
       CASE WHEN n % 10 = 1 THEN 'customer ' || n % 5000 ELSE '' END,
       CASE WHEN n % 1000 BETWEEN 900 AND 944 THEN now() + n * interval '10 milliseconds' END,
       CASE WHEN n % 1000 BETWEEN 940 AND 949 THEN 1 ELSE 0 END,
       CASE WHEN n % 1000 BETWEEN 940 AND 949 THEN 'returned: 312 NO_ROUTE' END,
       CASE WHEN n % 1000 < 900 THEN now() - interval '1 day' + n * interval '1 millisecond' END,
       CASE WHEN n % 1000 BETWEEN 945 AND 949 THEN now() END
FROM generate_series({first}, {last}) AS n
"""
CHUNK = 500_000
LEASE_MS = 600_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What one call costs: how long it took, and how its statements were run."""

    call: str
    ms: float
    statements: tuple[str, ...]

    @property
    def scans_all(self) -> bool:
        """Return whether the outbox was read from its beginning to its end."""
        return any(
            "Seq Scan on" in plan and "outbox" in plan.split("Seq Scan on", 1)[1][:80] for plan in self.statements
        )


async def fill(store: SqlStore, outbox: str, rows: int) -> None:
    """Write rows of all kinds, and let the database look at them."""
    engine = store.engines.asynchronous
    for first in range(1, rows + 1, CHUNK):
        async with engine.begin() as connection:
            last = min(first + CHUNK - 1, rows)
            await connection.exec_driver_sql(FILL.format(outbox=outbox, first=first, last=last))
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text(f"VACUUM ANALYZE {outbox}"))


@asynccontextmanager
async def explaining(store: SqlStore) -> AsyncIterator[list[str]]:
    """Explain every statement on the outbox that is run meanwhile."""
    plans: list[str] = []
    busy = False

    def explain(connection: Connection, _cursor: object, statement: str, parameters: Any, *_rest: object) -> None:
        nonlocal busy
        if busy or "outbox" not in statement or statement.startswith(("EXPLAIN", "SELECT pg_notify")):
            return
        busy = True
        try:
            found = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)
            plans.append("\n".join(str(line[0]) for line in found))
        finally:
            busy = False

    engine = store.engines.asynchronous.sync_engine
    event.listen(engine, "before_cursor_execute", explain)
    try:
        yield plans
    finally:
        event.remove(engine, "before_cursor_execute", explain)


async def plans(store: SqlStore, lease: Lease) -> Sequence[Plan]:
    """Run what a relay and its housekeeping run, timed without and explained with `EXPLAIN`."""
    first = await store.claim(2_000, [])
    flying = [row.seq for row in first]
    calls: Mapping[str, Any] = {
        "claim 1000": lambda: store.claim(1_000, []),
        "claim 1000 with 2000 in flight": lambda: store.claim(1_000, flying),
        "release": store.release,
        "mark 500 sent, 1 again, 1 parked": lambda: store.mark(
            lease,
            [
                *(Sent(row.seq) for row in first[:500]),
                Again(first[500].seq, 60_000, "returned"),
                Parked(first[501].seq, "no"),
            ],
        ),
        "forget_sent 1000": lambda: store.forget_sent(1_000),
        "expedite 1": lambda: store.expedite(flying[-1:]),
        "cancel 1": lambda: store.cancel(flying[-1:]),
        "find 20 parked": lambda: store.find(["parked"], 20),
    }
    found = []
    for name, call in calls.items():
        await call()
        began = time.perf_counter()
        await call()
        ms = (time.perf_counter() - began) * 1000
        async with explaining(store) as explained:
            await call()
        found.append(Plan(name, round(ms, 2), tuple(explained)))
    return found


async def measure(url: str, rows: int) -> Sequence[Plan]:
    """Fill an empty outbox when it is empty, and return what its calls cost."""
    store = connect(Database(url, keep_sent="1h"))
    await store.open("apply")
    try:
        if (await store.find(["sent", "ready"], 1)) == []:
            await fill(store, "carom_outbox", rows)
        lease = await store.lead("bench", LEASE_MS)
        if lease is None:
            raise SystemExit("somebody leads: this takes a database of its own")
        return await plans(store, lease)
    finally:
        await store.close()


def main() -> None:
    """Measure, and print a line of JSON for each call."""
    parser = argparse.ArgumentParser(prog="bench.outbox", description="Plans and times of an outbox with many rows.")
    parser.add_argument("--database", required=True, metavar="URL")
    parser.add_argument("--rows", type=int, default=200_000)
    asked = parser.parse_args()
    for plan in asyncio.run(measure(asked.database, asked.rows)):
        print(json.dumps({"bench": "outbox", "case": plan.call, "rows": asked.rows, "ms": plan.ms}), flush=True)
        print(json.dumps({"case": plan.call, "plans": plan.statements}), flush=True)


if __name__ == "__main__":
    main()
