"""Consuming from a real RabbitMQ: settled once, on the channel that brought it, unharmed by another's fault."""

import asyncio
import struct
from functools import partial

import pika
import pytest
from pika import frame, spec

from brokers.rabbitmq.rabbit_stage import admin, drained, fresh, kinds, opened, queue, ready, to, until
from carom.brokers.rabbitmq.content import Seconds
from carom.core.topology import Topology
from carom.errors import BrokerError, BrokerUnavailable


async def listen(broker, jobs, *, prefetch=100, ack=False):
    deliveries, ended = [], []

    def receive(delivery):
        deliveries.append(delivery)
        if ack:
            delivery.ack()

    subscription = await broker.consume(jobs.name, receive, prefetch=prefetch, ended=ended.append)
    return deliveries, ended, subscription


async def came(deliveries, count):
    await until(lambda: len(deliveries) >= count, f"{count} deliveries")


async def prepared(broker, count=0, **options):
    jobs = queue(**options)
    await broker.declare(Topology(queues=(jobs,)))
    await broker.publish([to(jobs, b"%d" % number) for number in range(count)])
    return jobs


def spied(broker):
    """Keep the methods that the consuming connection sends."""
    sent, connection = [], broker._in.connection
    send = connection._send_method

    def keep(channel, method, content=None):
        sent.append(method)
        send(channel, method, content)

    connection._send_method = keep
    return sent


