"""A suspect runs alone, and neither being alone nor waiting to be lasts for ever."""

import asyncio

from runtime_stage import ends, told

from carom import App, Message
from carom.runtime import events
from carom.runtime.gate import ALONE_MS, Gate
from carom.testing import Harness, VirtualClock


class Yard:
    """Somebody who starts what the gate lets through, and is woken by it."""

    def __init__(self):
        self.clock = VirtualClock()
        self.gate = Gate(self.clock)
        self.started = []
        self.opened = 0
        self.gate.wake(self.open)

    def open(self):
        self.opened += 1

    def suspect(self, name, *, starts=True):
        def start():
            if starts:
                self.started.append(name)
            return starts

        self.gate.ask(start)


def test_a_suspect_starts_at_once_when_nothing_runs_and_closes_the_gate():
    yard = Yard()
    yard.suspect("a")
    assert yard.started == ["a"]
    assert not yard.gate.is_open
    yard.gate.leave()
    assert yard.gate.is_open
    assert yard.opened == 1


def test_a_suspect_waits_until_the_last_has_left_and_nobody_joins_meanwhile():
    yard = Yard()
    yard.gate.enter()
    yard.gate.enter()
    yard.suspect("a")
    yard.suspect("b")
    assert not yard.gate.is_open
    yard.gate.leave()
    assert yard.started == []
    yard.gate.leave()
    assert yard.started == ["a"]
    yard.gate.leave()
    assert yard.started == ["a", "b"], "one suspect at a time"
    yard.gate.leave()
    assert yard.gate.is_open


def test_a_suspect_that_is_gone_when_its_turn_comes_makes_room_for_the_next():
    yard = Yard()
    yard.gate.enter()
    yard.suspect("gone", starts=False)
    yard.suspect("b")
    yard.gate.leave()
    assert yard.started == ["b"]
    yard.gate.leave()
    yard.suspect("gone too", starts=False)
    assert yard.gate.is_open


def test_being_alone_has_an_end():
    yard = Yard()
    yard.suspect("a")
    yard.suspect("b")
    yard.clock.advance(ALONE_MS - 1)
    assert yard.started == ["a"]
    yard.clock.advance(1)
    assert yard.started == ["a", "b"]
    assert yard.gate.is_open


def test_waiting_to_be_alone_has_an_end():
    yard = Yard()
    yard.gate.enter()
    yard.suspect("a")
    yard.clock.advance(ALONE_MS - 1)
    assert not yard.gate.is_open
    yard.suspect("gone", starts=False)
    yard.clock.advance(1)
    assert yard.started == ["a"]
    assert yard.gate.is_open
    yard.suspect("c")
    assert not yard.gate.is_open, "the next one has its own chance to be alone"
    yard.gate.leave()
    yard.gate.leave()
    assert yard.started == ["a", "c"]


def test_a_gate_that_forgets_leaves_no_timer():
    yard = Yard()
    yard.gate.enter()
    yard.suspect("a")
    yard.gate.forget()
    yard.clock.advance(10 * ALONE_MS)
    yard.gate.leave()
    assert yard.started == []


async def lost_twice(h, *bodies, queue="q"):
    """Put messages in a queue that were in the hands of a worker that died, twice."""
    for body in bodies:
        await h.broker.publish([Message(body=body, exchange="carom.return", routing_key=queue, id=body.decode())])
    for _ in range(2):
        h.broker.engine.get("a worker that dies", queue, h.clock.now_ms())
        for _ in bodies[1:]:
            h.broker.engine.get("a worker that dies", queue, h.clock.now_ms())
        h.broker.engine.end("a worker that dies", h.clock.now_ms())


async def prepared(app):
    """Return a harness whose app has been there before: the topology stands and nobody consumes."""
    h = Harness(app, patience="50ms")
    await h.broker.open()
    await h.broker.declare(app.topology)
    return h


async def test_suspects_are_handled_one_by_one_before_anything_else_is_taken():
    app = App("embedded://", observers=())
    running, most, order = set(), [], []

    @app.listen("k", queue="q")
    async def handle(payload: bytes, message: Message):
        running.add(message.id)
        most.append(len(running))
        order.append(payload)
        for _ in range(5):
            await asyncio.sleep(0)
        running.discard(message.id)

    h = await prepared(app)
    await lost_twice(h, b"1", b"2", b"3")
    async with h:
        assert most == [1, 1, 1]
        assert [e.crashes for e in told(h.events, events.Handled)] == [2, 2, 2]
        await h.publish_many([("k", b"4"), ("k", b"5")])
        assert order == [b"1", b"2", b"3", b"4", b"5"]
        assert most[-1] == 2, "others run side by side again"


