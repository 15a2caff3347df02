"""The consumer: what comes, what runs, what follows, and what happens when the broker does not play along."""

import asyncio
import dataclasses

import pytest
from runtime_stage import ends, told

from carom import App, Discard, Message, Reject
from carom.brokers.embedded.broker import MemoryBroker
from carom.brokers.embedded.deliveries import EmbeddedDelivery
from carom.brokers.embedded.engine import Engine
from carom.core.effects import CONFIRMED, NACKED, Nacked, Returned, Unknown
from carom.core.topology import Queue, Topology, arguments
from carom.errors import BrokerError, BrokerUnavailable, ConfigurationError
from carom.ports import ConnectionDown, ConnectionUp, ConsumerEnded
from carom.runtime import events
from carom.testing import Harness, VirtualClock

QUEUE = "q"


def app_of(function, *keys, retry=("1s",), **options):
    app = App("embedded://", observers=())
    app.listen(*(keys or ("k",)), queue=QUEUE, retry=retry, **options)(function)
    return app


async def fine(order): ...


async def failing(order):
    raise ValueError("no")


# -- what comes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "key", "comes"),
    [
        (("order.*",), "order.created", True),
        (("order.*",), "order.created.eu", False),
        (("order.#",), "order", True),
        (("order.#",), "order.created.eu", True),
        (("#",), "", True),
        (("*.created", "order.*"), "order.created", True),
        (("a", "b"), "b", True),
        (("a", "b"), "c", False),
    ],
)
async def test_a_message_comes_once_when_any_binding_key_matches(keys, key, comes):
    app = app_of(fine, *keys)
    app.listen("#", queue="all")(lambda order: None)
    async with Harness(app) as h:
        await h.publish(key, 1)
        assert len(h.handled(QUEUE)) == comes
        assert len(h.handled("all")) == 1


async def test_a_handler_sees_where_its_message_was_first_published_at_every_attempt():
    seen = []

    async def handle(order, message: Message):
        seen.append((message.exchange, message.routing_key, message.attempt, message.id))
        raise ValueError

    async with Harness(app_of(handle, "order.*")) as h:
        message = await h.publish("order.created", 1)
        await h.advance("1m")
    assert seen == [("events", "order.created", attempt, message.id) for attempt in (1, 2)]


async def test_only_the_queue_that_failed_gets_its_message_again():
    app = app_of(failing)
    app.listen("k", queue="other")(fine)
    async with Harness(app) as h:
        await h.publish("k", 1)
        await h.advance("1m")
        assert len(h.attempts(QUEUE)) == 2
        assert len(h.attempts("other")) == 1


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_concurrency_is_reached_and_never_exceeded(concurrency):
    let_go, running, most = asyncio.Event(), [0], [0]

    async def handle(order):
        running[0] += 1
        most[0] = max(most[0], running[0])
        await let_go.wait()
        running[0] -= 1

    async with Harness(app_of(handle, concurrency=concurrency, prefetch=10), patience="10ms") as h:
        await h.publish_many([("k", n) for n in range(15)])
        assert running == [concurrency]
        assert h.app.busy == 10, "no more than prefetched is in our hands"
        assert len(h.ready(QUEUE)) == 5
        let_go.set()
        await h.settle()
        assert most == [concurrency]
        assert len(h.handled(QUEUE)) == 15


async def test_messages_are_started_in_their_order():
    order = []

    async def handle(n: int):
        order.append(n)

    async with Harness(app_of(handle, concurrency=1)) as h:
        await h.publish_many([("k", n) for n in range(50)])
    assert order == list(range(50))


# -- events ------------------------------------------------------------------------------------------------


async def test_every_delivery_has_exactly_one_terminal_event():
    async def handle(order: str):
        raise {"fail": ValueError(), "reject": Reject("r"), "discard": Discard("d")}.get(order) or SystemError

    app = app_of(handle)
    async with Harness(app) as h:
        for order in ("fail", "reject", "discard"):
            await h.publish("k", order)
        await h.put(Message(body=b"{", exchange="events", routing_key="k"))
        await h.advance("1m")
        assert len(told(h.events, events.Received)) == 5
        assert sorted(ends(h.events)) == ["DeadLettered"] * 3 + ["Discarded", "Retried"]