async def test_what_finished_in_a_turn_is_acknowledged_with_one_frame(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        jobs = await prepared(broker, 50)
        deliveries, _, _ = await listen(broker, jobs)
        await came(deliveries, 50)
        sent = spied(broker)
        for delivery in deliveries[:40]:
            delivery.ack()
        deliveries[45].ack()
        await asyncio.sleep(0)
        acks = [(method.delivery_tag, bool(method.multiple)) for method in sent]
        assert acks == [(40, True), (46, False)]


async def test_acks_in_any_order_leave_exactly_the_others(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        jobs = await prepared(broker, 30)
        deliveries, _, _ = await listen(broker, jobs)
        await came(deliveries, 30)
        for number in (29, 3, 1, 0, 17, 2, 4, 16):
            deliveries[number].ack()
            await asyncio.sleep(0)
        deliveries[5].hand_back()
        deliveries[6].refuse()
        deliveries[7].ack()
        await came(deliveries, 31)
    async with opened(rabbitmq_url) as broker:
        await until(lambda: _has(broker, jobs.name, 20), "what was not acknowledged")
        left = {int(message.body) for message in await drained(broker, jobs.name)}
        assert left == set(range(30)) - {29, 3, 1, 0, 17, 2, 4, 16, 6, 7}


async def test_an_ack_in_the_turn_of_closing_is_written(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        jobs = await prepared(broker, 20)
        deliveries, _, subscription = await listen(broker, jobs)
        await came(deliveries, 20)
        await subscription.cancel()
        for delivery in deliveries:
            delivery.ack()
    async with opened(rabbitmq_url) as broker:
        assert await ready(broker, jobs.name) == 0


async def test_settling_after_a_reconnect_is_dropped_and_harms_nothing(rabbitmq_url):
    events = []
    async with opened(rabbitmq_url, events) as broker:
        jobs = await prepared(broker, 10)
        deliveries, ended, _ = await listen(broker, jobs)
        await came(deliveries, 10)
        deliveries[0].ack()
        broker._in.drop("cut by the test")
        await came(deliveries, 19)
        for old in deliveries[:10]:
            assert old.stale
            old.ack()
            old.refuse()
        for new in deliveries[10:19]:
            new.ack()
        await until(lambda: _has(broker, jobs.name, 0), "an empty queue")
        assert ended == []
        assert kinds(events).count("ConnectionDown") == 1


async def test_a_deleted_queue_ends_its_consumer_and_an_event_says_so(rabbitmq_url):
    events = []
    async with opened(rabbitmq_url, events) as broker, admin(rabbitmq_url) as channel:
        jobs, others = await prepared(broker, 3), await prepared(broker)
        deliveries, ended, subscription = await listen(broker, jobs)
        theirs, _, _ = await listen(broker, others, ack=True)
        await came(deliveries, 3)
        channel.queue_delete(jobs.name)
        await until(lambda: bool(ended), "the end")
        assert "was the queue deleted" in ended[0]
        assert kinds(events)[-1] == "ConsumerEnded"
        assert events[-1].queue == jobs.name
        for delivery in deliveries:
            delivery.ack()
        await subscription.cancel()
        await broker.publish([to(others)])
        await came(theirs, 1)
        assert len(ended) == 1


async def test_a_channel_the_server_closes_makes_its_deliveries_stale_and_ends_loudly(rabbitmq_url):
    events = []
    async with opened(rabbitmq_url, events) as broker:
        jobs, others = await prepared(broker, 3), await prepared(broker, 1)
        deliveries, ended, subscription = await listen(broker, jobs)
        theirs, _, _ = await listen(broker, others)
        await came(deliveries, 3)
        await came(theirs, 1)
        subscription._rpc.channel.basic_ack(999)
        await until(lambda: bool(ended), "the end")
        assert "406" in ended[0]
        assert all(delivery.stale for delivery in deliveries)
        assert not theirs[0].stale
        assert kinds(events) == ["ConnectionUp", "ConnectionUp", "ConsumerEnded"]
        again, _, _ = await listen(broker, jobs, ack=True)
        await came(again, 3)


async def test_a_queue_that_does_not_exist_is_an_error_and_no_end(rabbitmq_url):
    events = []
    async with opened(rabbitmq_url, events) as broker:
        nobody = queue("nobody")
        with pytest.raises(BrokerError, match=nobody.name):
            await listen(broker, nobody)
        with pytest.raises(BrokerError, match=nobody.name):
            await broker.get(nobody.name)
        for _ in range(2):
            with pytest.raises(BrokerError, match="no message can be taken"):
                await broker.get("x" * 300)
        with pytest.raises(BrokerError, match="AMQP"):
            await broker.consume(nobody.name, print, prefetch=70_000, ended=print)
        assert kinds(events) == ["ConnectionUp", "ConnectionUp"]


async def test_a_subscription_whose_queue_is_gone_after_a_loss_ends(rabbitmq_url):
    async with opened(rabbitmq_url) as broker, admin(rabbitmq_url) as channel:
        jobs, others = await prepared(broker), await prepared(broker)
        _, ended, _ = await listen(broker, jobs)
        theirs, no_end, _ = await listen(broker, others, ack=True)
        broker._in.drop("cut by the test")
        channel.queue_delete(jobs.name)
        await until(lambda: bool(ended), "the end")
        await broker.publish([to(others)])
        await came(theirs, 1)
        assert (len(ended), no_end) == (1, [])


async def test_cancelling_while_it_is_restored_leaves_no_consumer(rabbitmq_url):
    for turns in range(12):
        async with opened(rabbitmq_url) as broker, admin(rabbitmq_url) as channel:
            jobs = await prepared(broker)
            deliveries, _, subscription = await listen(broker, jobs)
            restored = asyncio.Event()
            restore = broker._in._up

            async def up(connection, restore=restore, restored=restored):
                restored.set()
                await restore(connection)

            broker._in._up = up
            broker._in.drop("cut by the test")
            await restored.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            await subscription.cancel()
            await until(lambda: broker._in.connection is not None, "the connection")
            await broker.publish([to(jobs)])
            await until(partial(_consumers, broker, jobs.name, 0), "no consumer")
            assert await ready(broker, jobs.name) == 1
            assert deliveries == []
            channel.queue_delete(jobs.name)


async def test_cancelled_subscriptions_leave_no_channels(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        jobs = await prepared(broker, 1)
        held, _, first = await listen(broker, jobs)
        await came(held, 1)
        await first.cancel()
        for _ in range(20):
            _, _, subscription = await listen(broker, jobs)
            await subscription.cancel()
        await until(lambda: len(broker._in.connection._channels) == 1, "one channel, of what is still held")
        held[0].ack()
        await until(lambda: not broker._in.connection._channels, "no channel")
        assert await ready(broker, jobs.name) == 0


async def test_what_arrives_after_cancelling_goes_back_without_counting_as_refused(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        jobs = await prepared(broker, 500, delivery_limit=100)
        deliveries, _, subscription = await listen(broker, jobs, prefetch=500)
        sent = spied(broker)
        await subscription.cancel()
        assert not [method for method in sent if isinstance(method, spec.Basic.Reject)]
        for delivery in deliveries:
            delivery.hand_back()
        await until(lambda: _has(broker, jobs.name, 500), "all messages back")


async def test_absurd_content_neither_kills_the_connection_nor_comes_again(rabbitmq_url):
    events = []
    async with opened(rabbitmq_url, events) as broker, admin(rabbitmq_url) as channel:
        dead = await prepared(broker)
        jobs = await prepared(broker, dead_letter_exchange="", dead_letter_routing_key=dead.name)
        deliveries, ended, _ = await listen(broker, jobs)
        deep = {}
        for _ in range(100):
            deep = {"d": deep}
        absurd = {
            b"year": pika.BasicProperties(timestamp=1_700_000_000_000_000, headers={"x": 2**63 - 1}),
            b"bytes": pika.BasicProperties(message_id="ok", headers={"x": b"\xff\xfe"}),
            b"deep": pika.BasicProperties(headers={"x": deep}),
        }
        for body, properties in absurd.items():
            channel.basic_publish("", jobs.name, body, properties)
        await broker.publish([to(jobs, b"seconds", headers={"t": Seconds(2**64 - 1)})])
        await came(deliveries, 3)
        await until(lambda: _has(broker, dead.name, 1), "the unreadable one")
        assert {delivery.message.body for delivery in deliveries} == {b"year", b"bytes", b"seconds"}
        with pytest.raises(AssertionError):
            await until(lambda: len(deliveries) > 3, "more", within_s=0.2)
        assert await broker.get(dead.name) is None, "get refuses what cannot be read, too"
        assert (ended, kinds(events)) == ([], ["ConnectionUp", "ConnectionUp"])


async def test_a_name_that_is_no_utf8_is_read_and_written_as_it_is(rabbitmq_url):
    async with opened(rabbitmq_url) as broker, admin(rabbitmq_url) as channel:
        jobs, exchange = await prepared(broker), fresh("all")
        channel.exchange_declare(exchange, "fanout", durable=True)
        channel.queue_bind(jobs.name, exchange)
        key = b"caf\xe9"
        named = to(key.decode("utf-8", "surrogateescape"), exchange=exchange, headers={"n\udcff": "v\udcfe"})
        await broker.publish([named])
        delivery = await broker.get(jobs.name)
        assert delivery.message.routing_key.encode("utf-8", "surrogateescape") == key
        assert delivery.message.headers["n\udcff"] == "v\udcfe"
        delivery.ack()
        channel.exchange_delete(exchange)


async def test_a_receiver_that_fails_costs_neither_the_connection_nor_the_others(rabbitmq_url):
    events, told = [], []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context["exception"]))
    async with opened(rabbitmq_url, events) as broker:
        jobs = await prepared(broker, 3)
        seen = []

        def receive(delivery):
            seen.append(delivery)
            raise ZeroDivisionError

        await broker.consume(jobs.name, receive, prefetch=10, ended=print)
        await came(seen, 3)
        assert [type(error) for error in told] == [ZeroDivisionError] * 3
        assert "ConnectionDown" not in kinds(events)


async def test_taking_from_many_queues_at_once_mixes_nothing_up(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        queues = [await prepared(broker, 5, kind="classic") for _ in range(5)]
        nobody = fresh("nobody")
        taken = await asyncio.gather(
            *(broker.get(jobs.name) for jobs in queues for _ in range(6)), broker.get(nobody), return_exceptions=True
        )
        assert isinstance(taken.pop(), BrokerError)
        found = [delivery for delivery in taken if delivery is not None]
        assert len(found) == 25
        for jobs in queues:
            assert [int(one.message.body) for one in found if one.queue == jobs.name] == [0, 1, 2, 3, 4]
        assert not any(delivery.stale for delivery in found)


async def test_taking_leaves_nothing_behind_in_the_library(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        jobs = await prepared(broker, 50, kind="classic")
        await drained(broker, jobs.name)
        stack = broker._in.connection.callbacks._stack
        before = _size(stack)
        await broker.publish([to(jobs) for _ in range(300)])
        assert len(await drained(broker, jobs.name)) == 300
        assert _size(stack) == before


async def test_who_stops_waiting_for_a_message_does_not_keep_it(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        jobs = await prepared(broker, 3, kind="classic")
        assert await broker.get(jobs.name) is not None
        for turns in range(8):
            impatient = asyncio.create_task(broker.get(jobs.name))
            for _ in range(turns):
                await asyncio.sleep(0)
            impatient.cancel()
            await asyncio.wait([impatient])
            if not impatient.cancelled() and impatient.result() is not None:
                impatient.result().hand_back()
        await until(lambda: _has(broker, jobs.name, 2), "both messages back")
        assert len([await broker.get(jobs.name), await broker.get(jobs.name)]) == 2


async def test_what_is_asked_while_the_connection_is_restored_waits_for_it(rabbitmq_url):
    async with opened(rabbitmq_url) as broker:
        jobs = await prepared(broker, 4)
        for ask in (
            lambda: broker.declare(Topology(queues=(jobs,))),
            lambda: broker.depths([jobs.name]),
            lambda: broker.get(jobs.name),
            lambda: listen(broker, jobs),
        ):
            broker._in.drop("cut by the test")
            await ask()
        broker._in.drop("cut by the test")
        asking = asyncio.create_task(broker.depths([jobs.name]))
        await asyncio.sleep(0)
        await broker.close()
        with pytest.raises(BrokerUnavailable, match="not open"):
            await asking


def test_frames_of_the_library_still_have_the_shape_we_read():
    """The adapter overrides two methods of the library by name; this fails when an upgrade changes what they get."""
    data = frame.Method(1, spec.Basic.Ack(5, True)).marshal()
    kind, channel, length = struct.unpack_from(">BHL", data)
    assert (kind, channel, len(data)) == (1, 1, length + 8)


def _size(stack):
    return sum(len(callbacks) for keys in stack.values() for callbacks in keys.values())


async def _has(broker, name, count):
    return await ready(broker, name) == count


async def _consumers(broker, name, count):
    return (await broker.depths([name]))[name].consumers == count
