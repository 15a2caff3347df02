"""Stopping: take no more, finish what runs within the grace, hand back the rest, and end, whatever hangs."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from runtime_stage import DEADLINE_S, ends, told, until

from carom import App
from carom.brokers.embedded.broker import MemoryBroker
from carom.brokers.embedded.engine import Engine
from carom.core.message import Message
from carom.errors import BrokerUnavailable
from carom.runtime import events
from carom.runtime.clock import RealClock
from carom.testing import VirtualClock

QUEUE = "q"


def worker(function, *, grace="10s", retry=("1s",), **options):
    found = []
    app = App("embedded://", observers=[found.append], grace=grace, retry=retry)
    app.listen("k", queue=QUEUE, **options)(function)
    return app, found


def contents(engine):
    return [int(message.body) for message in engine.contents(QUEUE)]


async def test_what_runs_is_finished_and_what_waits_is_handed_back_without_an_attempt():
    let_go, running = asyncio.Event(), []

    async def handle(order: int):
        running.append(order)
        await let_go.wait()

    app, found = worker(handle, concurrency=2, prefetch=5)
    broker = MemoryBroker(VirtualClock())
    await app.start(broker=broker)
    await app.publish_many([("k", n) for n in range(8)])
    await until(lambda: len(running) == 2)
    stopping = asyncio.ensure_future(app.stop())
    await until(lambda: ends(found).count("HandedBack") == 3)
    await broker.publish([Message(body=b"9", exchange="events", routing_key="k")])
    let_go.set()
    await stopping
    assert running == [0, 1], "nothing new was begun"
    assert ends(found) == ["HandedBack"] * 3 + ["Handled"] * 2
    assert sorted(contents(broker.engine)) == [2, 3, 4, 5, 6, 7, 9]
    assert all("carom-attempt" not in message.headers for message in broker.engine.contents(QUEUE))
    (stopping_event,), (stopped,) = told(found, events.Stopping), told(found, events.Stopped)
    assert (stopping_event.running, stopped.abandoned) == (2, 0)


async def test_what_does_not_finish_within_the_grace_is_interrupted_and_handed_back_without_an_attempt():
    async def handle(order: int):
        await asyncio.Event().wait()

    app, found = worker(handle, grace="20ms")
    broker = MemoryBroker(VirtualClock())
    await app.start(broker=broker)
    await app.publish("k", 1)
    await until(lambda: told(found, events.Received))
    await app.stop()
    assert ends(found) == ["HandedBack"]
    (message,) = broker.engine.contents(QUEUE)
    assert "carom-attempt" not in message.headers
    assert told(found, events.Stopped)[0].abandoned == 0


async def test_a_grace_may_be_given_to_stop():
    async def handle(order: int):
        await asyncio.Event().wait()

    app, found = worker(handle, grace="1h")
    await app.start()
    await app.publish("k", 1)
    await until(lambda: told(found, events.Received))
    await app.stop(grace="10ms")
    assert ends(found) == ["HandedBack"]


async def test_asking_twice_hurries():
    begun = asyncio.Event()

    async def handle(order: int):
        begun.set()
        await asyncio.Event().wait()

    app, found = worker(handle, grace="1h")
    running = asyncio.ensure_future(app.run())
    await until(lambda: told(found, events.Started))
    await app.publish("k", 1)
    await begun.wait()
    app.ask_to_stop()
    await until(lambda: told(found, events.Stopping))
    assert not running.done()
    app.ask_to_stop()
    await asyncio.wait_for(running, DEADLINE_S)
    assert ends(found) == ["HandedBack"]


async def test_a_handler_that_does_not_let_go_is_abandoned_and_its_message_returns():
    let_go = asyncio.Event()

    async def handle(order: int):
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    app, found = worker(handle, grace="10ms")
    broker = MemoryBroker(VirtualClock())
    await app.start(broker=broker)
    await app.publish("k", 1)
    await until(lambda: told(found, events.Received))
    await app.stop()
    assert told(found, events.Stopped)[0].abandoned == 1
    assert contents(broker.engine) == [1]
    let_go.set()
    await until(lambda: ends(found))
    assert ends(found) == ["Dropped"], "when it ends after all, its message is another worker's"
    assert contents(broker.engine) == [1]


async def test_a_thread_that_does_not_let_go_is_abandoned_and_its_message_handed_back():
    let_go = threading.Event()

    def handle(order: int):
        let_go.wait(DEADLINE_S)

    app, found = worker(handle, grace="10ms")
    broker = MemoryBroker(VirtualClock())
    await app.start(broker=broker)
    await app.publish("k", 1)
    await until(lambda: told(found, events.Received))
    await app.stop()
    assert told(found, events.Stopped)[0].abandoned == 1
    assert ends(found) == ["HandedBack"]
    assert contents(broker.engine) == [1]
    let_go.set()


async def test_threads_that_finish_within_the_grace_are_finished():
    let_go, begun = threading.Event(), threading.Event()

    def handle(order: int):
        begun.set()
        let_go.wait(DEADLINE_S)

    app, found = worker(handle)
    await app.start()
    await app.publish("k", 1)
    await until(begun.is_set)
    stopping = asyncio.ensure_future(app.stop())
    await until(lambda: told(found, events.Stopping))
    let_go.set()
    await stopping
    assert ends(found) == ["Handled"]
    assert told(found, events.Stopped)[0].abandoned == 0


async def test_a_copy_that_the_broker_does_not_take_is_tried_once_more_and_then_handed_back():
    async def handle(order: int):
        raise ValueError

    app, found = worker(handle)
    broker = MemoryBroker(RealClock())
    await app.start(broker=broker)
    app._mode = "ignore"
    await broker.delete_queue("carom.delay.1s")
    await app.publish("k", 1)
    await until(lambda: told(found, events.NotSettled))
    await app.stop()
    assert ends(found) == ["HandedBack"]
    assert contents(broker.engine) == [1]


async def test_what_fails_while_the_app_stops_is_still_retried():
    let_go = asyncio.Event()

    async def handle(order: int):
        await let_go.wait()
        raise ValueError

    app, found = worker(handle)
    broker = MemoryBroker(VirtualClock())
    await app.start(broker=broker)
    await app.publish("k", 1)
    await until(lambda: told(found, events.Received))
    stopping = asyncio.ensure_future(app.stop())
    await until(lambda: told(found, events.Stopping))
    let_go.set()
    await stopping
    assert ends(found) == ["Retried"]
    assert len(broker.engine.contents("carom.delay.1s")) == 1


async def test_a_batch_between_two_attempts_is_not_begun_again_when_the_grace_is_over():
    calls = []

    async def handle(orders: list[int]):
        calls.append(orders)
        if len(orders) > 1:
            raise ValueError("now one by one")
        await asyncio.Event().wait()

    app, found = worker(handle, grace="10ms", batch=3)
    await app.start()
    await app.publish_many([("k", n) for n in range(3)])
    await until(lambda: len(calls) == 2)
    await app.stop()
    assert calls == [[0, 1, 2], [0]]
    assert ends(found) == ["HandedBack"] * 3


async def test_a_start_that_takes_long_can_be_stopped():
    class Waiting(MemoryBroker):
        async def open(self):
            await super().open()
            await asyncio.Event().wait()

    app, found = worker(lambda order: None)
    broker = Waiting(VirtualClock())
    app.configure(broker=broker)
    running = asyncio.ensure_future(app.run())
    await until(lambda: broker._connection is not None)
    app.ask_to_stop()
    await asyncio.wait_for(running, DEADLINE_S)
    assert told(found, events.Started) == []
    assert broker._connection is None


async def test_a_suspect_that_hangs_at_the_start_does_not_keep_the_app_from_stopping():
    async def handle(order: int):
        await asyncio.Event().wait()

    app, found = worker(handle, grace="10ms")
    engine, clock = Engine(), VirtualClock()
    broker = MemoryBroker(clock, engine=engine)
    engine.declare(app.topology, clock.now_ms())
    engine.publish(Message(body=b"1", exchange="events", routing_key="k"), clock.now_ms())
    for _ in range(2):
        engine.get("dying", QUEUE, clock.now_ms())
        engine.end("dying", clock.now_ms())
    app.configure(broker=broker)
    running = asyncio.ensure_future(app.run())
    await until(lambda: told(found, events.Received))
    app.ask_to_stop()
    await asyncio.wait_for(running, DEADLINE_S)
    assert ends(found) == ["Postponed", "HandedBack"]


async def test_run_that_cannot_start_says_why_and_lets_go_of_the_signals():
    class Nowhere(MemoryBroker):
        async def open(self):
            raise BrokerUnavailable("nobody there")

    app, _ = worker(lambda order: None)
    app.configure(broker=Nowhere(VirtualClock()))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(BrokerUnavailable, match="nobody there"):
        await app.run()
    assert signal.getsignal(signal.SIGTERM) == before


async def test_run_that_is_cancelled_stops_the_app():
    app, found = worker(lambda order: None)
    running = asyncio.ensure_future(app.run())
    await until(lambda: told(found, events.Started))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert told(found, events.Stopped)


def test_run_in_another_thread_does_without_signals():
    app, found = worker(lambda order: None)

    async def run():
        running = asyncio.ensure_future(app.run())
        await until(lambda: told(found, events.Started))
        app.ask_to_stop()
        await running

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    thread.join(DEADLINE_S)
    assert told(found, events.Stopped)


# -- real signals ------------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, sys, threading, time
from carom import App

def note(event):
    print(type(event).__name__, flush=True)

app = App("embedded://", grace=sys.argv[2], observers=[note])

async def waits(order):
    await asyncio.sleep(0.2)

async def hangs(order):
    await asyncio.Event().wait()

def blocks(order):
    threading.Event().wait()

app.listen("k", queue="q")({"waits": waits, "hangs": hangs, "blocks": blocks}[sys.argv[1]])

async def main():
    running = asyncio.ensure_future(app.run())
    while not app.consumers:
        await asyncio.sleep(0)
    await app.publish("k", 1)
    await running

asyncio.run(main())
print("the end", flush=True)
"""