async def test_events_say_who_how_often_why_and_how_long():
    async with Harness(app_of(failing)) as h:
        sent = await h.publish("k", 1, correlation_id="c-1")
        await h.advance("1m")
        received, again = told(h.events, events.Received)
        (retried,) = told(h.events, events.Retried)
        (dead,) = told(h.events, events.DeadLettered)
        for event in (received, again, retried, dead):
            assert (event.queue, event.message_id, event.correlation_id) == (QUEUE, sent.id, "c-1")
        assert [e.attempt for e in (received, retried, again, dead)] == [1, 1, 2, 2]
        assert (retried.delay_ms, retried.classification, retried.error_type) == (1_000, "unknown", "ValueError")
        assert (dead.reason, dead.error) == ("exhausted", "no")
        assert dead.duration_ms >= 0
        (published,) = told(h.events, events.Published)
        assert published.message == sent


async def test_nothing_is_told_and_all_is_done_when_nobody_observes():
    done = asyncio.Event()
    app = App("embedded://", observers=())

    @app.listen("k")
    async def handle(order: int):
        if order == 2:
            done.set()
        raise Reject("all the same")

    async with app:
        await app.publish("k", 1)
        await app.publish("k", 2)
        await asyncio.wait_for(done.wait(), 10)


async def test_an_observer_that_raises_changes_nothing(caplog):
    app = app_of(failing)

    @app.observe
    def broken(event):
        raise RuntimeError("the metrics are down")

    async with Harness(app) as h:
        await h.publish("k", 1)
        await h.advance("1m")
        assert len(h.dead(QUEUE)) == 1
    assert "the metrics are down" in caplog.text
    assert "on Received" in caplog.text
    app.unobserve(broken)


# -- middleware --------------------------------------------------------------------------------------------


async def test_middleware_is_called_from_the_first_declared_inwards():
    trace = []

    async def handle(order):
        trace.append("handler")
        return "answer"

    app = app_of(handle)

    @app.middleware
    async def outer(message, call):
        trace.append("outer in")
        answer = await call(message)
        trace.append(f"outer out {answer}")

    @app.middleware
    async def inner(message, call):
        trace.append("inner in")
        answer = await call(message)
        trace.append("inner out")
        return answer

    async with Harness(app) as h:
        await h.publish("k", 1)
    assert trace == ["outer in", "inner in", "handler", "inner out", "outer out answer"]


async def test_middleware_may_answer_for_the_handler_change_the_message_call_twice_or_fail():
    calls = []

    async def handle(order: str, message: Message):
        calls.append((order, message.type))

    app = app_of(handle, retry=())

    @app.middleware
    async def choose(message, call):
        if message.body == b'"skip"':
            return
        if message.body == b'"fail"':
            raise Reject("by middleware")
        if message.body == b'"twice"':
            await call(message)
        await call(dataclasses.replace(message, type="changed"))

    async with Harness(app) as h:
        for order in ("skip", "fail", "twice", "once"):
            await h.publish("k", order)
        assert calls == [("twice", ""), ("twice", "changed"), ("once", "changed")]
        assert [m.body for m in h.handled(QUEUE)] == [b'"skip"', b'"twice"', b'"once"']
        assert h.dead(QUEUE)[0].headers["carom-error"] == "by middleware"
        assert h.dead(QUEUE)[0].type == "", "what middleware changed is not what is kept"


async def test_middleware_may_catch_what_the_handler_raises():
    app = app_of(failing)

    @app.middleware
    async def forgiving(message, call):
        try:
            await call(message)
        except ValueError:
            raise Discard("forgiven") from None

    async with Harness(app) as h:
        await h.publish("k", 1)
        assert len(h.discarded(QUEUE)) == 1


async def test_middleware_of_a_batch_is_called_with_its_messages():
    seen = []

    async def handle(orders: list[int]):
        seen.append(orders)

    app = app_of(handle, batch=2)

    @app.middleware
    async def count(messages, call):
        seen.append(len(messages))
        await call(messages[:1])

    async with Harness(app) as h:
        await h.publish_many([("k", 1), ("k", 2)])
        assert seen == [2, [1]]
        assert len(h.handled(QUEUE)) == 2


def test_middleware_that_yields_and_outgoing_that_waits_are_refused():
    app = App()

    async def yields(message, call):
        yield

    async def waits(message): ...

    with pytest.raises(ConfigurationError, match="yields"):
        app.middleware(yields)
    with pytest.raises(ConfigurationError, match="is async"):
        app.outgoing(waits)


# -- a broker that does not take the copy ------------------------------------------------------------------


