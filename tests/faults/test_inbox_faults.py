"""The inbox on real servers: killed between any two steps, deadlocked, cut off. Every effect is there exactly once.

Rule: a test proves that its fault has happened, and that everything is settled when it counts.
"""

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from uuid import uuid4

import pytest
from inbox_worker import NEVER, RETRY, Job, Orders
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from brokers.rabbitmq.rabbit_stage import CLOCK, drained, opened, until
from carom import Emit, Message
from carom.core import message as names
from carom.failpoints import VARIABLE
from carom.ports import StoreDown, StoreUp
from carom.runtime import events

WORKER = Path(__file__).parent / "inbox_worker.py"
PATIENCE_S = 60
PLACES = (
    "inbox.admitted",
    "inbox.handled",
    "inbox.committed",
    "consumer.published",
    "inbox.recorded",
    "consumer.acked",
)
"""Everywhere between a delivery and what comes after its acknowledgement, in the order in which a worker gets there."""


def split(jobs):
    """Return the numbers of those that can succeed, and of those that cannot."""
    good = {job.number for job in jobs if job.failures <= len(RETRY)}
    return good, {job.number for job in jobs} - good


class Books:
    """What has to be the case when everything is over."""

    def __init__(self, orders):
        self.orders = orders
        self.dead = f"{orders.queue}.dlq"
        self.engine = create_async_engine(orders.database, pool_pre_ping=True)

    async def begin(self):
        await self.run(f"CREATE TABLE {self.orders.effects} (number integer)")

    async def run(self, sql):
        async with self.engine.begin() as connection:
            return await connection.execute(text(sql))

    async def effects(self):
        return Counter(number for (number,) in await self.run(f"SELECT number FROM {self.orders.effects}"))  # noqa: S608 - a name of ours

    async def publish(self, jobs):
        app = self.orders.app()
        await app.start(consume=False, relay=False)
        messages = await app.publish_many([Emit("job", job) for job in jobs])
        await app.stop()
        return messages

    async def is_done(self, broker, jobs):
        """Tell whether each job has come to its end; more may be on its way."""
        good, bad = split(jobs)
        (letters,) = (await broker.depths([self.dead])).values()
        return good <= set(await self.effects()) and letters.ready >= len(bad) and await self.is_empty(broker)

    async def is_empty(self, broker):
        queues = [queue.name for queue in self.orders.app().topology.queues if queue.name != self.dead]
        depths = (await broker.depths(queues)).values()
        return not any(depth is not None and depth.ready for depth in depths)

    async def check(self, broker, jobs):
        """Each that can succeed has exactly one effect, each that cannot is a dead letter, and nothing else is there.

        Comes to an answer when everything has come to its end, and its worker has ended well.
        """
        good, bad = split(jobs)
        async with worker(self.orders):
            await until(lambda: self.is_done(broker, jobs), "every end", PATIENCE_S)
        assert await self.effects() == Counter(good)
        letters = await drained(broker, self.dead)
        assert {json.loads(letter.body)["number"] for letter in letters} == bad
        assert {letter.headers[names.REASON] for letter in letters} <= {"exhausted"}
        assert await self.is_empty(broker), "nothing was in the hands of a worker"
        return letters

    async def end(self):
        async with self.engine.begin() as connection:
            found = await connection.execute(
                text("SELECT tablename FROM pg_tables WHERE tablename LIKE :prefix"), {"prefix": f"{self.orders.name}%"}
            )
            for (table,) in found.all():
                await connection.execute(text(f'DROP TABLE "{table}" CASCADE'))
            await connection.execute(text(f'DROP FUNCTION IF EXISTS "{self.orders.name}_outbox_wake"()'))
        await self.engine.dispose()


@asynccontextmanager
async def books_on(broker, database, **options):
    """Keep books in tables of their own, dropped when the block ends."""
    address = make_url(database).set(drivername="postgresql+asyncpg").render_as_string(hide_password=False)
    books = Books(Orders(broker, address, f"inbox_{uuid4().hex[:8]}", **options))
    await books.begin()
    try:
        yield books
    finally:
        await books.end()


@asynccontextmanager
async def worker(orders, failpoints=""):
    """Run a worker; ended when the block is."""
    environment = {**os.environ, VARIABLE: failpoints}
    command = [sys.executable, str(WORKER), json.dumps(asdict(orders))]
    process = await asyncio.create_subprocess_exec(*command, env=environment)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def dies_at(orders, place, number):
    async with worker(orders, f"{place}=kill@{number}") as process:
        await asyncio.wait_for(process.wait(), PATIENCE_S)
    assert process.returncode == -signal.SIGKILL, f"the worker did not come to {place}"


