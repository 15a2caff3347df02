"""The shop of `examples/shop` as real processes, its customers, and those who kill it.

Rule: what a customer was told is written down when he was told it; the books are compared with that, and with nothing
that a program of the shop says of itself.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg

from carom import App
from processes import CLOCK, POLL_MS, Programs
from servers.server import HOST, free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "shop"
REFUSED_EVERY = 7
RICH, POOR = 200_000, 1_250
ANSWER_S = 15
CUSTOMERS = 8
LEADER_S = 15
"""How long it may take until somebody leads: a lease has to end first."""


class Shop:
    """The processes of one shop, and what its customers were told."""

    def __init__(self, programs: Programs, connect: Callable[[], Any]) -> None:
        self.programs = programs
        self.connect = connect
        self.port = free_port()
        self.taken: set[str] = set()
        self.refused = 0
        self.unknown = 0
        self._numbers = iter(range(1_000_000))

    def open(self, workers: int, relays: int) -> None:
        """Start everybody."""
        web = ("uvicorn", "web:api", "--app-dir", EXAMPLE, "--host", HOST, "--port", self.port)
        self.programs.start("web", *web, "--log-level", "warning")
        for number in range(workers):
            self.programs.start(f"worker{number}", "carom", "run", "shop:app", "--app-dir", EXAMPLE)
        for number in range(relays):
            self.programs.start(f"relay{number}", "carom", "relay", "shop:app", "--app-dir", EXAMPLE)

    # -- customers -----------------------------------------------------------------------------------------

    async def sell(self, count: int, within_s: float) -> None:
        """Let customers come until so many orders were answered, one way or the other."""
        wanted = iter(range(count))

        async def customer() -> None:
            async with httpx.AsyncClient(base_url=f"http://{HOST}:{self.port}", timeout=ANSWER_S) as client:
                for _ in wanted:
                    await self._order(client, next(self._numbers))

        async with asyncio.timeout(within_s):
            await asyncio.gather(*(customer() for _ in range(CUSTOMERS)))

    async def _order(self, client: httpx.AsyncClient, number: int) -> None:
        is_rich = number % REFUSED_EVERY == 0
        basket = {"customer": f"{'rich' if is_rich else 'poor'}-{number}", "cents": RICH if is_rich else POOR}
        while True:
            with suppress(httpx.HTTPError):
                answer = await client.post("/orders", json=basket)
                if answer.status_code == 201:
                    assert not is_rich
                    self.taken.add(answer.json()["order"])
                    return
                if answer.status_code == 422:
                    assert is_rich
                    self.refused += 1
                    return
            self.unknown += 1  # he does not know, and orders again
            await CLOCK.sleep(POLL_MS)

    # -- what is killed ------------------------------------------------------------------------------------

    async def kill_the_leader(self) -> None:
        """Kill whoever relays now."""
        for _ in range(LEADER_S * 1000 // POLL_MS):
            holder = self.ask("SELECT holder FROM carom_lease WHERE name = 'relay'")
            name = self.programs.name_of(int(holder[0][0].split(":")[1])) if holder else None
            if name is not None:
                self.programs.kill(name)
                return
            await CLOCK.sleep(POLL_MS)
        raise AssertionError(f"nobody leads after {LEADER_S} s")

    async def supervise(self) -> None:
        """Start again what ends by itself, until cancelled."""
        while True:
            self.programs.supervise()
            await CLOCK.sleep(POLL_MS)

    # -- the books -----------------------------------------------------------------------------------------

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        """Return rows; none while the database is away."""
        with suppress(psycopg.Error, sqlite3.Error), closing(self.connect()) as connection:
            found: list[tuple[object, ...]] = connection.execute(sql).fetchall()
            return found
        return []

    def number(self, sql: str) -> int | None:
        """Return the one number that is asked for; None while the database is away."""
        rows = self.ask(sql)
        return int(str(rows[0][0])) if rows else None

    def open_orders(self) -> int | None:
        """Return how many orders are not shipped yet."""
        return self.number("SELECT COUNT(*) FROM orders WHERE id NOT IN (SELECT order_id FROM shipments)")

    def check(self) -> None:
        """Compare the books with what customers were told, row by row."""
        orders = dict(self.ask("SELECT id, cents FROM orders"))
        assert self.taken <= orders.keys(), "an order that was taken is not there"
        assert set(orders.values()) == {POOR}, "an order that was rolled back is there"
        assert len(orders) - len(self.taken) <= self.unknown
        payments = self.ask("SELECT order_id, cents FROM payments")
        assert sorted(payments) == sorted(orders.items()), "not one payment for each order"
        shipments = [order for (order,) in self.ask("SELECT order_id FROM shipments")]
        assert sorted(shipments) == sorted(orders), "not one shipment for each order"

    def count(self) -> dict[str, object]:
        """Ask the shop's own bookkeeper."""
        done = subprocess.run(
            [sys.executable, EXAMPLE / "books.py"],
            cwd=self.programs.folder,
            env=self.programs.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=ANSWER_S * 2,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)


Deed = Callable[[], Awaitable[object]]


async def sell_under_fire(shop: Shop, deeds: list[Deed], orders_each: int, within_s: float) -> None:
    """Let orders come in waves, and in the middle of each do something bad."""
    deadline = time.monotonic() + within_s
    for deed in deeds:
        answered = shop.refused + len(shop.taken)
        wave = asyncio.ensure_future(shop.sell(orders_each, deadline - time.monotonic()))
        try:
            while shop.refused + len(shop.taken) < answered + orders_each // 4 and not wave.done():
                await CLOCK.sleep(1)
            await deed()
            await wave
        finally:
            wave.cancel()


def topology_of(app: App) -> list[str]:
    """Return the names of all queues."""
    return [queue.name for queue in app.topology.queues]