class Moody(MemoryBroker):
    """The memory broker on a bad day: answers prepared beforehand come instead of its own."""

    def __init__(self, clock, report=None):
        super().__init__(clock, report)
        self.answers = []

    async def publish(self, messages):
        if self.answers and messages[0].headers.get("carom-attempt"):
            answer = self.answers.pop(0)
            if isinstance(answer, BaseException):
                raise answer
            return [answer]
        return await super().publish(messages)


class MoodyHarness(Harness):
    def __init__(self, app):
        super().__init__(app)
        self.broker = Moody(self.clock, app.tell)


@pytest.mark.parametrize("function", [failing, "reject"])
async def test_a_copy_that_is_not_confirmed_keeps_the_original_and_is_tried_again(function):
    async def reject(order):
        raise Reject("never")

    async with MoodyHarness(app_of(reject if function == "reject" else function)) as h:
        moods = [Returned(), NACKED, Unknown("the connection went"), BrokerUnavailable("nobody"), BrokerError("odd")]
        h.broker.answers = list(moods)
        await h.publish("k", 1)
        assert h.app.busy == 1
        assert h.app.consumers[0].running == 0
        assert h.ready(QUEUE) == h.waiting() == h.dead(QUEUE) == ()
        await h.advance("1m")
        failures = told(h.events, events.NotSettled)
        assert len(failures) == 5
        waits = [event.retry_in_ms for event in failures]
        assert all(wait <= 250 * 2**n for n, wait in enumerate(waits))
        assert all(wait >= 125 * 2**n for n, wait in enumerate(waits)), "the waits grow"
        assert "NO_ROUTE" in failures[0].result
        assert "nobody" in failures[3].result
        assert len(h.dead(QUEUE)) == 1
        assert ends(h.events) == (["DeadLettered"] if function == "reject" else ["Retried", "DeadLettered"])
        assert h.app.busy == 0


async def test_a_delay_queue_that_is_gone_is_made_anew():
    async with Harness(app_of(failing)) as h:
        await h.broker.delete_queue("carom.delay.1s")
        await h.publish("k", 1)
        await h.advance("10m")
        assert len(told(h.events, events.NotSettled)) == 1
        assert ends(h.events) == ["Retried", "DeadLettered"]


async def test_an_original_is_kept_when_its_delay_queue_is_gone_until_it_is_back():
    async with Harness(app_of(failing)) as h:
        h.app._mode = "ignore"
        await h.broker.delete_queue("carom.delay.1s")
        await h.publish("k", 1)
        await h.advance("10m")
        assert told(h.events, events.NotSettled)
        assert h.app.busy == 1
        assert ends(h.events) == []
        await h.broker.declare(h.app.topology)
        await h.advance("1m")
        assert ends(h.events) == ["Retried", "DeadLettered"]


async def test_an_original_is_kept_while_its_dead_letter_queue_is_full():
    full = Queue("q.dlq", arguments=arguments({"x-max-length": 1, "x-overflow": "reject-publish"}))
    app = app_of(failing, retry=())
    h = Harness(app)
    await h.broker.open()
    await h.broker.declare(Topology(queues=(full,)))
    app._mode = "ignore"
    missing = dataclasses.replace(
        app.topology, queues=tuple(queue for queue in app.topology.queues if queue.name != "q.dlq")
    )
    await h.broker.declare(dataclasses.replace(missing, queues=(*missing.queues, full)))
    async with h:
        await h.publish("k", 1)
        await h.publish("k", 2)
        await h.advance("1m")
        assert len(h.dead(QUEUE)) == 1
        assert all("Nacked" in event.result for event in told(h.events, events.NotSettled))
        assert h.app.busy == 1
        await h.broker.purge("q.dlq")
        await h.advance("1m")
        assert [m.body for m in h.dead(QUEUE)] == [b"2"]
        assert h.app.busy == 0


async def test_a_mistake_of_an_adapter_costs_no_message(caplog):
    async with MoodyHarness(app_of(failing)) as h:
        h.broker.answers = [KeyError("a bug in an adapter")]
        message = await h.publish("k", 1)
        (dead,) = h.dead(QUEUE)
        assert (dead.id, dead.body) == (message.id, message.body)
        assert dead.headers["x-first-death-reason"] == "rejected", "made by the broker itself"
        assert told(h.events, events.DeadLettered)[0].reason == "unsettled"
        assert h.app.busy == 0
    assert "could not be settled and is refused" in caplog.text


