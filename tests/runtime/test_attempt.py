"""Every way a handler can end is an outcome, and none of them ends the worker."""

import asyncio
import builtins
import contextvars
import threading

import pytest
from runtime_stage import until

from carom import App, Discard, Message, Reject, Retry, RetryPolicy
from carom.core import outcome
from carom.errors import DecodeError
from carom.runtime import events
from carom.runtime.attempt import Attempt, HandlerTimeout, outcome_of
from carom.testing import Harness, VirtualClock

QUEUE = "q"


class OfItsOwnKind(BaseException):
    pass


class Unspeakable(Exception):
    def __str__(self):
        raise SystemExit


def listening(function, *, retry=("1s",), **options):
    app = App("embedded://", observers=())
    app.listen("k", queue=QUEUE, retry=retry, **options)(function)
    return app


async def after_one(function, **options):
    """Handle one message and one more that is well; return what was told of the first, in its order."""

    async def handle(n: int):
        if n == 1:
            result = function()
            if asyncio.iscoroutine(result):
                await result

    app = listening(handle, **options)
    async with Harness(app, patience="50ms") as h:
        first = await h.publish("k", 1)
        await h.advance("1m")
        await h.publish("k", 2)
        assert [m.body for m in h.handled(QUEUE)][-1] == b"2", "the worker goes on"
        assert app.busy == 0
        assert app.healthy
        return [e for e in h.events if isinstance(e, events.Delivered) and e.message_id == first.id], h.dead(QUEUE)


def raising(error, cause=None):
    def handle():
        raise error from cause

    return handle


ENDS = [
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException) and not name.startswith(("Unicode", "BaseExc", "Exc"))
]


@pytest.mark.parametrize("name", [*ENDS, "CancelledError", "OfItsOwnKind", "Unspeakable"])
async def test_whatever_an_async_handler_raises_is_retried_and_then_dead(name):
    kind = getattr(builtins, name, None) or {"CancelledError": asyncio.CancelledError}.get(name) or globals()[name]
    told, dead = await after_one(raising(kind()))
    ends = [type(e) for e in told if not isinstance(e, events.Received)]
    if name == "NotImplementedError":
        assert ends == [events.DeadLettered], "it says that it will never work"
    else:
        assert ends == [events.Retried, events.DeadLettered]
        assert told[-1].reason == "exhausted"
    assert len(dead) == 1


@pytest.mark.parametrize(
    "name", ["ValueError", "StopIteration", "StopAsyncIteration", "SystemExit", "KeyboardInterrupt", "GeneratorExit",
             "RecursionError", "MemoryError"]
)  # fmt: skip
async def test_whatever_a_thread_raises_is_retried_and_then_dead(name):
    kind = getattr(builtins, name)

    def handle(order):
        raise kind

    async with Harness(listening(handle)) as h:
        await h.publish("k", 1)
        await h.advance("1m")
        (dead,) = h.dead(QUEUE)
        assert dead.headers["carom-attempt"] == 2
        assert dead.headers["carom-reason"] == "exhausted"


async def test_cancelled_error_from_a_thread_is_a_failure():
    def handle(order):
        raise asyncio.CancelledError

    async with Harness(listening(handle, retry=())) as h:
        await h.publish("k", 1)
        assert len(h.dead(QUEUE)) == 1


async def test_endless_recursion_is_a_failure_like_any_other():
    def deep():
        return deep()

    told, _ = await after_one(deep, retry=())
    assert told[-1].error_type == "RecursionError"


async def test_reject_is_a_dead_letter_now():
    told, dead = await after_one(raising(Reject("no such customer"), ValueError("42")))
    assert [type(e) for e in told] == [events.Received, events.DeadLettered]
    assert (told[-1].reason, told[-1].classification) == ("rejected", "permanent")
    assert dead[0].headers["carom-error"] == "no such customer: 42"
    assert dead[0].headers["carom-error-type"] == "ValueError"


async def test_discard_is_told_and_kept_nowhere():
    told, dead = await after_one(raising(Discard("seen it")))
    assert [type(e) for e in told] == [events.Received, events.Discarded]
    assert told[-1].reason == "seen it"
    assert dead == ()


async def test_retry_after_waits_at_least_so_long_and_counts():
    app = App("embedded://", observers=())
    tries = []

    @app.listen("k", queue=QUEUE, retry=("10s", "1m"))
    async def handle(order, message: Message):
        tries.append((h.clock.now_ms() - start, message.attempt))
        raise Retry(after="37s", reason="not yet")

    async with Harness(app) as h:
        start = h.clock.now_ms()
        await h.publish("k", 1)
        await h.advance("10m")
        assert tries == [(0, 1), (60_000, 2), (120_000, 3)], "rounded up to a delay that exists, bounded by the policy"
        retried = [e for e in h.events if isinstance(e, events.Retried)]
        assert [(e.delay_ms, e.classification) for e in retried] == [(37_000, "transient")] * 2
        assert h.dead(QUEUE)[0].headers["carom-reason"] == "exhausted"
        assert "not yet" in str(h.dead(QUEUE)[0].headers["carom-error"])


