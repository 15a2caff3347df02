"""Publishing on a real RabbitMQ: every message gets its own, true answer."""

import asyncio
import math

import pytest

from brokers.rabbitmq.rabbit_stage import admin, drained, fresh, kinds, opened, queue, ready, to, until
from carom.brokers.rabbitmq.broker import RabbitBroker
from carom.core.effects import Confirmed, Nacked, Returned, Unknown, lasts
from carom.core.message import Message
from carom.core.topology import Exchange, Topology
from carom.errors import BrokerUnavailable
from carom.runtime.clock import RealClock


def types(results):
    return [type(result) for result in results]


async def test_twenty_thousand_pipelined_messages_are_all_confirmed_in_order(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        jobs = queue(kind="classic")
        await broker.declare(Topology(queues=(jobs,)))
        results = await broker.publish([to(jobs, b"%d" % number) for number in range(20_000)])
        assert set(types(results)) == {Confirmed}
        bodies, done = [], asyncio.Event()

        def receive(delivery):
            bodies.append(int(delivery.message.body))
            delivery.ack()
            if len(bodies) == 20_000:
                done.set()

        await broker.consume(jobs.name, receive, prefetch=1000, ended=print)
        async with asyncio.timeout(30):
            await done.wait()
        assert bodies == list(range(20_000))


async def test_a_small_window_is_enough_for_many_messages_and_publishers(rabbitmq_url):
    async with opened(rabbitmq_url, window=3) as broker:
        jobs = queue(kind="classic")
        await broker.declare(Topology(queues=(jobs,)))
        batches = [[to(jobs if number % 3 else fresh("nobody"), id="same") for number in range(30)] for _ in range(10)]
        for results in await asyncio.gather(*(broker.publish(batch) for batch in batches)):
            assert types(results) == [Confirmed if number % 3 else Returned for number in range(30)]
        await until(lambda: _has(broker, jobs.name, 200), "200 messages")


async def test_returns_with_equal_ids_hit_exactly_their_messages(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        jobs, orders = queue(), Exchange(fresh("orders"), "direct")
        await broker.declare(Topology((orders,), (jobs,)))
        there = to(jobs, b"there", id="same")
        nowhere = to(fresh("nobody"), b"nowhere", id="same")
        unbound = Message(exchange=orders.name, routing_key=jobs.name, id="same")
        unread = Message(exchange=orders.name, routing_key="\udcff", id="same")
        expected = [Confirmed, Returned, Returned, Confirmed, Returned, Confirmed, Returned]
        batch = [there, nowhere, unbound, there, unread, there, nowhere]
        for _ in range(20):
            assert types(await broker.publish(batch)) == expected
        assert len(await drained(broker, jobs.name)) == 60


async def test_only_what_goes_to_an_unknown_exchange_fails(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        jobs = queue()
        await broker.declare(Topology(queues=(jobs,)))
        lost = {7, 8, 40}
        batch = [
            Message(exchange="test.no-such-exchange", routing_key="x") if number in lost else to(jobs, b"%d" % number)
            for number in range(60)
        ]
        results = await broker.publish(batch)
        assert {number for number, result in enumerate(results) if isinstance(result, Returned)} == lost
        assert {types(results)[number] for number in range(60) if number not in lost} == {Confirmed}
        assert "no-such-exchange" in results[7].text
        bodies = {message.body for message in await drained(broker, jobs.name)}
        assert bodies == {b"%d" % number for number in range(60) if number not in lost}
        assert types(await broker.publish([to(jobs)] * 5)) == [Confirmed] * 5


@pytest.mark.parametrize(
    "fields",
    [
        {"headers": {"x": "y" * 140_000}},
        {"headers": {"x": math.nan}},
        {"headers": {"x": object()}},
        {"headers": {1: 2}},
        {"id": "x" * 256},
        {"routing_key": "x" * 256},
        {"priority": 999},
        {"timestamp": -5},
        {"body": "text"},
        {"expiration": "tomorrow"},
        {"user_id": "somebody-else"},
        {"headers": {"CC": "not a list"}},
    ],
)
async def test_what_can_never_be_published_says_so_and_harms_no_other(rabbitmq_url, fields):
    async with opened(rabbitmq_url) as broker:
        jobs = queue()
        await broker.declare(Topology(queues=(jobs,)))
        hopeless = Message(**{"routing_key": jobs.name, **fields})
        results = await broker.publish([to(jobs), hopeless, to(jobs)])
        assert types(results) == [Confirmed, Nacked, Confirmed]
        assert lasts(results[1])
        assert results[1].why
        assert types(await broker.publish([to(jobs)])) == [Confirmed]


async def test_a_frame_that_makes_the_server_close_the_connection_condemns_only_its_message(rabbitmq_url, monkeypatch):
    monkeypatch.setattr("carom.brokers.rabbitmq.content.math.isfinite", lambda _value: True)
    events = []
    async with opened(rabbitmq_url, events) as broker:
        jobs = queue()
        await broker.declare(Topology(queues=(jobs,)))
        batch = [to(jobs, headers={"x": math.nan if number == 3 else 1.0}, id=str(number)) for number in range(8)]
        results = await broker.publish(batch)
        assert types(results) == [Confirmed] * 3 + [Nacked] + [Confirmed] * 4
        assert "541" not in str(results[2])
        assert {message.id for message in await drained(broker, jobs.name)} == set("0124567")
        assert kinds(events).count("ConnectionDown") <= 3


async def test_a_large_body_arrives_whole(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        jobs = queue(kind="classic")
        await broker.declare(Topology(queues=(jobs,)))
        large = bytes(index % 251 for index in range(1_000_000))
        assert types(await broker.publish([to(jobs, large), to(jobs, b"small")])) == [Confirmed] * 2
        assert [message.body for message in await drained(broker, jobs.name)] == [large, b"small"]


async def test_a_full_queue_that_rejects_nacks_what_it_does_not_take(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        jobs = queue(kind="classic", max_length=5, overflow="reject-publish")
        await broker.declare(Topology(queues=(jobs,)))
        results = await broker.publish([to(jobs) for _ in range(50)])
        assert types(results).count(Confirmed) == await ready(broker, jobs.name)
        assert Nacked in types(results)
        assert not any(lasts(result) for result in results)
        await drained(broker, jobs.name)
        assert types(await broker.publish([to(jobs)])) == [Confirmed]


async def test_a_connection_lost_amid_publishing_loses_nothing(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        jobs = queue(kind="classic")
        await broker.declare(Topology(queues=(jobs,)))
        publishing = asyncio.create_task(broker.publish([to(jobs, id=str(number)) for number in range(5_000)]))
        for wave in range(1, 4):
            await until(lambda wave=wave: broker._publishing._tag > 100 * wave, "some to be written")
            broker._out.drop("cut by the test")
            await until(lambda: not broker._publishing._flights, "the loss")
        assert set(types(await publishing)) == {Confirmed}
        ids = [message.id for message in await drained(broker, jobs.name)]
        assert len(ids) >= 5_000
        assert set(ids) == {str(number) for number in range(5_000)}


async def test_without_a_connection_publishing_ends_at_its_deadline(rabbitmq_url):
    async with opened(rabbitmq_url, confirm_timeout="300ms") as broker:
        await broker._out.close()
        with pytest.raises(BrokerUnavailable, match="nothing was published within 300 ms"):
            await broker.publish([Message(routing_key="x")])


async def test_a_closed_broker_says_so_at_once_and_can_be_opened_again(rabbitmq_url):
    broker = RabbitBroker(rabbitmq_url, RealClock())
    await broker.open()
    jobs = queue()
    await broker.declare(Topology(queues=(jobs,)))
    await broker.close()
    with pytest.raises(BrokerUnavailable, match="closed"):
        await broker.publish([to(jobs)])
    await broker.open()
    assert types(await broker.publish([to(jobs)])) == [Confirmed]
    assert len(await drained(broker, jobs.name)) == 1
    await broker.close()


async def test_closing_answers_what_is_in_flight_with_unknown(rabbitmq_url):
    broker = RabbitBroker(rabbitmq_url, RealClock())
    await broker.open()
    jobs = queue()
    await broker.declare(Topology(queues=(jobs,)))
    publishing = asyncio.create_task(broker.publish([to(jobs)] * 5_000))
    await asyncio.sleep(0)
    await broker.close()
    assert set(types(await publishing)) <= {Confirmed, Unknown}
    assert Unknown in types(await publishing)


async def test_a_publisher_that_stops_waiting_leaves_no_gap(rabbitmq_url):
    async with opened(rabbitmq_url, window=10) as broker:
        jobs = queue(kind="classic")
        await broker.declare(Topology(queues=(jobs,)))
        impatient = asyncio.create_task(broker.publish([to(jobs)] * 1_000))
        await asyncio.sleep(0)
        impatient.cancel()
        assert set(types(await broker.publish([to(jobs) for _ in range(100)]))) == {Confirmed}
        assert not broker._publishing._flights
        assert not broker._publishing._waiters


async def test_the_publishing_channel_closed_by_the_server_comes_back(rabbitmq_url):
    """As when a confirm does not come in time: the channel is given up, and its connection stays."""
    events = []
    async with opened(rabbitmq_url, events) as broker:
        jobs = queue(kind="classic")
        await broker.declare(Topology(queues=(jobs,)))
        publishing = asyncio.create_task(broker.publish([to(jobs, id=str(number)) for number in range(3_000)]))
        for wave in range(1, 6):
            await until(lambda wave=wave: broker._publishing._tag > 50 * wave, "some to be written")
            broker._reopen_publishing()
            await until(lambda: not broker._publishing._flights, "the channel to be closed")
        assert set(types(await publishing)) == {Confirmed}
        assert {message.id for message in await drained(broker, jobs.name)} == {str(number) for number in range(3_000)}
        assert kinds(events) == ["ConnectionUp", "ConnectionUp"]


async def test_large_messages_are_not_piled_up_in_our_own_buffers(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        jobs = queue(kind="classic", max_length=1)
        await broker.declare(Topology(queues=(jobs,)))
        publishing = asyncio.create_task(broker.publish([to(jobs, bytes(2_000_000))] * 40))
        most = 0
        while not publishing.done():
            most = max(most, broker._out.connection.unsent)
            await asyncio.sleep(0)
        assert set(types(await publishing)) == {Confirmed}
        assert 0 < most < 24_000_000


async def test_an_exchange_that_refuses_condemns_only_what_goes_there(rabbitmq_url):
    async with opened(rabbitmq_url) as broker, admin(rabbitmq_url) as channel:
        jobs = queue()
        await broker.declare(Topology(queues=(jobs,)))
        internal = fresh("internal")
        channel.exchange_declare(internal, "fanout", durable=True, internal=True)
        results = await broker.publish([to(jobs), Message(exchange=internal), to(jobs)])
        assert types(results) == [Confirmed, Nacked, Confirmed]
        assert internal in results[1].why
        channel.exchange_delete(internal)


async def _has(broker, name, count):
    return await ready(broker, name) == count