async def test_a_mistake_of_an_adapter_in_a_batch_costs_no_message(caplog):
    async def handle(orders: list[int]):
        raise ValueError

    async with MoodyHarness(app_of(handle, batch=2, retry=())) as h:
        h.broker.answers = [KeyError("a bug in an adapter"), CONFIRMED]
        await h.publish_many([("k", 1), ("k", 2)])
        assert sorted(e.reason for e in told(h.events, events.DeadLettered)) == ["exhausted", "unsettled"]
        assert h.app.busy == 0
    assert "could not be settled and is refused" in caplog.text


async def test_a_delivery_that_cannot_even_be_read_is_refused(caplog):
    class Unreadable(EmbeddedDelivery):
        @property
        def message(self):
            raise TypeError("a bug in an adapter")

        @message.setter
        def message(self, value): ...

    async with Harness(app_of(fine)) as h:
        await h.broker.declare(h.app.topology)
        h.broker.engine.cancel(*next(iter(h.broker.engine.consumers)), h.clock.now_ms())
        await h.publish("k", 1)
        handed = h.broker.engine.get(h.broker._connection.session, QUEUE, h.clock.now_ms())
        h.app.consumers[0].receive(Unreadable(h.broker._connection, handed))
        await h.settle()
        assert len(h.dead(QUEUE)) == 1
    assert "could not be read and is refused" in caplog.text


# -- connections -------------------------------------------------------------------------------------------


async def test_what_was_handled_when_the_connection_went_is_not_settled_and_comes_again_as_a_crash():
    let_go = asyncio.Event()

    async def handle(order, message: Message):
        await let_go.wait()

    async with Harness(app_of(handle), patience="10ms") as h:
        await h.publish("k", 1)
        h.broker.disconnect()
        let_go.set()
        await h.settle()
        assert [type(e) for e in told(h.events, ConnectionDown, ConnectionUp)] == [
            ConnectionUp,
            ConnectionDown,
            ConnectionUp,
        ]
        first, again = told(h.events, events.Received)
        assert (first.crashes, again.crashes, again.attempt) == (0, 1, 1)
        assert ends(h.events) == ["Dropped", "Handled"]
        assert h.app.busy == 0


@pytest.mark.parametrize("error", [ValueError("retry"), Reject("dead"), Discard("gone")])
async def test_a_copy_for_a_lost_delivery_is_not_made(error):
    let_go = asyncio.Event()

    async def handle(order):
        await let_go.wait()
        raise error

    async with Harness(app_of(handle), patience="10ms") as h:
        await h.publish("k", 1)
        h.broker.disconnect()
        let_go.set()
        await h.settle()
        assert ends(h.events)[0] == "Dropped"
        assert len(ends(h.events)) == 2


async def test_a_copy_that_waits_for_a_lost_connection_is_let_go_of():
    async with Harness(app_of(failing)) as h:
        await h.broker.delete_queue("carom.delay.1s")
        await h.publish("k", 1)
        assert h.app.busy == 1
        h.broker.disconnect()
        await h.broker.declare(h.app.topology)
        await h.advance("1m")
        assert ends(h.events) == ["Retried", "Dropped", "DeadLettered"]
        assert len(h.dead(QUEUE)) == 1


async def test_what_waits_for_its_turn_when_the_connection_goes_is_dropped_without_being_handled():
    let_go, calls = asyncio.Event(), []

    async def handle(order: int):
        calls.append(order)
        await let_go.wait()

    async with Harness(app_of(handle, concurrency=1), patience="10ms") as h:
        await h.publish_many([("k", n) for n in range(3)])
        h.broker.disconnect()
        let_go.set()
        await h.settle()
        assert calls == [0, 0, 1, 2]
        assert ends(h.events).count("Dropped") == 3
        assert ends(h.events).count("Handled") == 3


async def one_life(engine, clock, handled):
    """Run a worker until it dies or has nothing to do; tell whether it died."""
    app, died, broker = App("embedded://", observers=()), asyncio.Event(), MemoryBroker(clock, engine=engine)

    @app.listen("k", queue=QUEUE, crash_limit=3, prefetch=10)
    async def handle(order: str):
        for _ in range(5):
            await asyncio.sleep(0)
        if order == "killer":
            await broker.close()  # what the others see of it
            died.set()
        if died.is_set():
            await asyncio.Event().wait()
        handled.append(order)

    living = asyncio.ensure_future(app.start(broker=broker, clock=clock))
    for _ in range(100):
        await asyncio.sleep(0)
    living.cancel()
    await asyncio.wait({living})
    await app.stop(grace=0)
    return died.is_set()


