"""Batches: many messages in one call, and still an outcome for each."""

import asyncio

import msgspec
import pytest
from runtime_stage import ends, told

from carom import App, BatchFailure, DecodeError, Discard, Message, Reject, Retry
from carom.core.outcome import Done, Failed
from carom.runtime import events
from carom.runtime.batches import handle_batch
from carom.runtime.listener import LINGER_MS
from carom.testing import Harness

QUEUE = "q"


def batching(function, *, retry=("1s",), batch=10, **options):
    app = App("embedded://", observers=())
    app.listen("k", queue=QUEUE, retry=retry, batch=batch, **options)(function)
    return app


async def publish(h, *payloads):
    await h.publish_many([("k", payload) for payload in payloads])
    await h.advance(LINGER_MS / 1000)


def bodies(messages):
    return [int(message.body) for message in messages]


async def test_a_full_batch_comes_at_once_and_the_rest_when_it_has_lingered():
    calls = []

    async def handle(orders: list[int], messages: list[Message]):
        calls.append(orders)
        assert [m.attempt for m in messages] == [1] * len(orders)

    async with Harness(batching(handle, batch=3)) as h:
        await h.publish_many([("k", n) for n in range(7)])
        assert calls == [[0, 1, 2], [3, 4, 5]]
        await h.advance((LINGER_MS - 1) / 1000)
        assert len(calls) == 2
        await h.advance("1ms")
        assert calls[2:] == [[6]]
        assert bodies(h.handled(QUEUE)) == list(range(7))


async def test_what_comes_while_a_batch_lingers_joins_it_and_a_full_one_lingers_no_longer():
    calls = []

    async def handle(orders: list[int]):
        calls.append(orders)

    async with Harness(batching(handle, batch=2)) as h:
        await h.publish("k", 1)
        assert calls == []
        await h.publish("k", 2)
        assert calls == [[1, 2]]
        await h.advance("1s")
        assert calls == [[1, 2]]


async def test_prefetch_is_large_enough_for_the_next_batch_and_no_larger():
    let_go = asyncio.Event()

    async def handle(orders: list[int]):
        await let_go.wait()

    async with Harness(batching(handle, batch=3, concurrency=1), patience="10ms") as h:
        await h.publish_many([("k", n) for n in range(20)])
        assert len(h.ready(QUEUE)) == 14
        let_go.set()
        await h.advance("1s")
        assert len(h.handled(QUEUE)) == 20


async def test_batches_run_side_by_side_up_to_the_concurrency():
    let_go, most, running = asyncio.Event(), [0], [0]

    async def handle(orders: list[int]):
        running[0] += 1
        most.append(running[0])
        await let_go.wait()
        running[0] -= 1

    async with Harness(batching(handle, batch=2, concurrency=2, prefetch=100), patience="10ms") as h:
        await h.publish_many([("k", n) for n in range(10)])
        assert running == [2]
        let_go.set()
        await h.settle()
        assert max(most) == 2
        assert len(h.handled(QUEUE)) == 10


async def test_a_batch_failure_says_which_failed_and_the_others_are_done():
    async def handle(orders: list[int]):
        failed = {0: Reject("never"), 2: ValueError("later"), 3: Discard(), 4: Retry(after="1s")}
        if orders == [0, 1, 2, 3, 4]:
            raise BatchFailure(failed)

    async with Harness(batching(handle)) as h:
        await publish(h, 0, 1, 2, 3, 4)
        assert bodies(h.handled(QUEUE)) == [1]
        assert bodies(h.dead(QUEUE)) == [0]
        assert bodies(h.discarded(QUEUE)) == [3]
        assert bodies(h.waiting()) == [2, 4]
        await h.advance("2s")
        assert bodies(h.handled(QUEUE)) == [1, 2, 4]
        assert [m.attempt for m in h.handled(QUEUE)] == [1, 2, 2]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("somewhere"),
        BatchFailure({9: ValueError()}),
        BatchFailure({-1: ValueError()}),
        BatchFailure({"a": ValueError()}),
        BatchFailure({}),
        ExceptionGroup("of one", [BatchFailure({0: ValueError()})]),
        Reject("all of them?"),
        Discard("all of them?"),
        Retry(after="5s"),
        asyncio.CancelledError(),
        SystemExit(),
    ],
)
async def test_on_any_other_exception_they_are_handled_one_by_one(error):
    calls = []

    async def handle(orders: list[int]):
        calls.append(orders)
        if 1 in orders:
            raise error

    async with Harness(batching(handle, retry=())) as h:
        await publish(h, 0, 1, 2)
        assert calls == [[0, 1, 2], [0], [1], [2]]
        assert bodies(h.handled(QUEUE)) == [0, 2]
        assert bodies(h.dead(QUEUE)) + bodies(h.discarded(QUEUE)) == [1]


