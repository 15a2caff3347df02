"""The memory broker carries what the engine decides to the right callback, at the right time, from the event loop."""

import asyncio

import pytest

from carom.brokers.embedded import MemoryBroker, connect
from carom.brokers.embedded.engine import Engine
from carom.core.effects import CONFIRMED
from carom.core.message import Message
from carom.core.topology import Topology, quorum
from carom.errors import BrokerError, BrokerUnavailable, ConfigurationError, TopologyMismatch
from carom.ports import ConnectionDown, ConnectionUp, ConsumerEnded
from carom.testing.clock import VirtualClock

QUEUES = Topology(
    queues=(
        quorum("q", delivery_limit=5),
        quorum("wait", message_ttl=1000, dead_letter_exchange="", dead_letter_routing_key="q"),
    )
)


class Stage:
    """A broker, its clock, and all that came out of it."""

    def __init__(self, engine=None):
        self.clock = VirtualClock()
        self.events, self.came, self.ended = [], [], []
        self.broker = MemoryBroker(self.clock, self.events.append, engine)

    async def __aenter__(self):
        await self.broker.open()
        await self.broker.declare(QUEUES)
        return self

    async def __aexit__(self, *_):
        await self.broker.close()

    async def send(self, *bodies, to="q"):
        return await self.broker.publish([Message(body=body.encode(), routing_key=to) for body in bodies])

    async def consume(self, prefetch=10, receive=None):
        return await self.broker.consume("q", receive or self.came.append, prefetch=prefetch, ended=self.ended.append)

    def bodies(self):
        return [delivery.message.body.decode() for delivery in self.came]


async def settled():
    for _ in range(6):
        await asyncio.sleep(0)


async def test_deliveries_come_from_the_loop_and_never_from_inside_a_call():
    async with Stage() as stage:
        depth = 0

        def receive(delivery):
            nonlocal depth
            assert depth == 0
            depth += 1
            delivery.ack()
            stage.came.append(delivery)
            depth -= 1

        await stage.consume(1, receive)
        await stage.send(*"abc")
        await settled()
        assert stage.bodies() == ["a", "b", "c"]
        assert stage.broker.idle
        assert not stage.broker.pending()


async def test_the_broker_is_not_idle_while_a_delivery_waits_for_its_turn():
    async with Stage() as stage:
        await stage.send("a")
        assert stage.broker.idle
        await stage.consume()
        assert stage.broker.pending()
        await settled()
        assert stage.broker.idle
        assert stage.bodies() == ["a"]


async def test_a_callback_that_raises_keeps_nothing_from_the_others():
    async with Stage() as stage:
        faults = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context["exception"]))

        def receive(delivery):
            stage.came.append(delivery)
            if delivery.message.body == b"a":
                raise ValueError("mine")

        await stage.consume(10, receive)
        await stage.send("a", "b")
        await settled()
        assert stage.bodies() == ["a", "b"]
        assert [str(fault) for fault in faults] == ["mine"]


async def test_time_brings_what_waits():
    async with Stage() as stage:
        await stage.consume()
        await stage.send("a", to="wait")
        await stage.clock.elapse(999)
        assert stage.bodies() == []
        await stage.clock.elapse(1)
        assert stage.bodies() == ["a"]
        assert stage.clock.next_due_ms() is None


async def test_a_delivery_settles_once():
    async with Stage() as stage:
        await stage.send("a")
        delivery = await stage.broker.get("q")
        delivery.hand_back()
        delivery.ack()
        delivery.refuse()
        delivery.hand_back()
        assert [message.body for message in stage.broker.engine.contents("q")] == [b"a"]
        again = await stage.broker.get("q")
        again.refuse()
        again.hand_back()
        assert await stage.broker.get("q") is None


async def test_a_lost_connection_makes_deliveries_stale_and_brings_them_again_counted():
    async with Stage() as stage:
        await stage.consume()
        await stage.send("a")
        await settled()
        stage.broker.disconnect()
        await settled()
        old, new = stage.came
        assert (old.stale, new.stale) == (True, False)
        assert new.redelivered
        assert new.message.headers["x-delivery-count"] == 1
        old.ack()
        assert (await stage.broker.depths(["q"]))["q"].unacked == 1
        assert [type(event) for event in stage.events] == [ConnectionUp, ConnectionDown, ConnectionUp]


async def test_what_was_on_its_way_when_the_connection_was_lost_comes_once_on_the_new_one():
    async with Stage() as stage:
        await stage.send("a")
        await stage.consume()
        stage.broker.disconnect()
        await settled()
        assert stage.bodies() == ["a"]
        assert stage.came[0].redelivered