async def test_a_message_that_kills_its_worker_ends_as_a_crash_loop_and_its_neighbours_do_not():
    engine, clock, handled = Engine(), VirtualClock(), []
    publisher = MemoryBroker(clock, engine=engine)
    await publisher.open()
    await publisher.declare(app_of(fine).topology)
    for order in ("good", "killer", "better"):
        await publisher.publish([Message(body=f'"{order}"'.encode(), exchange="events", routing_key="k")])
    lives = [await one_life(engine, clock, handled) for _ in range(4)]
    assert lives == [True, True, True, False], "the limit is three"
    assert handled == ["good", "better"]
    (dead,) = engine.contents("q.dlq")
    assert dead.body == b'"killer"'
    assert (dead.headers["carom-reason"], dead.headers["carom-crashes"]) == ("crash-loop", 3)
    await publisher.close()


async def test_a_queue_without_counts_has_them_written_down_and_bounded():
    app = app_of(fine, crash_limit=3)
    classic = Queue(QUEUE, arguments=arguments({"x-dead-letter-exchange": "carom.dead"}))
    queues = tuple(classic if queue.name == QUEUE else queue for queue in app.topology.queues)
    h = Harness(app)
    app._mode = "ignore"
    await h.broker.open()
    await h.broker.declare(dataclasses.replace(app.topology, queues=queues))

    @app.middleware
    async def kill(message, call):
        h.broker.disconnect()

    async with h:
        await h.publish("k", 1)
        (dead,) = h.dead(QUEUE)
        assert dead.headers["carom-reason"] == "crash-loop"
        assert dead.headers["carom-crashes"] == 3
        assert len(h.attempts(QUEUE)) == 3
        assert ends(h.events) == ["Dropped", "Postponed"] * 2 + ["Dropped", "DeadLettered"]


async def test_a_queue_deleted_under_its_consumer_comes_back_and_consuming_goes_on():
    async with Harness(app_of(fine)) as h:
        await h.publish("k", 1)
        await h.broker.delete_queue(QUEUE)
        await h.settle()
        (ended,) = told(h.events, ConsumerEnded)
        assert ended.queue == QUEUE
        await h.publish("k", 2)
        assert [m.body for m in h.handled(QUEUE)] == [b"1", b"2"]


async def test_a_queue_that_cannot_come_back_is_asked_for_again_and_again():
    app = app_of(fine)
    async with Harness(app) as h:
        await h.broker.delete_queue(QUEUE)
        await h.broker.declare(Topology(queues=(Queue(QUEUE),)))
        await h.advance("10s")
        reasons = [event.reason for event in told(h.events, ConsumerEnded)]
        assert len(reasons) > 3
        assert "trying again in" in reasons[1]
        await h.broker.delete_queue(QUEUE)
        await h.advance("1m")
        await h.publish("k", 2)
        assert len(h.handled(QUEUE)) == 1


async def test_an_app_that_stops_does_not_ask_for_its_queue_again():
    h = Harness(app_of(fine))
    await h.__aenter__()
    consumer = h.app.consumers[0]
    await h.__aexit__(None, None, None)
    consumer._intake._ended("the broker goes down too")
    assert consumer._intake._service._task is None


# -- waiting beyond the longest delay ----------------------------------------------------------------------


async def test_a_wait_longer_than_every_delay_takes_several_turns_and_costs_no_attempt():
    from carom import Retry

    tries = []

    async def handle(order, message: Message):
        tries.append((h.clock.now_ms() - start, message.attempt))
        if message.attempt == 1:
            raise Retry(after="25s")

    async with Harness(app_of(handle, retry=("10s", "10s"))) as h:
        start = h.clock.now_ms()
        await h.publish("k", 1)
        await h.advance("1m")
        assert tries == [(0, 1), (30_000, 2)]
        assert [e.delay_ms for e in told(h.events, events.Postponed)] == [10_000, 5_000]


async def test_the_clock_of_a_harness_is_virtual():
    assert isinstance(Harness(app_of(fine)).clock, VirtualClock)


async def test_a_copy_that_no_broker_would_ever_take_makes_a_dead_letter_by_the_broker_itself():
    async with MoodyHarness(app_of(failing)) as h:
        h.broker.answers = [Nacked("its header is longer than a frame", lasting=True)]
        message = await h.publish("k", 1)
        (dead,) = h.dead(QUEUE)
        assert (dead.id, dead.body) == (message.id, message.body)
        (event,) = told(h.events, events.DeadLettered)
        assert event.reason == "unpublishable"
        assert "longer than a frame" in event.error
        assert told(h.events, events.NotSettled) == []
        assert h.app.busy == 0
