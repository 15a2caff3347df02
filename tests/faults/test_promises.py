"""Thousands of emits, some rolled back; three relays and three workers that are killed at random; one checker.

Every committed emit is handled, waiting or dead, at any moment and by what is in PostgreSQL and RabbitMQ alone; what
was rolled back is nowhere; in the end every effect is there exactly once.

Rule: the checker looks when every process is dead, and counts what it finds; it asks none of them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import msgspec
import pika
from sqlalchemy import MetaData, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from brokers.rabbitmq.rabbit_stage import until
from carom.stores import make_tables
from databases import database_of_its_own, spoken_by
from faults.promised import EFFECTS, METADATA, Job, build
from processes import Programs

ROUNDS, KILLS, EMITS = 2, 5, 330
"""How often a process is killed in a round, and how much is emitted before each."""
PROGRESS = 25
KINDS = ("plain",) * 6 + ("flaky", "flaky", "chain", "poison")
WITHIN_S = 120
QUEUES = ("promised.delay.50ms", "promised.delay.200ms", "promised.suspects.promised", "promised.work")
"""Those that a job waits in; in the order in which it goes through them, so that none is passed by while we look."""
DEAD = "promised.work.dlq"
OUTBOX = make_tables(MetaData()).outbox


class Emitter:
    """One process that emits, and knows what it committed."""

    def __init__(self, app, chance):
        self.app = app
        self.chance = chance
        self.committed = {}
        self.rolled_back = set()
        self._numbers = iter(range(1_000_000))

    async def emit(self, count):
        """Emit so many jobs, a few in each transaction."""
        until_number = len(self.committed) + len(self.rolled_back) + count
        while len(self.committed) + len(self.rolled_back) < until_number:
            fate = self.chance.random()
            async with AsyncSession(self.app.store.engines.asynchronous) as session:
                kept = self._some(session)
                if fate < 0.3:
                    async with session.begin_nested() as savepoint:
                        gone = self._some(session)
                        await savepoint.rollback()
                    self.rolled_back |= gone.keys()
                if fate > 0.8:
                    await session.flush()
                    await session.rollback()
                    self.rolled_back |= kept.keys()
                else:
                    await session.commit()
                    self.committed |= kept

    def _some(self, session):
        jobs = [Job(next(self._numbers), self.chance.choice(KINDS)) for _ in range(self.chance.randrange(1, 8))]
        if self.chance.random() < 0.5:
            self.app.emit_many(session, [("job", job) for job in jobs])
        else:
            for job in jobs:
                self.app.emit(session, "job", job, key=str(job.number % 7) if job.number % 3 else None)
        return {job.number: job.kind for job in jobs}


class Checker:
    """Who reads the database and the broker."""

    def __init__(self, app, broker):
        self.app = app
        self.broker = broker

    async def effects(self):
        """Return how often each effect is there."""
        async with self.app.store.engines.asynchronous.connect() as connection:
            rows = await connection.execute(select(EFFECTS.c.queue, EFFECTS.c.number))
            return Counter(tuple(row) for row in rows)

    async def count(self):
        """Return how many effects there are."""
        async with self.app.store.engines.asynchronous.connect() as connection:
            return await connection.scalar(select(func.count()).select_from(EFFECTS))

    async def promised(self):
        """Return the jobs that are still in the outbox."""
        async with self.app.store.engines.asynchronous.connect() as connection:
            bodies = await connection.scalars(select(OUTBOX.c.body).where(OUTBOX.c.routing_key == "job"))
            return {msgspec.json.decode(body, type=Job).number for body in bodies}

    def inside(self, *queues):
        """Return the jobs in queues, and leave them there."""
        with pika.BlockingConnection(pika.URLParameters(self.broker)) as connection:
            channel = connection.channel()
            found = set()
            for queue in queues:
                while (got := channel.basic_get(queue))[0] is not None:
                    found.add(msgspec.json.decode(got[2], type=Job).number)
            return found

    async def whereabouts(self, emitter):
        """Tell where the jobs are that have not come to their end."""
        handled = {number for queue, number in await self.effects() if queue == "work"}
        places = {queue: await asyncio.to_thread(self.inside, queue) for queue in (*QUEUES, DEAD)}
        places["outbox"] = await self.promised()
        left = emitter.committed.keys() - handled - places[DEAD]
        said = {place: sorted(left & numbers) for place, numbers in places.items()}
        held = sorted(left - set().union(*places.values()))
        return f"{len(left)} jobs are left: {said}, in somebody's hands or nowhere: {held}"

    async def check(self, emitter):
        """Look everywhere while nobody else does anything: first where a job comes from, then where it goes."""
        promised = await self.promised()
        waiting = await asyncio.to_thread(self.inside, *QUEUES)
        dead = await asyncio.to_thread(self.inside, DEAD)
        handled = {number for queue, number in await self.effects() if queue == "work"}
        everywhere = promised | waiting | dead | handled
        assert emitter.committed.keys() <= everywhere, "a job that was committed is nowhere"
        assert not emitter.rolled_back & everywhere, "a job that was rolled back is somewhere"
        poison = {number for number, kind in emitter.committed.items() if kind == "poison"}
        assert dead <= poison
        assert not handled & poison, "the effect of a handler that failed is there"
        return len(promised), len(waiting), len(dead), len(handled)


async def test_what_was_committed_is_handled_waits_or_is_dead_whoever_is_killed(
    empty_rabbitmq_url, postgres_url, tmp_path
):
    chance = random.Random(19)
    with database_of_its_own(postgres_url) as url:
        database = spoken_by("asyncpg", url)
        app = build(empty_rabbitmq_url, database)
        await app.store.open("apply")
        async with app.store.engines.asynchronous.begin() as connection:
            await connection.run_sync(METADATA.create_all)
        emitter, checker = Emitter(app, chance), Checker(app, empty_rabbitmq_url)
        environment = {
            "CAROM_BROKER": empty_rabbitmq_url,
            "CAROM_DATABASE": database,
            "PYTHONPATH": str(Path(__file__).parent),
        }
        try:
            found = [await one_round(emitter, checker, chance, Programs(tmp_path, environment)) for _ in range(ROUNDS)]
            with Programs(tmp_path, environment) as programs:
                started(programs)
                try:
                    await everything_comes_to_its_end(emitter, checker)
                except AssertionError as error:
                    error.add_note(await checker.whereabouts(emitter))
                    error.add_note(programs.story())
                    raise
        finally:
            await app.store.close()
    assert len(emitter.committed) > 1_800, "enough was promised to prove something"
    assert len(emitter.rolled_back) > 500
    assert sum(waiting for _, waiting, *_ in found) > 0, "something was waiting when it was looked for"


def started(programs):
    """Start three relays and three workers."""
    names = []
    for number in range(3):
        programs.start(f"relay{number}", "promised", "relay")
        programs.start(f"worker{number}", "promised", "work")
        names += [f"relay{number}", f"worker{number}"]
    return names


async def one_round(emitter, checker, chance, programs):
    """Emit while processes are killed and started again; then kill all of them at once, and look."""
    with programs:
        names = started(programs)
        for _ in range(KILLS):
            emitting = asyncio.ensure_future(emitter.emit(EMITS))
            before = await checker.count()

            async def goes_on(before=before):
                return await checker.count() >= before + PROGRESS

            try:
                await until(goes_on, "some more effects", WITHIN_S)
                programs.kill(chance.choice(names))
                await emitting
            finally:
                emitting.cancel()
    return await checker.check(emitter)


async def everything_comes_to_its_end(emitter, checker):
    kinds = emitter.committed
    done = {("work", number) for number, kind in kinds.items() if kind != "poison"}
    done |= {("count", number) for number, kind in kinds.items() if kind == "chain"}
    poison = {number for number, kind in kinds.items() if kind == "poison"}

    async def all_done():
        return (await checker.effects()).keys() >= done

    async def all_dead():
        return poison <= await asyncio.to_thread(checker.inside, DEAD)

    await until(all_done, "every effect", WITHIN_S)
    await until(all_dead, "every dead letter", WITHIN_S)
    effects = await checker.effects()
    assert effects.keys() == done
    assert {effect: times for effect, times in effects.items() if times > 1} == {}, "an effect happened twice"
    assert await checker.promised() == set()