def jobs_of(count):
    """Return jobs: most succeed, some fail once or twice, some for ever."""
    return [Job(number, {0: NEVER, 1: 1, 2: 2}.get(number % 8, 0)) for number in range(count)]


# -- killed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "kills"), [(None, (1, 3)), (5, (2,))])
@pytest.mark.parametrize("place", PLACES)
async def test_a_worker_is_killed_between_any_two_steps_and_every_effect_is_there_once(
    rabbitmq_url, postgres_url, place, batch, kills
):
    jobs = jobs_of(24)
    async with books_on(rabbitmq_url, postgres_url, batch=batch) as books:
        await books.publish(jobs)
        for number in kills:
            await dies_at(books.orders, place, number)
        async with opened(rabbitmq_url) as broker:
            await books.check(broker, jobs)


async def test_workers_are_killed_at_random_and_every_effect_is_there_once(rabbitmq_url, postgres_url):
    jobs, kills = jobs_of(1_200), []
    chance = random.Random(4)
    async with books_on(rabbitmq_url, postgres_url) as books:

        async def work_and_die():
            while len(kills) < 12:
                async with worker(books.orders) as process:
                    await CLOCK.sleep(chance.randrange(700, 1_500))
                    process.kill()
                    kills.append(await process.wait())

        await books.publish(jobs)
        await asyncio.gather(*(work_and_die() for _ in range(3)))
        async with opened(rabbitmq_url) as broker:
            await books.check(broker, jobs)
    assert set(kills) == {-signal.SIGKILL}


# -- beside others -----------------------------------------------------------------------------------------


@asynccontextmanager
async def working(postgres_url, handler, *, isolation=None, found, **options):
    """Run a listener in this process, on the embedded broker and PostgreSQL; yield its app and its books."""
    async with books_on("embedded://", postgres_url) as books:
        await books.run(f'CREATE TABLE "{books.orders.name}_accounts" (id integer PRIMARY KEY, total integer)')
        await books.run(f'INSERT INTO "{books.orders.name}_accounts" VALUES (1, 0), (2, 0)')  # noqa: S608 - a name of ours
        engine = create_async_engine(books.orders.database, isolation_level=isolation) if isolation else None
        app = books.orders.app(handler(books.orders), [found.append], **options)
        if engine is not None:
            app.configure(database=engine)
        await app.start(relay=False)
        try:
            yield app, books
        finally:
            await app.stop(grace=5)
            if engine is not None:
                await engine.dispose()


def told(found, *kinds):
    return [event for event in found if isinstance(event, kinds)]


def add(orders, account):
    return text(f'UPDATE "{orders.name}_accounts" SET total = total + 1 WHERE id = {account}')  # noqa: S608 - as above


async def test_a_deadlock_is_run_again_in_place_and_costs_no_attempt(postgres_url):
    found, calls, both = [], [], asyncio.Barrier(2)

    def crossing(orders):
        async def handle(job: Job, session: AsyncSession):
            calls.append(job.number)
            await orders.write(session, job.number)
            await session.execute(add(orders, 1 + job.number % 2))
            if len(calls) <= 2:
                await both.wait()
            await session.execute(add(orders, 2 - job.number % 2))

        return handle

    async with working(postgres_url, crossing, found=found) as (app, books):
        await app.publish_many([("job", Job(1)), ("job", Job(2))])
        await until(lambda: len(told(found, events.Handled)) == 2, "both")
        assert await books.effects() == Counter({1: 1, 2: 1})
    assert len(calls) == 3, "one of them was the victim"
    assert not told(found, events.Retried)


async def test_serialization_failures_are_run_again_in_place_and_cost_no_attempt(postgres_url):
    found, calls = [], []

    def counting(orders):
        async def handle(job: Job, session: AsyncSession):
            calls.append(job.number)
            await orders.write(session, job.number)
            await session.execute(add(orders, 1))

        return handle

    jobs = [Job(number) for number in range(40)]
    async with working(
        postgres_url, counting, found=found, isolation="REPEATABLE READ", concurrency=3, retry=("10ms",) * 20
    ) as (app, books):
        await app.publish_many([("job", job) for job in jobs])
        await until(lambda: len(told(found, events.Handled)) == len(jobs), "all of them")
        assert await books.effects() == Counter(range(40))
        sql = f'SELECT total FROM "{books.orders.name}_accounts" WHERE id = 1'  # noqa: S608 - a name of ours
        [(total,)] = (await books.run(sql)).all()
        assert total == len(jobs)
    assert len(calls) > len(jobs), "some met each other"
    in_place = len(calls) - len(jobs) - len(told(found, events.Retried))
    assert in_place > len(told(found, events.Retried)), "most were run again in place"