async def test_a_deleted_queue_ends_its_consumer_and_says_so():
    async with Stage() as stage:
        subscription = await stage.consume()
        assert await stage.broker.delete_queue("q") == 0
        await settled()
        await subscription.cancel()
        assert stage.ended == ["queue 'q' was deleted"]
        assert stage.events[-1] == ConsumerEnded("q", "queue 'q' was deleted")


async def test_a_queue_deleted_just_before_the_connection_is_lost_ends_its_consumer_too():
    async with Stage() as stage:
        await stage.consume()
        await stage.broker.delete_queue("q")
        stage.broker.disconnect()
        await settled()
        assert len(stage.ended) == 1


async def test_after_cancel_nothing_comes_and_what_came_before_can_be_settled():
    async with Stage() as stage:
        subscription = await stage.consume()
        await stage.send("a")
        await subscription.cancel()
        await subscription.cancel()
        await stage.send("b")
        await settled()
        assert stage.bodies() == ["a"]
        stage.came[0].ack()
        assert (await stage.broker.depths(["q"]))["q"].ready == 1


async def test_what_was_on_its_way_when_it_was_cancelled_is_handed_over_first():
    async with Stage() as stage:
        await stage.send("a")
        subscription = await stage.consume()
        await subscription.cancel()
        assert stage.bodies() == ["a"]


async def test_closing_gives_back_what_is_unsettled_and_stops_the_clock():
    stage = Stage()
    async with stage:
        await stage.consume()
        await stage.send("a")
        await stage.send("b", to="wait")
        await settled()
    assert stage.came[0].stale
    assert stage.clock.next_due_ms() is None
    await stage.broker.close()
    async with stage:
        again = await stage.broker.get("q")
        assert again.redelivered
        await stage.broker.open()
        await stage.clock.elapse(1000)
        assert (await stage.broker.get("q")).message.body == b"b"


async def test_two_brokers_of_one_engine_are_two_connections():
    engine = Engine()
    async with Stage(engine) as one:
        two = MemoryBroker(one.clock, engine=engine)
        await two.open()
        await one.consume(1)
        await two.consume("q", one.came.append, prefetch=1, ended=one.ended.append)
        assert await two.publish([Message(routing_key="q", body=b"a"), Message(routing_key="q", body=b"b")])
        await settled()
        assert one.bodies() == ["a", "b"]
        await two.close()
        await settled()
        assert [delivery.stale for delivery in one.came] == [False, True]
        one.came[0].ack()
        await settled()
        assert one.bodies() == ["a", "b", "b"]


async def test_a_purge_empties_a_queue():
    async with Stage() as stage:
        assert await stage.send("a", "b") == [CONFIRMED, CONFIRMED]
        assert await stage.broker.purge("q") == 2
        assert await stage.broker.get("q") is None


async def test_declaring_has_three_modes():
    async with Stage() as stage:
        more = Topology(queues=(quorum("more"),))
        await stage.broker.declare(more, "ignore")
        with pytest.raises(TopologyMismatch, match="'more' does not exist"):
            await stage.broker.declare(more, "verify")
        await stage.broker.declare(QUEUES, "verify")
        assert (await stage.broker.depths(["more"]))["more"] is None


async def test_a_broker_that_is_not_open_says_so():
    with pytest.raises(BrokerUnavailable, match="open"):
        await MemoryBroker(VirtualClock()).publish([])


async def test_consuming_from_nothing_is_an_error():
    async with Stage() as stage:
        with pytest.raises(BrokerError, match="'nothing'"):
            await stage.broker.consume("nothing", stage.came.append, prefetch=1, ended=stage.ended.append)


def test_an_engine_outlives_the_event_loop_it_was_used_in():
    engine = Engine()

    async def leave_in_a_hurry():
        stage = await Stage(engine).__aenter__()
        await stage.send("a")
        await stage.consume()
        engine.end("memory-1", stage.clock.now_ms())

    async def come_back():
        async with Stage(engine) as stage:
            await stage.consume()
            await settled()
            assert stage.bodies() == ["a"]

    asyncio.run(leave_in_a_hurry())
    asyncio.run(come_back())


def test_a_url_names_memory_or_a_file():
    clock = VirtualClock()
    assert isinstance(connect("embedded://", clock), MemoryBroker)
    assert isinstance(connect("embedded:///", clock), MemoryBroker)
    assert type(connect("embedded:///shop.db", clock)).__name__ == "FileBroker"


@pytest.mark.parametrize("url", ["embedded://shop.db", "amqp://localhost", "embedded:///shop.db?x=1", "embedded"])
def test_a_url_that_names_no_embedded_broker_is_refused_with_a_hint(url):
    with pytest.raises(ConfigurationError, match=r"embedded:///shop\.db"):
        connect(url, VirtualClock())
