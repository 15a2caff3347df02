"""The inbox: a handler's effects happen once, whatever comes twice; on SQLite, the embedded broker and virtual time."""

import asyncio
from contextlib import suppress

import pytest
from inbox_stage import EFFECT, QUEUE, Stage, again, app_of
from runtime_stage import told, until
from sqlalchemy.ext.asyncio import AsyncSession

from carom import Discard, Message, Reject, Retry
from carom.core import message as names
from carom.runtime import events


async def writing(order: str, session: AsyncSession):
    await session.execute(EFFECT, {"said": order})


def failing_until(attempt, error=None):
    async def handle(order: str, message: Message, session: AsyncSession):
        await session.execute(EFFECT, {"said": f"{order} {message.attempt}"})
        if message.attempt < attempt:
            raise error or ValueError("not yet")

    return handle


# -- once --------------------------------------------------------------------------------------------------


async def test_what_a_handler_writes_is_committed_with_the_record_and_then_acknowledged():
    async with Stage(app_of(writing)) as h:
        message = await h.publish("k", "a")
        assert await h.effects() == ["a"]
        assert await h.seen() == [(message.id, 0)]
        assert h.ends() == ["Handled"]
        assert h.app.busy == 0


async def test_a_duplicate_is_acknowledged_and_counted_and_runs_nothing():
    async with Stage(app_of(writing)) as h:
        message = await h.publish("k", "a")
        await h.redeliver(message)
        assert await h.effects() == ["a"]
        assert h.ends() == ["Handled", "Duplicate"]
        assert len(h.attempts(QUEUE)) == 1
        assert (h.ready(QUEUE), h.app.busy) == ((), 0)


async def test_a_failure_leaves_nothing_and_the_attempt_that_succeeds_leaves_its_own():
    async with Stage(app_of(failing_until(3), retry=("1s", "2s"))) as h:
        message = await h.publish("k", "a")
        assert await h.effects() == []
        await h.advance("1m")
        assert await h.effects() == ["a 3"]
        assert h.ends() == ["Retried", "Retried", "Handled"]
        assert (message.id, 0) in await h.seen()


async def test_another_queue_handles_the_same_message_once_of_its_own():
    app = app_of(writing)
    app.listen("k", queue="other", idempotent=True)(writing)
    async with Stage(app) as h:
        await h.publish("k", "a")
        assert await h.effects() == ["a", "a"]
        assert h.ends() == ["Handled", "Handled"]


async def test_a_handler_needs_no_session_to_be_idempotent():
    calls = []

    async def handle(order: str):
        calls.append(order)

    async with Stage(app_of(handle)) as h:
        message = await h.publish("k", "a")
        await h.redeliver(message)
        assert calls == ["a"]
        assert h.ends() == ["Handled", "Duplicate"]


async def test_a_session_without_a_memory_is_a_transaction_that_is_committed_before_the_ack():
    async with Stage(app_of(failing_until(2), idempotent=False)) as h:
        message = await h.publish("k", "a")
        assert await h.effects() == []
        await h.advance("1m")
        await h.redeliver(message)
        await h.advance("1m")
        assert await h.effects() == ["a 2", "a 2"], "what comes twice is done twice"
        assert await h.seen() == []


# -- forks -------------------------------------------------------------------------------------------------


async def test_an_attempt_that_failed_and_comes_again_is_cut_because_its_copy_exists():
    async with Stage(app_of(failing_until(2))) as h:
        message = await h.publish("k", "a")
        await h.redeliver(message)
        assert h.ends() == ["Retried", "Duplicate"]
        assert len(h.waiting()) == 1
        await h.advance("1m")
        assert await h.effects() == ["a 2"]


async def test_a_fork_into_two_chains_of_retries_is_cut_where_they_meet():
    async with Stage(app_of(failing_until(9), retry=("1s", "1s", "1s"))) as h:
        message = await h.publish("k", "a")
        (copy,) = h.waiting()
        await h.advance("1s")
        for attempt in (2, 3):
            await h.put(again(copy, **{**copy.headers, names.ATTEMPT: attempt}))
        await h.advance("1m")
        assert [m.attempt for m in h.attempts(QUEUE)] == [1, 2, 3, 4]
        assert h.ends().count("Duplicate") == 2
        assert len(h.dead(QUEUE)) == 1
        assert message.id == h.dead(QUEUE)[0].id


