"""The inbox when the database is beside others or not there at all: nothing is lost, nothing is counted."""

import sqlite3
from pathlib import Path

import pytest
from inbox_stage import EFFECT, QUEUE, Stage, app_of, file_database
from runtime_stage import told
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from carom import Message
from carom.ports import StoreDown, StoreUp
from carom.runtime import events
from carom.runtime.inbox import PASSES


async def writing(order: str, session: AsyncSession):
    await session.execute(EFFECT, {"said": order})


def locked():
    return OperationalError("INSERT", {}, sqlite3.OperationalError("database is locked"))


class Movable:
    """A database in a file whose directory can be taken away and brought back."""

    def __init__(self, path):
        self.here, self.there = Path(path) / "here", Path(path) / "there"
        self.here.mkdir()
        self.url = file_database(self.here)

    async def take_away(self, h):
        await h.engine.dispose()
        self.here.rename(self.there)

    def bring_back(self):
        self.there.rename(self.here)


@pytest.fixture
def movable(tmp_path):
    return Movable(tmp_path)


# -- beside others -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, PASSES])
async def test_a_deadlock_is_run_again_in_place_and_costs_no_attempt(times):
    calls = []

    async def handle(order: str, session: AsyncSession):
        calls.append(order)
        await session.execute(EFFECT, {"said": order})
        if len(calls) <= times:
            raise locked()

    async with Stage(app_of(handle)) as h:
        await h.publish("k", "a")
        await h.advance("10s")
        assert h.ends() == ["Handled"]
        assert len(calls) == times + 1
        assert await h.effects() == ["a"]
        assert [m.attempt for m in h.attempts(QUEUE)] == [1], "it was handed to its handler once"


async def test_deadlocks_that_do_not_end_count_as_a_failed_attempt():
    calls = []

    async def handle(order: str, message: Message, session: AsyncSession):
        calls.append(message.attempt)
        if message.attempt == 1:
            raise locked()

    async with Stage(app_of(handle, retry=("1m",))) as h:
        await h.publish("k", "a")
        await h.advance("30s")
        assert h.ends() == ["Retried"]
        await h.advance("1m")
        assert calls == [1] * (PASSES + 1) + [2]


async def test_an_error_of_another_connection_is_the_handlers_and_is_not_run_again_in_place():
    calls = []

    async def handle(order: str, session: AsyncSession):
        calls.append(order)
        raise ConnectionResetError("the payment service hung up")

    async with Stage(app_of(handle, retry=())) as h:
        await h.publish("k", "a")
        assert calls == ["a"]
        assert h.ends() == ["DeadLettered"]


async def test_a_worker_that_stops_hands_back_what_waits_to_be_run_again():
    async def handle(order: str, session: AsyncSession):
        raise locked()

    async with Stage(app_of(handle)) as h:
        await h.publish("k", "a")
        await h.app.stop()
        assert h.ends() == ["HandedBack"]
        assert len(h.ready(QUEUE)) == 1


# -- not there ---------------------------------------------------------------------------------------------


async def test_a_database_that_is_away_costs_no_attempt_and_is_told_of_once(movable):
    async with Stage(app_of(writing, database=movable.url)) as h:
        await movable.take_away(h)
        await h.publish_many([("k", str(n)) for n in range(5)])
        await h.advance("5m")
        assert len(told(h.events, StoreDown)) == 1
        assert (h.ends(), h.app.busy, h.app.consumers[0].running) == ([], 5, 0)
        movable.bring_back()
        await h.advance("1m")
        assert sorted(await h.effects()) == ["0", "1", "2", "3", "4"]
        assert h.ends() == ["Handled"] * 5
        assert {m.attempt for m in h.handled(QUEUE)} == {1}
        assert len(told(h.events, StoreUp)) == 1


async def test_a_worker_that_stops_hands_back_what_waits_for_the_database(movable):
    async with Stage(app_of(writing, database=movable.url)) as h:
        await movable.take_away(h)
        await h.publish_many([("k", str(n)) for n in range(3)])
        await h.app.stop()
        assert h.ends() == ["HandedBack"] * 3
        assert len(h.ready(QUEUE)) == 3
        movable.bring_back()


async def test_what_waits_for_the_database_is_let_go_of_when_its_connection_is_gone(movable):
    async with Stage(app_of(writing, database=movable.url)) as h:
        await movable.take_away(h)
        await h.publish("k", "a")
        h.broker.disconnect()
        movable.bring_back()
        await h.advance("5m")
        assert await h.effects() == ["a"]
        assert sorted(h.ends()) == ["Dropped", "Handled"]


def failing_and_taking_away(movable, stage):
    async def handle(order: str, message: Message, session: AsyncSession):
        await session.execute(EFFECT, {"said": f"{order} {message.attempt}"})
        if message.attempt == 1:
            await session.run_sync(lambda own: own.connection().detach())  # so that it is closed, not kept for others
            await movable.take_away(stage[0])
            raise ValueError

    return handle


async def test_a_failure_that_cannot_be_recorded_yet_is_kept_and_its_copy_not_published(movable):
    stage = []
    async with Stage(app_of(failing_and_taking_away(movable, stage), database=movable.url)) as h:
        stage.append(h)
        await h.publish("k", "a")
        await h.advance("5m")
        assert (h.ends(), h.waiting(), h.app.busy) == ([], (), 1)
        assert len(told(h.events, StoreDown)) == 1
        movable.bring_back()
        await h.advance("1m")
        assert h.ends() == ["Retried", "Handled"]
        assert await h.effects() == ["a 2"]


async def test_a_worker_that_stops_hands_back_a_failure_that_cannot_be_recorded(movable):
    stage = []
    async with Stage(app_of(failing_and_taking_away(movable, stage), database=movable.url)) as h:
        stage.append(h)
        await h.publish("k", "a")
        await h.app.stop()
        assert h.ends() == ["HandedBack"]
        assert (len(h.ready(QUEUE)), h.waiting()) == (1, ())
        movable.bring_back()


class Related(Stage):
    """With a table whose references are checked when a transaction is committed."""

    async def create(self):
        await super().create()
        async with self.engine.begin() as connection:
            await connection.execute(text("CREATE TABLE parent (id INTEGER PRIMARY KEY)"))
            await connection.execute(
                text("CREATE TABLE child (parent INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
            )


async def test_what_only_fails_when_it_is_committed_is_a_failure_of_the_handler():
    async def handle(order: str, message: Message, session: AsyncSession):
        if message.attempt == 1:
            await session.execute(text("INSERT INTO child VALUES (1)"))
        await session.execute(EFFECT, {"said": f"{order} {message.attempt}"})

    async with Related(app_of(handle)) as h:
        await h.publish("k", "a")
        assert "FOREIGN KEY" in told(h.events, events.Retried)[0].error
        await h.advance("1m")
        assert h.ends() == ["Retried", "Handled"]
        assert await h.effects() == ["a 2"]
