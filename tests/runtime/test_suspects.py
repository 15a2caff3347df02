"""Messages that may be what kills workers are handled one at a time, and blamed for what they did alone."""

import asyncio

import pytest
from runtime_stage import ends, told

from carom import App, Message
from carom.brokers.embedded import MemoryBroker
from carom.core.effects import Nacked, Unknown
from carom.errors import BrokerUnavailable
from carom.runtime import events
from carom.testing import Harness

SUSPECTS = "carom.suspects.app"


def suspect(body, queue="q", **more):
    headers = {"carom-queue": queue, "carom-exchange": "events", "carom-key": "k", "carom-crashes": 2, **more}
    return Message(body=body, exchange=SUSPECTS, routing_key=queue, id=body.decode(), headers=headers)


async def nothing(payload: bytes): ...


def app_of(handler=nothing, **options):
    app = App("embedded://", observers=())
    app.listen("k", queue="q", **options)(handler)
    return app


async def killed(h, queue, times=1, beside=()):
    """Let workers die with what is at the head of a queue in their hands, and with messages of other queues."""
    for _ in range(times):
        for name in (queue, *beside):
            h.broker.engine.get("a worker that dies", name, h.clock.now_ms())
        h.broker.engine.end("a worker that dies", h.clock.now_ms())


async def prepared(app):
    """Return a harness whose app has been there before: the topology stands and nobody consumes."""
    h = Harness(app, patience="50ms")
    await h.broker.open()
    await h.broker.declare(app.topology)
    return h


async def test_what_kills_every_worker_is_a_dead_letter_and_what_was_beside_it_is_handled():
    app = app_of(crash_limit=4)
    h = await prepared(app)
    for body in (b"poison", b"neighbour"):
        await h.broker.publish([Message(body=body, exchange="events", routing_key="k", id=body.decode())])
    await killed(h, "q", times=2, beside=["q"])
    async with h:  # nobody has seen it alone, so it is handled once more
        assert sorted(message.body for message in h.handled("q")) == [b"neighbour", b"poison"]
    h = await prepared(app)
    await h.broker.publish([suspect(b"poison")])
    await killed(h, SUSPECTS, times=2)
    async with h:
        [dead] = h.dead("q")
        assert (dead.body, dead.headers["carom-reason"], dead.headers["carom-crashes"]) == (b"poison", "crash-loop", 4)


async def test_a_suspect_is_seen_as_it_was_and_an_ordinary_failure_clears_it():
    found = []

    async def handle(payload: bytes, message: Message):
        found.append((message.exchange, message.routing_key, message.attempt))
        raise ValueError("an ordinary failure")

    async with Harness(app_of(handle, retry=("1s",))) as h:
        await h.put(suspect(b"1", **{"carom-attempt": 1}))
        assert found == [("events", "k", 1)]
        [waiting] = h.waiting()
        assert "carom-crashes" not in waiting.headers
        await h.advance("1s")
        assert found == [("events", "k", 1), ("events", "k", 2)]


async def test_a_batch_listener_gets_a_suspect_by_itself():
    calls = []

    async def handle(payloads: list[bytes]):
        calls.append(payloads)

    async with Harness(app_of(handle, batch=3)) as h:
        await h.put(suspect(b"1"))
        await h.put(suspect(b"2"))
        await h.publish_many([("k", b"3"), ("k", b"4")])
        await h.advance("1s")
        assert calls == [[b"1"], [b"2"], [b"3", b"4"]]


async def test_a_suspect_of_another_app_of_the_same_name_is_sent_back_to_its_queue():
    app, other = app_of(), App("embedded://", observers=())
    other.listen("other", queue="elsewhere")(nothing)
    h = await prepared(app)
    await h.broker.declare(other.topology)
    await h.broker.publish([suspect(b"at the start", "elsewhere")])
    async with h:
        await h.put(suspect(b"while running", "elsewhere"))
        assert [(message.body, message.headers["carom-crashes"]) for message in h.ready("elsewhere")] == [
            (b"at the start", 2),
            (b"while running", 2),
        ]
        assert h.ready(SUSPECTS) == ()
        assert ends(h.events) == []


async def test_a_suspect_whose_queue_is_gone_is_kept_among_the_lost():
    async with Harness(app_of()) as h:
        await h.put(suspect(b"1", "a queue that was deleted"))
        assert [message.body for message in h.ready("carom.lost")] == [b"1"]


@pytest.mark.parametrize(("layout", "kept"), [("shared", "carom.lost"), ("per_queue", f"{SUSPECTS}.dlq")])
async def test_a_suspect_that_says_of_no_queue_and_one_too_heavy_to_travel_are_kept(layout, kept):
    app = App("embedded://", observers=(), layout=layout)
    app.listen("k", queue="q")(nothing)
    async with Harness(app) as h:
        for message in (Message(body=b"1"), Message(body=b"2", headers={"carom-queue": "x", "x-y": "a" * 100_000})):
            await h.put(Message(body=message.body, routing_key=SUSPECTS, headers=message.headers))
        assert [message.body for message in h.ready(kept)] == [b"1", b"2"]


class Deaf(MemoryBroker):
    """A broker that does not take what goes back to a queue, until it does."""

    answer: object = None

    async def publish(self, messages):
        if self.answer is not None and messages[0].exchange == "carom.return":
            if isinstance(self.answer, Exception):
                raise self.answer
            return [self.answer]
        return await super().publish(messages)


async def deaf(answer):
    other = App("embedded://", observers=())
    other.listen("other", queue="elsewhere")(nothing)
    h = await prepared(app_of())
    await h.broker.declare(other.topology)
    h.broker = Deaf(h.clock, engine=h.broker.engine)
    h.broker.answer = answer
    return h


@pytest.mark.parametrize("answer", [Unknown("no answer"), BrokerUnavailable("nobody answers")])
async def test_a_suspect_that_cannot_be_sent_back_now_is_sent_back_later(answer):
    h = await deaf(answer)
    async with h:
        await h.put(suspect(b"1", "elsewhere"))
        await h.advance("10s")
        assert h.ready("elsewhere") == ()
        h.broker.answer = None
        await h.advance("1s")
        assert [message.body for message in h.ready("elsewhere")] == [b"1"]


async def test_a_suspect_that_is_on_its_way_back_at_the_stop_is_kept():
    h = await deaf(Unknown("no answer"))
    async with h:
        await h.put(suspect(b"1", "elsewhere"))
    assert [message.body for message in h.ready(SUSPECTS)] == [b"1"]


async def test_a_suspect_that_its_queue_refuses_becomes_its_dead_letter():
    h = await deaf(Nacked("full"))
    async with h:
        await h.put(suspect(b"1", "elsewhere"))
        assert [message.body for message in h.ready("elsewhere.dlq")] == [b"1"]


async def test_a_suspect_that_runs_at_the_stop_goes_back_with_nothing_blamed_on_it():
    never = asyncio.Event()

    async def handle(payload: bytes):
        await never.wait()

    h = Harness(app_of(handle), patience="10ms")
    async with h:
        await h.put(suspect(b"1"))
        assert len(told(h.events, events.Received)) == 1
    assert ends(h.events) == ["HandedBack"]
    [back] = h.ready(SUSPECTS)
    assert back.headers["carom-crashes"] == 2
    assert "x-delivery-count" not in back.headers