async def test_a_suspect_that_hangs_does_not_keep_the_app_from_starting():
    app = App("embedded://", observers=())
    let_go = asyncio.Event()

    @app.listen("a", queue="q")
    async def hangs(payload: bytes):
        await let_go.wait()

    @app.listen("b", queue="other")
    async def goes_on(payload: bytes): ...

    h = await prepared(app)
    await lost_twice(h, b"1", b"2")
    starting = asyncio.ensure_future(h.__aenter__())
    while not starting.done():
        await asyncio.sleep(0)
        h.clock.step()
    await h.publish("b", b"9")
    assert len(h.handled("other")) == 1
    let_go.set()
    await h.advance("1m")
    assert len(h.handled("q")) == 2
    await h.__aexit__(None, None, None)


async def test_a_suspect_waits_for_what_runs_and_what_comes_waits_for_the_suspect():
    app = App("embedded://", observers=())
    let_go, order = {b"1": asyncio.Event(), b"2": asyncio.Event()}, []

    @app.listen("k", queue="q", concurrency=4)
    async def handle(payload: bytes, message: Message):
        order.append((payload, app.consumers[0].running))
        if payload in let_go:
            await let_go[payload].wait()

    async with Harness(app, patience="10ms") as h:
        await h.publish("k", b"1")
        await a_suspect(h, b"2")
        await h.publish("k", b"3")
        assert order == [(b"1", 1)]
        let_go[b"1"].set()
        await h.settle()
        assert order == [(b"1", 1), (b"2", 1)], "alone"
        let_go[b"2"].set()
        await h.settle()
        assert order[2:] == [(b"3", 1)]
        assert app.busy == 0


async def a_suspect(h, *bodies):
    """Let messages come that were lost twice, and were set apart for that."""
    headers = {"carom-queue": "q", "carom-crashes": 2}
    for body in bodies:
        message = Message(body=body, exchange="carom.suspects.app", routing_key="q", id=body.decode(), headers=headers)
        await h.broker.publish([message])
    await h.settle()


async def test_a_suspect_joins_what_hangs_and_concurrency_holds():
    app = App("embedded://", observers=())
    let_go, running, most = asyncio.Event(), [0], [0]

    @app.listen("k", queue="q", concurrency=2)
    async def handle(payload: bytes):
        running[0] += 1
        most[0] = max(most[0], running[0])
        await let_go.wait()
        running[0] -= 1

    async with Harness(app, patience="10ms") as h:
        await h.publish("k", b"1")
        for body in (b"2", b"3", b"4"):
            await a_suspect(h, body)
        await h.advance("9s")
        assert running == [1]
        await h.advance("1m")
        assert running == [2]
        assert app.busy == 2
        assert len(h.ready("carom.suspects.app")) == 2, "of the suspects one at a time"
        let_go.set()
        await h.advance("1m")
        assert most == [2], "never more than its concurrency"
        assert len(h.handled("q")) == 4
        assert app.busy == 0


async def test_suspects_that_wait_are_handed_back_when_the_app_stops_and_dropped_when_the_connection_goes():
    app = App("embedded://", observers=())
    let_go = asyncio.Event()

    @app.listen("k", queue="q", concurrency=2)
    async def handle(payload: bytes):
        await let_go.wait()

    h = Harness(app, patience="10ms")
    await h.__aenter__()
    await h.publish("k", b"1")
    await a_suspect(h, b"2")
    h.broker.disconnect()
    await h.settle()
    let_go.set()
    await h.settle()
    assert ends(h.events)[:2] == ["Dropped", "Dropped"], "what ran and what waited belonged to the lost connection"
    assert len(h.handled("q")) == 2
    let_go.clear()
    await h.publish("k", b"3")
    await a_suspect(h, b"4")
    await h.__aexit__(None, None, None)
    assert ends(h.events)[-2:] == ["HandedBack", "HandedBack"]
    assert [message.body for message in h.ready("q")] == [b"3"]
    [suspect] = h.ready("carom.suspects.app")
    assert (suspect.body, suspect.headers["carom-crashes"]) == (b"4", 2)