async def test_retry_without_after_takes_the_policys_delay():
    told, _ = await after_one(raising(Retry(reason="busy")), retry=("5s", "7s"))
    assert [e.delay_ms for e in told if isinstance(e, events.Retried)] == [5_000, 7_000]


async def test_a_retry_after_nonsense_fails_as_any_mistake_does():
    told, dead = await after_one(raising(Retry(after="soon")))
    assert told[-1].error_type == "carom.errors.ConfigurationError"
    assert len(dead) == 1


async def in_a_task_group(*errors):
    async def fail(error):
        raise error

    async with asyncio.TaskGroup() as group:
        for error in errors:
            group.create_task(fail(error))


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ((Reject("no"), ValueError()), outcome.Reject),
        ((DecodeError("bytes"), ValueError()), outcome.Reject),
        ((Discard("no"), Discard("nor this")), outcome.Discard),
        ((Discard("no"), ValueError()), outcome.Failed),
        ((Retry("5s"), ValueError()), outcome.Failed),
        ((Retry("5s"), Retry("7s")), outcome.Retry),
        ((Retry("5s"), Discard()), outcome.Retry),
    ],
)
async def test_of_a_group_one_rejection_rejects_and_otherwise_all_must_agree(errors, expected):
    found = outcome_of(ExceptionGroup("of two", [ExceptionGroup("nested", [errors[0]]), errors[1]]))
    assert isinstance(found, expected)
    if (one := getattr(found, "after_ms", None)) is not None:
        assert one == max(int(e.after[:-1]) * 1000 for e in errors if isinstance(e, Retry))
    told, _ = await after_one(lambda: in_a_task_group(*errors), retry=())
    fates = {outcome.Discard: events.Discarded}
    assert type(told[-1]) is fates.get(expected, events.DeadLettered)


async def test_a_handler_that_swallows_its_timeout_is_cancelled_once_and_its_answer_counts():
    async def stubborn():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)

    told, _ = await after_one(stubborn, timeout="5s")
    assert [type(e) for e in told] == [events.Received, events.Handled]


@pytest.mark.parametrize("makes_of_it", [None, ValueError("rolled back"), KeyError("by the driver")])
async def test_an_async_handler_that_takes_too_long_is_cancelled_and_fails_as_transient(makes_of_it):
    async def slow():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if makes_of_it is None:
                raise
            raise makes_of_it from None

    told, dead = await after_one(slow, timeout="5s", retry=RetryPolicy.delays("1s").permanent(ValueError, KeyError))
    assert [type(e) for e in told if not isinstance(e, events.Received)] == [events.Retried, events.DeadLettered]
    assert told[1].classification == "transient"
    assert told[1].error_type == "carom.errors.HandlerTimeout"
    assert "its timeout of 5s" in str(dead[0].headers["carom-error"])


async def test_a_verdict_after_the_timeout_is_still_a_verdict():
    async def slow():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Reject("too slow for this") from None

    told, _ = await after_one(slow, timeout="5s")
    assert told[-1].reason == "rejected"


async def test_a_handler_within_its_timeout_is_left_alone():
    told, _ = await after_one(lambda: None, timeout="1ms")
    assert [type(e) for e in told] == [events.Received, events.Handled]


async def test_a_handler_that_cannot_be_cancelled_is_stuck_until_it_ends():
    let_go = asyncio.Event()

    async def handle(order):
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        raise ValueError("its own end")

    app = listening(handle, timeout="5s", retry=())
    async with Harness(app, patience="20ms") as h:
        await h.publish("k", 1)
        await h.advance("9s")
        assert app.healthy
        await h.advance("1s")
        assert not app.healthy
        (stuck,) = [e for e in h.events if isinstance(e, events.HandlerStuck)]
        assert stuck.timeout_ms == 5_000
        await h.advance("1h")
        assert h.dead(QUEUE) == () == h.ready(QUEUE), "it is in our hands"
        let_go.set()
        await h.settle()
        assert app.healthy
        assert [type(e) for e in h.events[-2:]] == [events.HandlerFreed, events.DeadLettered]
        assert h.events[-1].error == "its own end"


async def test_a_thread_that_takes_too_long_is_stuck_at_once_and_settled_by_its_real_outcome():
    let_go = threading.Event()

    def handle(order):
        let_go.wait(10)

    app = listening(handle, timeout="5s")
    async with Harness(app, patience="50ms") as h:
        await h.publish("k", 1)
        await h.advance("5s")
        assert not app.healthy
        assert app.consumers[0].stuck == 1
        await h.advance("1h")
        assert h.waiting() == h.handled(QUEUE) == h.ready(QUEUE) == ()
        let_go.set()
        await until(lambda: not app.busy)
        assert app.healthy
        assert len(h.handled(QUEUE)) == 1
        assert h.attempts(QUEUE)[0].attempt == 1