class Program:
    """A worker in a process of its own."""

    def __init__(self, handler, grace):
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM, handler, grace],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONDEVMODE": ""},
        )

    def until(self, line):
        """Read until the program says this, and return what it said before."""
        found = []
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline and (said := self.process.stdout.readline()):
            found.append(said.strip())
            if found[-1] == line:
                return found
        raise AssertionError(f"no {line!r} in {found}: {self.process.stderr.read()}")

    def end(self):
        out, errors = self.process.communicate(timeout=DEADLINE_S)
        return out.split("\n"), errors, self.process.returncode


@pytest.fixture
def program():
    started = []

    def start(handler, grace="10s"):
        started.append(Program(handler, grace))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_handler_finish_and_the_process_end_clean(program, number):
    worker = program("waits")
    worker.until("Received")
    worker.process.send_signal(number)
    out, errors, code = worker.end()
    assert [line for line in out if line in {"Handled", "HandedBack", "Stopped", "the end"}] == [
        "Handled",
        "Stopped",
        "the end",
    ]
    assert (errors, code) == ("", 0)


@pytest.mark.parametrize("handler", ["hangs", "blocks"])
def test_a_second_signal_does_not_wait_for_what_hangs(program, handler):
    worker = program(handler, "1h")
    worker.until("Received")
    worker.process.send_signal(signal.SIGTERM)
    worker.until("Stopping")
    worker.process.send_signal(signal.SIGTERM)
    out, errors, code = worker.end()
    assert "HandedBack" in out
    assert "the end" in out
    assert (errors, code) == ("", 0)


@pytest.mark.parametrize("handler", ["hangs", "blocks"])
def test_when_the_grace_is_over_what_hangs_does_not_keep_the_process(program, handler):
    worker = program(handler, "50ms")
    worker.until("Received")
    worker.process.send_signal(signal.SIGINT)
    out, errors, code = worker.end()
    assert "HandedBack" in out
    assert "the end" in out
    assert (errors, code) == ("", 0)