async def test_what_was_handled_meanwhile_makes_a_waiting_copy_a_duplicate():
    outcomes = iter([ValueError("once"), None, None])

    async def handle(order: str, session: AsyncSession):
        await session.execute(EFFECT, {"said": order})
        if (error := next(outcomes)) is not None:
            raise error

    async with Stage(app_of(handle)) as h:
        message = await h.publish("k", "a")
        await h.redeliver(message, **{names.QUEUE: QUEUE, names.ATTEMPT: 5})
        await h.advance("1m")
        assert await h.effects() == ["a"]
        assert h.ends() == ["Retried", "Handled", "Duplicate"]


# -- dead letters ------------------------------------------------------------------------------------------


async def put_back(h, letter):
    await h.put(again(letter, **letter.headers))


@pytest.mark.parametrize("lives", [1, 3])
async def test_a_dead_letter_that_is_put_back_is_handled_anew_attempt_for_attempt(lives):
    async with Stage(app_of(failing_until(9), retry=("1s", "1s"))) as h:
        await h.publish("k", "a")
        for life in range(lives):
            await h.advance("1m")
            letter = h.dead(QUEUE)[-1]
            assert letter.headers[names.DEATHS] == life + 1
            await put_back(h, letter)
        await h.advance("1m")
        assert [m.attempt for m in h.attempts(QUEUE)] == [1, 2, 3] * (lives + 1)
        assert "Duplicate" not in h.ends()


async def test_a_dead_letter_that_is_put_back_and_mended_has_its_effect_once():
    broken = [True]

    async def handle(order: str, session: AsyncSession):
        await session.execute(EFFECT, {"said": order})
        if broken[0]:
            raise ValueError

    async with Stage(app_of(handle)) as h:
        await h.publish("k", "a")
        await h.advance("1m")
        broken[0] = False
        (letter,) = h.dead(QUEUE)
        await put_back(h, letter)
        await put_back(h, letter)
        assert await h.effects() == ["a"]
        assert h.ends()[-2:] == ["Handled", "Duplicate"]


async def test_a_dead_letter_put_back_without_its_headers_is_handled_anew_too():
    async with Stage(app_of(failing_until(9), retry=("1s", "1s"))) as h:
        message = await h.publish("k", "a")
        await h.advance("1m")
        await h.redeliver(message)
        await h.advance("1m")
        assert [m.attempt for m in h.attempts(QUEUE)] == [1, 2, 3, 1, 2, 3]


async def test_a_message_that_died_by_the_brokers_decision_goes_on_where_it_was_when_it_is_put_back():
    async with Stage(app_of(failing_until(3), retry=("1s", "1s"))) as h:
        await h.publish("k", "a")
        await h.advance("1s")
        (waiting,) = h.waiting()  # attempts 1 and 2 are recorded as failed; the broker made a dead letter of the third
        died = {"x-death": [{"queue": QUEUE, "reason": "delivery_limit"}], "x-first-death-reason": "delivery_limit"}
        await h.put(again(waiting, **{**waiting.headers, **died}))
        assert await h.effects() == ["a 3"]


async def test_failures_that_were_not_forgotten_do_not_swallow_a_dead_letter():
    async with Stage(app_of(failing_until(9), retry=("1s", "1s"))) as h:
        message = await h.publish("k", "a")
        await h.advance("1m")
        (letter,) = h.dead(QUEUE)
        for attempt in (1, 2, 3):  # as if the worker had died before it could forget them
            async with h.store.failing(QUEUE, message.id, attempt, last=False) as first:
                assert first
        await put_back(h, letter)
        await h.advance("1m")
        assert [m.attempt for m in h.attempts(QUEUE)] == [1, 2, 3, 1, 2, 3]


async def test_a_rejection_rolls_back_and_is_a_dead_letter():
    async with Stage(app_of(failing_until(9, Reject("never")))) as h:
        await h.publish("k", "a")
        assert await h.effects() == []
        (letter,) = h.dead(QUEUE)
        assert letter.headers[names.REASON] == "rejected"
        assert await h.seen() == []


async def test_a_crash_loop_of_what_was_handled_is_a_duplicate_and_no_dead_letter():
    async with Stage(app_of(writing, crash_limit=5)) as h:
        message = await h.publish("k", "a")
        headers = {names.QUEUE: QUEUE, names.ATTEMPT: 1, names.CRASHES: 9}
        await h.redeliver(message, **headers)
        await h.settle()
        assert h.dead(QUEUE) == ()
        assert h.ends()[-1] == "Duplicate"


# -- verdicts ----------------------------------------------------------------------------------------------


