"""Claims about apps in each layout, on the harness: handlers see what was published, whatever the wire."""

from __future__ import annotations

import pytest

from carom import App, Message, Reject
from carom.brokers.embedded.broker import MemoryBroker
from carom.core.lint import ServerFacts
from carom.core.nippy import thaw
from carom.core.retry import RetryPolicy
from carom.errors import TopologyMismatch
from carom.layouts import Job, async_worker, freeflow, goqueue
from carom.runtime.choosing import foreseen
from carom.testing import Harness
from carom.testing.clock import VirtualClock

STEADY = RetryPolicy.fixed("30s", attempts=3)
LAYOUTS = {
    "async_worker": async_worker(),
    "auto": "auto",
    "binary": "binary",
    "freeflow": freeflow(return_to="queue", nest=True),
    "freeflow of the domain": "freeflow",
    "goqueue": goqueue(quorum_queues=True),
    "goqueue, classic": "goqueue",
    "kbairak": "kbairak",
    "per_queue": "per_queue",
    "shared": "shared",
    "wait_queue": "wait_queue",
}


def shop(layout):
    """Return an app with one listener, what it saw, and its queue."""
    name = getattr(layout, "name", layout)
    queue = "carom_instant_queue" if name == "async_worker" else "charge"
    retry = RetryPolicy.exponential("10s", attempts=3) if name == "async_worker" else STEADY
    app = App(layout=layout, observers=())
    seen = []

    @app.listen("order.created", queue=queue, retry=retry)
    async def charge(order: dict[str, int], message: Message):
        seen.append((order, message.routing_key, message.id, message.attempt))
        if order["id"] < 0:
            raise Reject("no such order")
        if message.attempt < order["id"]:
            raise TimeoutError

    return app, seen, queue


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
async def test_a_handler_sees_what_was_published_at_every_attempt(layout):
    app, seen, queue = shop(layout)

    async with Harness(app) as h:
        sent = await h.publish("order.created", {"id": 3})
        await h.advance("2h")
        assert seen == [({"id": 3}, "order.created", sent.id, attempt) for attempt in (1, 2, 3)]
        assert not h.dead(queue)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
async def test_what_cannot_succeed_is_a_dead_letter_with_its_reason(layout):
    app, seen, queue = shop(layout)

    async with Harness(app) as h:
        await h.publish("order.created", {"id": -1})
        await h.publish("order.created", {"id": 9})
        await h.advance("2h")
        assert {letter.headers["carom-reason"] for letter in h.dead(queue)} == {"rejected", "exhausted"}
        assert len(seen) == 4


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
async def test_what_cannot_be_read_is_a_dead_letter_and_disturbs_nobody(layout):
    app, seen, queue = shop(layout)

    async with Harness(app) as h:
        to = app.layout.queue_address(queue)
        await h.put(Message(body=b"\0", exchange=to.exchange, routing_key=to.routing_key, id="junk"))
        await h.publish("order.created", {"id": 1})
        (letter,) = h.dead(queue)
        assert (letter.body, letter.headers["carom-reason"]) == (b"\0", "malformed")
        assert len(seen) == 1


LATER = ["binary", "goqueue", "kbairak", "wait_queue", freeflow(return_to="queue", nest=True), "freeflow"]


@pytest.mark.parametrize("layout", LATER, ids=str)
async def test_a_delayed_message_comes_out_of_its_wait_as_it_was(layout):
    app = App(layout=layout, delays=("30s",), retry=STEADY, observers=())
    seen = []

    @app.listen("order.created", queue="charge")
    async def charge(order: dict[str, int], message: Message):
        seen.append((order, message.routing_key, message.id, message.trail))

    async with Harness(app) as h:
        sent = await h.publish("order.created", {"id": 1}, delay="30s")
        await h.advance("20s")
        assert not seen
        await h.advance("20s")
        assert seen == [({"id": 1}, "order.created", sent.id, ())]


async def test_a_job_is_published_as_clojure_reads_it():
    app = App(namespace="shop", layout=async_worker({"mail": Job(5, 1_000)}), observers=())

    async with Harness(app):
        sent = app._publisher.message("mail", {"to": "a@b.c"})
    assert thaw(sent.body)["retry-max"] == 5


class Newer(MemoryBroker):
    """A broker that says it is a RabbitMQ 4.3, whose queues were declared before it was."""

    async def inspect(self, queues, needs):
        return ServerFacts("4.3.1")

    async def declare(self, topology, mode="apply"):
        if any(name.startswith("x-delayed") for queue in topology.queues for name, _ in queue.arguments):
            raise TopologyMismatch(["queue 'charge': x-delayed-retry-type should be 'failed' and is not set"])
        await super().declare(topology, mode)


async def test_auto_stays_with_what_is_there_and_says_why():
    app, _, _ = shop("auto")
    assert app.layout_name == "auto"

    clock = VirtualClock()
    await app.start(broker=Newer(clock), clock=clock)
    await app.stop()
    assert app.choice.name == "shared"
    assert "there already" in app.choice.why


async def test_what_auto_would_choose_is_foreseen_and_nothing_is_declared():
    app, _, _ = shop("auto")
    broker = Newer(VirtualClock())
    await broker.open()
    plans = tuple(one.plan for one in app.listeners)
    assert (await foreseen(broker, plans, app.in_layout)).name == "native"
    assert set((await broker.depths(["charge"])).values()) == {None}
    await broker.declare(app.in_layout("shared").topology)
    assert "there already" in (await foreseen(broker, plans, app.in_layout)).why
    await broker.close()


def test_switches_are_kept_where_a_layout_is_asked_for_by_the_name_it_has():
    app = App(layout=freeflow(return_to="queue"), observers=())
    assert app.in_layout("freeflow") == app.layout


async def test_a_mismatch_is_told_where_the_layout_was_said():
    app, _, _ = shop("native")

    clock = VirtualClock()
    with pytest.raises(TopologyMismatch):
        await app.start(broker=Newer(clock), clock=clock)