async def test_alone_a_message_may_still_be_named_in_a_batch_failure():
    async def handle(orders: list[int]):
        if len(orders) > 1:
            raise ValueError
        if orders == [1]:
            raise BatchFailure({0: Reject("this one")})

    async with Harness(batching(handle)) as h:
        await publish(h, 0, 1, 2)
        assert bodies(h.handled(QUEUE)) == [0, 2]
        assert h.dead(QUEUE)[0].headers["carom-reason"] == "rejected"


async def test_a_batch_failure_with_what_is_no_error_is_no_crash():
    async def handle(orders: list[int]):
        raise BatchFailure({0: "not an exception"})

    async with Harness(batching(handle, retry=())) as h:
        await publish(h, 0)
        assert bodies(h.dead(QUEUE)) == [0]
        assert h.app.busy == 0


async def test_one_undecodable_message_does_not_condemn_its_batch():
    calls = []

    async def handle(orders: list[int]):
        calls.append(orders)

    async with Harness(batching(handle)) as h:
        await publish(h, 0, "one", 2, [], 4)
        assert calls == [[0, 2, 4]]
        assert bodies(h.handled(QUEUE)) == [0, 2, 4]
        assert [m.headers["carom-reason"] for m in h.dead(QUEUE)] == ["malformed", "malformed"]


async def test_a_decode_error_of_the_handlers_own_is_no_reason_to_look_for_unreadable_bodies():
    async def handle(orders: list[int]):
        if 1 in orders:
            raise DecodeError("a field of it")

    async with Harness(batching(handle)) as h:
        await publish(h, 0, 1)
        assert bodies(h.handled(QUEUE)) == [0]
        assert bodies(h.dead(QUEUE)) == [1]


class Strange(msgspec.Struct):
    n: int

    def __post_init__(self):
        if self.n == 1:
            raise KeyError("a payload class that raises what it likes")


async def test_a_payload_class_that_raises_what_it_likes_condemns_its_own_message_alone():
    async def handle(orders: list[Strange]): ...

    async with Harness(batching(handle, retry=())) as h:
        await publish(h, {"n": 0}, {"n": 1}, "no struct", {"n": 2})
        assert len(h.handled(QUEUE)) == 2
        assert sorted(str(m.headers["carom-reason"]) for m in h.dead(QUEUE)) == ["exhausted", "malformed"]
        assert h.app.busy == 0


async def test_each_message_of_a_batch_counts_its_own_attempts():
    seen = []

    async def handle(orders: list[int], messages: list[Message]):
        seen.append([(n, m.attempt) for n, m in zip(orders, messages, strict=True)])
        raise BatchFailure({index: ValueError() for index, n in enumerate(orders) if n == 1})

    async with Harness(batching(handle, retry=("1s", "1s"))) as h:
        await publish(h, 1, 2)
        await h.advance("950ms")
        await publish(h, 3)
        await h.advance("1m")
        assert sorted(pair for call in seen for pair in call) == [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]
        assert h.dead(QUEUE)[0].headers["carom-attempt"] == 3


async def test_a_batch_that_takes_too_long_is_tried_message_by_message():
    async def handle(orders: list[int]):
        if 1 in orders:
            await asyncio.Event().wait()

    async with Harness(batching(handle, timeout="5s", retry=()), patience="10ms") as h:
        await publish(h, 0, 1, 2)
        await h.advance("1m")
        assert bodies(h.handled(QUEUE)) == [0, 2]
        assert h.dead(QUEUE)[0].headers["carom-error-type"] == "carom.errors.HandlerTimeout"


async def test_sync_batch_handlers_run_in_threads():
    calls = []

    def handle(orders: list[int]):
        calls.append(orders)

    async with Harness(batching(handle)) as h:
        await publish(h, 0, 1)
        assert calls == [[0, 1]]
        assert bodies(h.handled(QUEUE)) == [0, 1]