async def test_a_discarded_message_is_decided_upon_without_anything_its_handler_wrote():
    async with Stage(app_of(failing_until(9, Discard("of no use")))) as h:
        message = await h.publish("k", "a")
        await h.redeliver(message)
        assert await h.effects() == []
        assert await h.seen() == [(message.id, 0)]
        assert h.ends() == ["Discarded", "Duplicate"]


async def test_a_wish_for_another_attempt_rolls_back_and_counts():
    async with Stage(app_of(failing_until(2, Retry(after="1s")))) as h:
        await h.publish("k", "a")
        await h.advance("1m")
        assert await h.effects() == ["a 2"]


@pytest.mark.parametrize("identity", ["", "a\0b"])
async def test_a_message_that_cannot_be_known_again_is_a_dead_letter_that_says_why(identity):
    async with Stage(app_of(writing)) as h:
        await h.put(Message(body=b'"a"', exchange="events", routing_key="k", id=identity))
        (letter,) = h.dead(QUEUE)
        assert letter.headers[names.REASON] == "malformed"
        assert "message id" in letter.headers[names.ERROR]
        assert await h.effects() == []


@pytest.mark.parametrize("identity", ["'; DROP TABLE effects; --", "é" * 127, "%s {0} :id", " ", "\u202e\n", "x" * 255])
async def test_ids_are_any_text(identity):
    message = Message(body=b'"a"', exchange="events", routing_key="k", id=identity)
    async with Stage(app_of(writing)) as h:
        for _ in range(2):
            await h.put(message)
        assert await h.effects() == ["a"]
        assert h.ends() == ["Handled", "Duplicate"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("any")])
async def test_whatever_a_handler_raises_is_rolled_back(error):
    async with Stage(app_of(failing_until(2, error))) as h:
        await h.publish("k", "a")
        assert await h.effects() == []
        await h.advance("1m")
        assert await h.effects() == ["a 2"]


async def test_a_timeout_is_rolled_back_and_counts_as_an_attempt():
    async def handle(order: str, message: Message, session: AsyncSession):
        await session.execute(EFFECT, {"said": f"{order} {message.attempt}"})
        if message.attempt == 1:
            await asyncio.Event().wait()

    async with Stage(app_of(handle, timeout="5s"), patience="50ms") as h:
        await h.publish("k", "a")
        await h.advance("5s")
        await until(lambda: h.ends() == ["Retried"])
        assert told(h.events, events.Retried)[0].error_type == "carom.errors.HandlerTimeout"
        await h.advance("1s")
        await until(lambda: h.ends() == ["Retried", "Handled"])
        assert await h.effects() == ["a 2"]


# -- what else is in the transaction -----------------------------------------------------------------------


async def test_what_a_handler_emits_is_part_of_its_transaction():
    async def handle(order: str, message: Message, session: AsyncSession):
        app.emit(session, "invoice.sent", message.attempt)
        if message.attempt == 1:
            raise ValueError

    app = app_of(handle)
    async with Stage(app) as h:
        message = await h.publish("k", "a")
        assert await h.rows("SELECT body FROM carom_outbox") == []
        await h.advance("1m")
        await h.redeliver(message)
        assert await h.rows("SELECT routing_key, body FROM carom_outbox") == [("invoice.sent", b"2")]


@pytest.mark.parametrize("ending", ["commit", "rollback", "close"])
async def test_the_end_of_the_transaction_is_not_the_handlers(ending):
    async def handle(order: str, message: Message, session: AsyncSession):
        await session.execute(EFFECT, {"said": f"{order} {message.attempt}"})
        if message.attempt == 1:
            await getattr(session, ending)()

    async with Stage(app_of(handle)) as h:
        await h.publish("k", "a")
        (retried,) = told(h.events, events.Retried)
        assert f"{ending}()" in retried.error
        await h.advance("1m")
        assert await h.effects() == ["a 2"]


async def test_a_handler_may_undo_a_part():
    async def handle(order: str, session: AsyncSession):
        await session.execute(EFFECT, {"said": "kept"})
        with suppress(KeyError):
            async with session.begin_nested():
                await session.execute(EFFECT, {"said": "undone"})
                raise KeyError

    async with Stage(app_of(handle)) as h:
        await h.publish("k", "a")
        assert await h.effects() == ["kept"]
        assert h.ends() == ["Handled"]


async def test_middleware_runs_inside_the_transaction_and_sees_no_session():
    seen = []

    app = app_of(writing)

    @app.middleware
    async def refusing(message, call):
        seen.append(type(message))
        await call(message)
        raise Reject("after all")

    async with Stage(app) as h:
        await h.publish("k", "a")
        assert await h.effects() == []
        assert seen == [Message]