async def test_a_sync_function_that_returns_a_coroutine_has_it_awaited():
    done = []

    async def later(order):
        done.append((order, threading.current_thread() is threading.main_thread()))

    def handle(order):
        return later(order)

    async with Harness(listening(handle)) as h:
        await h.publish("k", 5)
        assert done == [(5, True)]


async def test_a_coroutine_that_a_thread_returns_too_late_is_not_begun():
    let_go = threading.Event()
    begun = []

    async def later(order):
        begun.append(order)

    def handle(order):
        let_go.wait(10)
        return later(order)

    app = listening(handle, timeout="5s", retry=())
    async with Harness(app, patience="50ms") as h:
        await h.publish("k", 5)
        await h.advance("5s")
        let_go.set()
        await until(lambda: not app.busy)
        assert begun == []
        assert h.dead(QUEUE)[0].headers["carom-error-type"] == "carom.errors.HandlerTimeout"


TENANT = contextvars.ContextVar("tenant", default="nobody")


async def test_a_thread_sees_the_context_of_the_app_and_of_middleware():
    seen = []

    def handle(order):
        seen.append((TENANT.get(), threading.current_thread() is threading.main_thread()))
        TENANT.set("changed in the thread")

    app = listening(handle)

    @app.middleware
    async def with_tenant(message, call):
        TENANT.set("of this message")
        await call(message)
        seen.append(TENANT.get())

    async with Harness(app) as h:
        await h.publish("k", 1)
    assert seen == [("of this message", False), "of this message"]


async def test_the_context_of_one_handler_is_not_seen_by_the_handler_of_what_it_publishes():
    app = App("embedded://", observers=())
    seen = []

    @app.listen("first", queue="first")
    async def first(order):
        TENANT.set("of the first")
        await app.publish("second", order)

    @app.listen("second", queue="second")
    async def second(order):
        seen.append(TENANT.get())

    token = TENANT.set("of the start")
    async with Harness(app) as h:
        await h.publish("first", 1)
    TENANT.reset(token)
    assert seen == ["of the start"]


async def test_a_handler_that_cancels_itself_gives_the_message_back_and_ends_in_a_crash_loop_at_worst():
    async def handle(order):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    app = listening(handle, crash_limit=3)
    async with Harness(app) as h:
        await h.publish("k", 1)
        assert [type(e) for e in h.events if isinstance(e, events.Delivered)] == [
            *([events.Received, events.HandedBack] * 2),
            events.Postponed,  # its count is written on it, and from now on it is alone
            *[events.Received, events.HandedBack],
            events.DeadLettered,
        ]
        assert h.dead(QUEUE)[0].headers["carom-reason"] == "crash-loop"
        assert app.busy == 0


async def test_a_handler_that_cancels_itself_and_raises_is_not_lost_either():
    async def handle(order):
        asyncio.current_task().cancel()
        raise ValueError("on the way out")

    async with Harness(listening(handle, crash_limit=3)) as h:
        await h.publish("k", 1)
        assert h.dead(QUEUE)[0].headers["carom-reason"] == "crash-loop"


async def test_an_interrupted_attempt_is_interrupted_whatever_the_handler_makes_of_it():
    for makes_of_it in (None, ValueError("the pool is closed"), Reject("never")):

        async def invoke(makes_of_it=makes_of_it):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if makes_of_it is None:
                    raise
                raise makes_of_it from None

        attempt = Attempt(VirtualClock(), None, lambda _stuck: None)
        running = asyncio.ensure_future(attempt.run(invoke))
        await asyncio.sleep(0)
        attempt.interrupt()
        attempt.interrupt()
        found = await running
        expected = outcome.Reject if isinstance(makes_of_it, Reject) else outcome.Interrupted
        assert isinstance(found, expected)


async def test_a_cancellation_from_elsewhere_is_passed_on():
    attempt = Attempt(VirtualClock(), 5_000, lambda _stuck: None)
    running = asyncio.ensure_future(attempt.run(asyncio.Event().wait))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_a_coroutine_that_is_closed_with_its_loop_ends_without_an_outcome():
    attempt = Attempt(VirtualClock(), None, lambda _stuck: None)
    loop = asyncio.new_event_loop()
    running = attempt.run(lambda: asyncio.sleep(0))

    async def begin():
        running.send(None)

    loop.run_until_complete(begin())
    loop.close()
    running.close()
    assert not attempt.stuck


async def test_the_timeout_error_is_a_timeout_error():
    assert issubclass(HandlerTimeout, TimeoutError)
