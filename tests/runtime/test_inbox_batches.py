"""Batches in one transaction: each effect once, whichever of them fails and whichever came before."""

import pytest
from inbox_stage import EFFECT, QUEUE, Stage, again, app_of
from runtime_stage import told
from sqlalchemy.ext.asyncio import AsyncSession

from carom import BatchFailure, Discard, Message, Reject
from carom.core import message as names
from carom.runtime import events
from carom.runtime.batches import handle_in_transactions
from carom.runtime.inbox import Ended


class Batches:
    """A handler that writes an effect for each message, and fails as it is told."""

    def __init__(self, fail=lambda orders: None):
        self.calls = []
        self.fail = fail

    async def handle(self, orders: list[int], session: AsyncSession):
        self.calls.append(orders)
        for order in orders:
            await session.execute(EFFECT, {"said": str(order)})
        error = self.fail(orders)
        if error is not None:
            raise error


def stage_of(batches, *, batch=10, **options):
    return Stage(app_of(batches.handle, batch=batch, **options))


async def publish(h, *payloads):
    messages = await h.publish_many([("k", payload) for payload in payloads])
    await h.advance("50ms")
    return messages


async def test_a_batch_is_one_transaction():
    batches = Batches()
    async with stage_of(batches) as h:
        await publish(h, *range(5))
        assert batches.calls == [[0, 1, 2, 3, 4]]
        assert await h.effects() == ["0", "1", "2", "3", "4"]
        assert len(await h.seen()) == 5
        assert h.ends() == ["Handled"] * 5


async def test_duplicates_among_a_batch_are_not_handed_over():
    batches = Batches()
    async with stage_of(batches) as h:
        first, second = await publish(h, 1, 2)
        for message in (first, again(first), second):
            await h.put(again(message))
        await publish(h, 3)
        assert batches.calls == [[1, 2], [3]]
        assert await h.effects() == ["1", "2", "3"]
        assert sorted(h.ends()) == ["Duplicate"] * 3 + ["Handled"] * 3


async def test_of_two_that_are_the_same_in_one_batch_one_is_handled():
    batches = Batches()
    async with stage_of(batches) as h:
        message = Message(body=b"7", exchange="events", routing_key="k", id="same")
        for _ in range(3):
            await h.put(message)
        await publish(h, 8)
        assert batches.calls == [[7, 8]]
        assert sorted(h.ends()) == ["Duplicate", "Duplicate", "Handled", "Handled"]


async def test_a_batch_of_duplicates_runs_nothing():
    batches = Batches()
    async with stage_of(batches) as h:
        for message in await publish(h, 1, 2):
            await h.put(again(message))
        await h.advance("1s")
        assert batches.calls == [[1, 2]]
        assert h.ends()[2:] == ["Duplicate", "Duplicate"]


async def test_those_a_handler_names_fail_and_the_others_are_handled_again_without_them():
    batches = Batches(lambda orders: BatchFailure({orders.index(3): ValueError("three")}) if 3 in orders else None)
    async with stage_of(batches, retry=()) as h:
        await publish(h, *range(6))
        assert batches.calls == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 4, 5]]
        assert await h.effects() == ["0", "1", "2", "4", "5"]
        assert sorted(h.ends()) == ["DeadLettered"] + ["Handled"] * 5
        assert len(told(h.events, events.Received)) == 6


async def test_a_handler_may_name_others_each_time():
    def fail(orders):
        return BatchFailure({0: ValueError()}) if len(orders) > 2 else None

    batches = Batches(fail)
    async with stage_of(batches, retry=()) as h:
        await publish(h, *range(5))
        assert [len(call) for call in batches.calls] == [5, 4, 3, 2]
        assert await h.effects() == ["3", "4"]
        assert sorted(h.ends()) == ["DeadLettered"] * 3 + ["Handled"] * 2


async def test_when_nobody_knows_who_failed_each_is_handled_in_a_transaction_of_its_own():
    batches = Batches(lambda orders: ValueError() if 2 in orders else None)
    async with stage_of(batches, retry=()) as h:
        await publish(h, 1, 2, 3)
        assert batches.calls == [[1, 2, 3], [1], [2], [3]]
        assert await h.effects() == ["1", "3"]


async def test_what_cannot_be_read_does_not_spoil_the_batch():
    batches = Batches()
    async with stage_of(batches) as h:
        await publish(h, 1, "no number", 2)
        assert batches.calls == [[1, 2]]
        assert await h.effects() == ["1", "2"]
        assert h.dead(QUEUE)[0].headers[names.REASON] == "malformed"


async def test_what_cannot_be_known_again_does_not_spoil_the_batch():
    batches = Batches()
    async with stage_of(batches) as h:
        await h.put(Message(body=b"1", exchange="events", routing_key="k"))
        await publish(h, 2)
        assert batches.calls == [[2]]
        assert h.dead(QUEUE)[0].headers[names.REASON] == "malformed"


async def test_verdicts_for_single_messages_of_a_batch():
    verdicts = {1: Discard("no use"), 2: Reject("never"), 3: ValueError("again")}

    def fail(orders):
        found = {index: verdicts[order] for index, order in enumerate(orders) if order in verdicts}
        return BatchFailure(found) if found else None

    batches = Batches(fail)
    async with stage_of(batches) as h:
        messages = await publish(h, *range(5))
        assert sorted(h.ends()) == ["DeadLettered", "Discarded", "Handled", "Handled", "Retried"]
        assert await h.effects() == ["0", "4"]
        await h.put(again(messages[1]))
        await h.advance("50ms")
        assert h.ends()[-1] == "Duplicate"


async def test_a_batch_that_is_interrupted_is_handed_back_whole():
    import asyncio

    async def handle(orders: list[int], session: AsyncSession):
        await session.execute(EFFECT, {"said": "never"})
        await asyncio.Event().wait()

    async with Stage(app_of(handle, batch=2), patience="50ms") as h:
        await h.publish_many([("k", 1), ("k", 2)])
        await h.app.stop(grace=0)
        assert h.ends() == ["HandedBack"] * 2
        assert len(h.ready(QUEUE)) == 2


async def test_a_session_is_one_for_the_batch_wherever_its_parameter_is():
    given = []

    async def handle(session: AsyncSession, orders: list[int], messages: list[Message], *, key: str = "kept"):
        given.append((isinstance(session, AsyncSession), orders, len(messages), key))

    async with Stage(app_of(handle, batch=2)) as h:
        await h.publish_many([("k", 1), ("k", 2)])
    assert given == [(True, [1, 2], 2, "kept")]


@pytest.mark.parametrize("size", [0, 1, 4])
async def test_no_message_is_forgotten_whatever_a_transaction_says(size):
    async def attempt(places):
        return Ended(None, (), dict.fromkeys(range(len(places))))

    assert await handle_in_transactions(size, attempt, lambda place: True) == [None] * size