async def test_exactly_one_terminal_event_for_each_message_of_a_batch():
    async def handle(orders: list[int]):
        raise BatchFailure({0: ValueError(), 1: Discard()})

    async with Harness(batching(handle, retry=())) as h:
        await publish(h, 0, 1, 2)
        assert sorted(ends(h.events)) == ["DeadLettered", "Discarded", "Handled"]
        assert len(told(h.events, events.Received)) == 3


async def test_crash_looped_members_of_a_batch_are_dead_and_the_others_handled():
    calls = []

    async def handle(orders: list[int]):
        calls.append(orders)

    app = batching(handle, crash_limit=1)
    h = Harness(app)
    await h.broker.open()
    await h.broker.declare(app.topology)
    await h.broker.publish([Message(body=b"1", exchange="events", routing_key="k")])
    h.broker.engine.get("worker", QUEUE, h.clock.now_ms())
    h.broker.engine.end("worker", h.clock.now_ms())
    async with h:
        await publish(h, 2, 3)
        assert calls == [[2, 3]]
        assert h.dead(QUEUE)[0].headers["carom-reason"] == "crash-loop"
        assert bodies(h.handled(QUEUE)) == [2, 3]


async def test_a_suspect_is_never_part_of_a_batch():
    calls = []

    async def handle(orders: list[int]):
        calls.append(orders)

    app = batching(handle)
    h = Harness(app)
    await h.broker.open()
    await h.broker.declare(app.topology)
    messages = [Message(body=body, exchange="events", routing_key="k") for body in (b"1", b"2", b"3")]
    await h.broker.publish(messages)
    for _ in range(2):
        h.broker.engine.get("worker", QUEUE, h.clock.now_ms())
        h.broker.engine.end("worker", h.clock.now_ms())
    async with h:
        await h.advance("1s")
        assert calls == [[2, 3], [1]], "the suspect went behind the others, with its count on it"


async def test_a_copy_that_the_broker_does_not_take_keeps_its_own_original_and_no_other():
    async def handle(orders: list[int]):
        raise BatchFailure({0: ValueError(), 2: Reject("never")})

    async with Harness(batching(handle)) as h:
        h.broker.engine.router.forget_queue("carom.delay.1s")
        await publish(h, 0, 1, 2)
        assert bodies(h.handled(QUEUE)) == [1]
        assert bodies(h.dead(QUEUE)) == [2]
        assert h.app.busy == 1
        assert len(told(h.events, events.NotSettled)) == 1
        await h.broker.declare(h.app.topology)
        await h.advance("1s")
        assert bodies(h.waiting()) == [0]
        assert h.app.busy == 0


async def test_a_batch_that_runs_when_the_app_stops_goes_back_as_a_whole():
    async def handle(orders: list[int]):
        await asyncio.Event().wait()

    h = Harness(batching(handle), patience="10ms")
    await h.__aenter__()
    await publish(h, 0, 1, 2)
    await h.publish("k", 3)
    await h.__aexit__(None, None, None)
    assert ends(h.events) == ["HandedBack"] * 4
    assert sorted(bodies(h.ready(QUEUE))) == [0, 1, 2, 3]


async def test_a_batch_handler_that_cancels_itself_gives_all_back():
    async def handle(orders: list[int]):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    async with Harness(batching(handle, crash_limit=3)) as h:
        await publish(h, 0, 1)
        await h.advance("1m")
        assert [m.headers["carom-reason"] for m in h.dead(QUEUE)] == ["crash-loop"] * 2
        assert h.app.busy == 0


async def test_no_messages_are_no_batch():
    async def attempt(messages):
        raise NotImplementedError

    assert await handle_batch([], attempt, lambda _message: True) == []


async def test_outcomes_come_in_the_order_of_the_messages():
    messages = [Message(body=str(n).encode()) for n in range(4)]

    async def attempt(some):
        if len(some) > 1:
            return Failed(ValueError())
        return Done() if some[0].body in {b"0", b"3"} else Failed(KeyError(some[0].body))

    found = await handle_batch(messages, attempt, lambda _message: True)
    assert [type(one).__name__ for one in found] == ["Done", "Failed", "Failed", "Done"]
    assert [str(one.error) for one in found[1:3]] == ["b'1'", "b'2'"]
