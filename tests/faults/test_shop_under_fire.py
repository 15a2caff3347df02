"""The shop takes orders while everything around it is being killed, and its books balance.

Web process, workers, the leading relay, RabbitMQ and PostgreSQL are killed with ``kill -9`` and started again, in the
middle of orders. In the end each order that was committed has exactly one payment and one shipment, those that were
rolled back never appear, and nothing is left over anywhere.

Rule: nothing is waited for but what has to come, and that with a deadline.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import random
import sqlite3
import sys
from contextlib import asynccontextmanager

import psycopg
import pytest

from brokers.rabbitmq.rabbit_stage import until
from carom.brokers.embedded.file import FileBroker
from carom.brokers.rabbitmq import RabbitBroker
from carom.runtime.clock import RealClock
from databases import database_of_its_own, spoken_by
from faults.shop_stage import EXAMPLE, Shop, sell_under_fire, topology_of
from processes import Programs, await_answer

WITHIN_S = 150
WORKERS, RELAYS = 3, 1


@pytest.fixture
def queues(monkeypatch):
    """Return the names of every queue that the shop has."""
    spec = importlib.util.spec_from_file_location("example_shop", EXAMPLE / "shop.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # SQLAlchemy looks up annotations there
    spec.loader.exec_module(module)
    return topology_of(module.app)


@asynccontextmanager
async def opened(folder, broker, database, connect):
    """Open a shop; when the test fails, what its programs said is told."""
    with Programs(folder, {"CAROM_BROKER": broker, "CAROM_DATABASE": database}) as programs:
        shop = Shop(programs, connect)
        shop.open(WORKERS, RELAYS)
        try:
            await asyncio.to_thread(await_answer, shop.port, programs)
            supervising = asyncio.ensure_future(shop.supervise())
            try:
                yield shop
            finally:
                supervising.cancel()
        except Exception as error:
            error.add_note(programs.story())
            raise


async def until_nothing_is_left(shop, broker, queues):
    """Wait until all is shipped, and look that nothing is left over: no row, no message, no dead letter."""
    await until(lambda: shop.open_orders() == 0, "every order to be shipped", WITHIN_S)
    await until(lambda: shop.number("SELECT COUNT(*) FROM carom_outbox") == 0, "an empty outbox", WITHIN_S)
    await broker.open()
    try:

        async def empty():
            depths = await broker.depths(queues)
            return all(depth is not None and not depth.ready and not depth.unacked for depth in depths.values())

        await until(empty, "empty queues", WITHIN_S)
    finally:
        await broker.close()


async def test_the_books_balance_on_postgresql_and_rabbitmq(
    rabbitmq, postgres, empty_rabbitmq_url, tmp_path, queues, record_property
):
    chance = random.Random(4)
    with database_of_its_own(postgres.url) as url:
        connect = functools.partial(psycopg.connect, url)
        async with opened(tmp_path, empty_rabbitmq_url, spoken_by("asyncpg", url), connect) as shop:

            async def kill(name):
                shop.programs.kill(name)

            async def restart(server):
                await asyncio.to_thread(server.restart)

            await shop.sell(20, WITHIN_S)
            await until(lambda: shop.open_orders() == 0, "the first orders to be shipped", WITHIN_S)
            await asyncio.to_thread(rabbitmq.remember_queues)
            deeds = [lambda name=f"worker{number % WORKERS}": kill(name) for number in range(5)]
            deeds += [lambda: kill("web")] * 2
            deeds += [shop.kill_the_leader] * 3
            deeds += [lambda: restart(postgres)] * 2
            deeds += [lambda: restart(rabbitmq)]
            chance.shuffle(deeds)
            await sell_under_fire(shop, deeds, 50, WITHIN_S)
            await until_nothing_is_left(shop, RabbitBroker(empty_rabbitmq_url, RealClock()), queues)
            shop.check()
            assert shop.count()["balance"] is True
    assert len(shop.taken) > 500
    assert shop.refused > 80
    assert shop.programs.kills.total() == 10
    record_property("taken, refused, not known", (len(shop.taken), shop.refused, shop.unknown))


async def test_the_books_balance_on_two_files(tmp_path, queues):
    chance = random.Random(5)
    database = tmp_path / "shop.db"
    broker = tmp_path / "broker.db"
    connect = functools.partial(sqlite3.connect, database)
    async with opened(tmp_path, f"embedded:///{broker}", f"sqlite+aiosqlite:///{database}", connect) as shop:

        async def kill(name):
            shop.programs.kill(name)

        deeds = [lambda name=f"worker{number % WORKERS}": kill(name) for number in range(5)]
        deeds += [lambda: kill("web"), shop.kill_the_leader, shop.kill_the_leader]
        chance.shuffle(deeds)
        await sell_under_fire(shop, deeds, 24, WITHIN_S)
        await until_nothing_is_left(shop, FileBroker(broker, RealClock()), queues)
        shop.check()
        assert shop.count()["balance"] is True
    assert len(shop.taken) > 150
    assert shop.programs.kills.total() == 8
