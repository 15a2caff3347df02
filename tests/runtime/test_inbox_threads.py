"""Handlers in threads: a `Session` of their own, which nobody else touches while they run."""

import threading

from inbox_stage import EFFECT, QUEUE, Stage, app_of, file_database
from runtime_stage import until
from sqlalchemy.orm import Session

from carom import BatchFailure, Message


def stage_of(tmp_path, handle, **options):
    return Stage(app_of(handle, database=file_database(tmp_path), **options))


async def test_a_thread_gets_a_session_and_what_it_writes_is_committed_with_the_record(tmp_path):
    def handle(order: str, session: Session):
        session.execute(EFFECT, {"said": f"{order} {threading.current_thread() is not threading.main_thread()}"})

    async with stage_of(tmp_path, handle) as h:
        message = await h.publish("k", "a")
        await h.redeliver(message)
        assert await h.effects() == ["a True"]
        assert h.ends() == ["Handled", "Duplicate"]
        assert await h.seen() == [(message.id, 0)]


async def test_a_failure_in_a_thread_is_rolled_back_and_tried_again(tmp_path):
    def handle(order: str, message: Message, session: Session):
        session.execute(EFFECT, {"said": str(message.attempt)})
        if message.attempt == 1:
            raise ValueError

    async with stage_of(tmp_path, handle) as h:
        await h.publish("k", "a")
        await h.advance("1m")
        assert await h.effects() == ["2"]


async def test_a_batch_in_a_thread(tmp_path):
    def handle(orders: list[int], session: Session):
        for order in orders:
            session.execute(EFFECT, {"said": str(order)})
        if 2 in orders:
            raise BatchFailure({orders.index(2): ValueError()})

    async with stage_of(tmp_path, handle, batch=3, retry=()) as h:
        await h.publish_many([("k", n) for n in (1, 2, 3)])
        assert await h.effects() == ["1", "3"]
        assert sorted(h.ends()) == ["DeadLettered", "Handled", "Handled"]


async def test_the_end_of_the_transaction_is_not_a_threads_either(tmp_path):
    def handle(order: str, message: Message, session: Session):
        session.execute(EFFECT, {"said": str(message.attempt)})
        if message.attempt == 1:
            session.commit()

    async with stage_of(tmp_path, handle) as h:
        await h.publish("k", "a")
        assert await h.effects() == []
        await h.advance("1m")
        assert await h.effects() == ["2"]


async def test_a_thread_that_outlives_its_worker_keeps_its_session_to_its_end_and_nothing_of_it_is_kept(tmp_path):
    let_go, written = threading.Event(), []

    def handle(order: str, session: Session):
        session.execute(EFFECT, {"said": "first"})
        let_go.wait(20)
        session.execute(EFFECT, {"said": "second"})
        written.append(session.is_active)

    async with stage_of(tmp_path, handle) as h:
        await h.app.publish("k", "a")
        await until(lambda: len(h.attempts(QUEUE)) == 1)
        transactions = h.app.consumers[0]._handling._transactions
        stopping = h.app.stop(grace=0)
        await stopping
        assert h.ends() == ["HandedBack"]
        let_go.set()
        await until(lambda: written == [True])
        await until(lambda: transactions._left == 0)
        assert await h.effects() == []
        await h.engine.dispose()
        h.store.engines.synchronous.dispose()