async def test_two_concurrent_deliveries_of_one_id_run_once(postgres_url):
    found, calls, running = [], [], asyncio.Event()
    let_go = asyncio.Event()

    def slow(orders):
        async def handle(job: Job, session: AsyncSession):
            calls.append(job.number)
            await orders.write(session, job.number)
            running.set()
            await let_go.wait()

        return handle

    async with working(postgres_url, slow, found=found) as (app, books):
        message = await app.publish("job", Job(1))
        await running.wait()
        for _ in range(3):
            await app._broker.publish([message])
        await until(lambda: app.busy == 4, "all of them")
        let_go.set()
        await until(lambda: app.busy == 0, "their end")
        assert await books.effects() == Counter({1: 1})
    assert calls == [1]
    assert (len(told(found, events.Handled)), len(told(found, events.Duplicate))) == (1, 3)


async def test_concurrent_failures_of_one_id_leave_one_chain_of_retries(postgres_url):
    found, calls = [], []

    def failing(orders):
        async def handle(job: Job, message: Message, session: AsyncSession):
            calls.append(message.attempt)
            await orders.write(session, job.number)
            if message.attempt <= job.failures:
                raise ValueError

        return handle

    async with working(postgres_url, failing, found=found) as (app, books):
        message = await app.publish("job", Job(1, 2))
        await app._broker.publish([message] * 7)
        await until(lambda: len(told(found, events.Handled)) == 1 and app.busy == 0, "its end")
        assert await books.effects() == Counter({1: 1})
    assert len(told(found, events.Retried)) == 2
    assert len(told(found, events.Duplicate)) == 7
    assert calls[-1] == 3


# -- cut off -----------------------------------------------------------------------------------------------


async def test_a_database_that_restarts_under_load_costs_no_attempt_and_no_effect(postgres):
    found, jobs = [], [Job(number) for number in range(600)]

    def writing(orders):
        async def handle(job: Job, session: AsyncSession):
            await orders.write(session, job.number)

        return handle

    async with working(postgres.url, writing, found=found) as (app, books):
        await app.publish_many([("job", job) for job in jobs[:300]])
        await until(lambda: len(told(found, events.Handled)) > 50, "some")
        await asyncio.to_thread(postgres.kill)
        await app.publish_many([("job", job) for job in jobs[300:]])
        await until(lambda: bool(told(found, StoreDown)), "word of it")
        await asyncio.to_thread(postgres.restart)
        await until(lambda: len(told(found, events.Handled)) == len(jobs), "all of them", PATIENCE_S)
        assert await books.effects() == Counter(range(600))
    assert len(told(found, StoreDown)) == len(told(found, StoreUp)) >= 1
    assert not told(found, events.Retried, events.DeadLettered, events.Duplicate)


class Proxy:
    """Stands between a client and its server, and can keep the answer to a COMMIT to itself."""

    def __init__(self, host, port):
        self._to = (host, port)
        self.swallows = 0
        self.swallowed = 0
        self._tasks = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1")
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        server_reader, server_writer = await asyncio.open_connection(*self._to)
        swallowing = asyncio.Event()
        answers = asyncio.create_task(self._answers(server_reader, writer, swallowing))
        self._tasks.add(answers)
        try:
            while data := await reader.read(65_536):
                if self.swallows and b"COMMIT;" in data:
                    self.swallows -= 1
                    swallowing.set()
                server_writer.write(data)
                await server_writer.drain()
        except ConnectionError:
            pass
        finally:
            server_writer.close()
            writer.close()

    async def _answers(self, reader, writer, swallowing):
        while data := await reader.read(65_536):
            if swallowing.is_set():
                self.swallowed += 1
                break
            writer.write(data)
        writer.close()


async def test_a_commit_whose_answer_is_lost_is_asked_for_and_not_done_again(postgres_url):
    found, calls = [], []

    def writing(orders):
        async def handle(job: Job, session: AsyncSession):
            calls.append(job.number)
            await orders.write(session, job.number)

        return handle

    url = make_url(postgres_url)
    async with Proxy(url.host, url.port or 5432) as proxy:
        through = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        async with working(through, writing, found=found) as (app, books):
            proxy.swallows = 5
            await app.publish_many([("job", Job(number)) for number in range(20)])
            await until(lambda: len(told(found, events.Handled)) == 20, "all of them", PATIENCE_S)
            proxy.swallows = 0
            assert await books.effects() == Counter(range(20))
    assert proxy.swallowed == 5
    assert len(calls) == 20, "what was committed was not handled again"
    assert not told(found, events.Retried, events.Duplicate)
