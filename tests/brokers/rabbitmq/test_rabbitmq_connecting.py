"""Connecting to a real RabbitMQ, or to something that is none: a sentence when it fails, and nothing left behind."""

import asyncio
import socket
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from brokers.rabbitmq.rabbit_stage import at, drained, kinds, opened, queue, to, turns, until, with_options
from brokers.rabbitmq.wires import wired
from carom import App
from carom.brokers.rabbitmq.broker import RabbitBroker
from carom.core.effects import Confirmed, Unknown
from carom.core.topology import Topology
from carom.errors import BrokerUnavailable, ConfigurationError, NotPermitted
from carom.runtime.clock import RealClock

WRONG = "s3cr3t"


def sockets():
    """Return how many sockets this process has."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += str(descriptor.readlink()).startswith("socket:")
    return count


def timers():
    """Return the timers that wait in this loop, but for those of the test itself."""
    return [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]


async def left_nothing(before):
    """Fail when tasks, sockets or timers are left."""
    await until(lambda: sockets() <= before, f"at most {before} sockets")
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    assert timers() == []


@pytest.mark.parametrize("count", [None, 0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1_000, 3_000])
async def test_nothing_is_left_after_closing_or_giving_up_opening(rabbitmq_url, count):
    before = sockets()
    broker = RabbitBroker(rabbitmq_url, RealClock())
    opening = asyncio.create_task(broker.open())
    if count is None:
        await opening
    else:
        await turns(count)
        opening.cancel()
        await asyncio.wait([opening])
    await broker.close()
    await left_nothing(before)


async def test_wrong_credentials_are_not_permitted_at_once_and_not_shown(rabbitmq_url):
    before = sockets()
    started = time.monotonic()
    broker = RabbitBroker(at(rabbitmq_url, password=WRONG), RealClock())
    with pytest.raises(NotPermitted, match="check the credentials") as caught:
        await broker.open()
    assert WRONG not in f"{caught.value} {caught.value.__cause__!r} {broker._address()!r}"
    assert time.monotonic() - started < 9, "it must not wait for the timeout of 10 s"
    await broker.close()
    await left_nothing(before)


async def test_a_missing_vhost_is_not_permitted_and_named(rabbitmq_url):
    with pytest.raises(NotPermitted, match=r"nowhere.*create the vhost"):
        await RabbitBroker(at(rabbitmq_url, vhost="nowhere"), RealClock()).open()


@pytest.mark.parametrize("hosts", ["127.0.0.1", "localhost", "127.0.0.1,localhost", "no-such-host.invalid"])
async def test_where_nobody_listens_opening_ends_at_its_timeout(hosts):
    before = sockets()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        url = ",".join(f"{host}:{port}" for host in hosts.split(","))
        broker = RabbitBroker(f"amqp://{url}/?timeout=400ms", RealClock())
        with pytest.raises(BrokerUnavailable, match=r"cannot be reached|did not answer"):
            await broker.open()
    await broker.close()
    await left_nothing(before)


@pytest.mark.parametrize(
    "says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\x00\x01\x00\x00", b"\x01\x00\x00\xff\xff\xff\xff"]
)
@pytest.mark.parametrize("hangs_up", [True, False])
async def test_what_is_no_rabbitmq_is_unavailable_with_a_sentence(says, hangs_up):
    before = sockets()
    clients = set()

    async def serve(_reader, writer):
        clients.add(writer)
        writer.write(says)
        if hangs_up:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    broker = RabbitBroker(f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}/?timeout=300ms", RealClock())
    with pytest.raises(BrokerUnavailable, match=r"RabbitMQ at 127\.0\.0\.1"):
        await broker.open()
    await broker.close()
    server.close()
    for writer in clients:
        writer.transport.abort()
    await left_nothing(before)


async def test_a_connection_lost_during_the_login_is_no_refusal(rabbitmq_url):
    """A broker that goes down just then would otherwise look like one that refuses our credentials, for good."""
    for after in (0, 100, 500):
        async with wired(urlsplit(rabbitmq_url).port) as wire:
            wire.cut_after = after
            async with opened(at(rabbitmq_url, port=wire.port)) as broker:
                assert broker.server_version
            assert wire.connections == 3


async def test_opening_twice_is_opening_once(rabbitmq_url):
    before, events = sockets(), []
    broker = RabbitBroker(rabbitmq_url, RealClock(), events.append)
    await asyncio.gather(broker.open(), broker.open())
    await broker.open()
    assert kinds(events) == ["ConnectionUp", "ConnectionUp"]
    await broker.close()
    await broker.close()
    await left_nothing(before)


async def test_one_host_of_a_cluster_that_answers_is_enough(rabbitmq_url):
    parts = urlsplit(rabbitmq_url)
    place = f"{parts.hostname}:{parts.port}"
    for _ in range(5):
        async with opened(rabbitmq_url.replace(place, f"127.0.0.1:1,{place},no-such-host.invalid")) as broker:
            assert broker.server_version


async def test_credentials_are_read_again_at_every_connect(rabbitmq_url):
    urls, events = [rabbitmq_url], []
    broker = RabbitBroker(lambda: urls[-1], RealClock(), events.append)
    await broker.open()
    urls.append(at(rabbitmq_url, password=WRONG))
    broker.drop_connections()
    await until(lambda: any("check the credentials" in getattr(one, "reason", "") for one in events), "the refusal")
    urls.append("no address")
    seen = len(events)
    await until(lambda: any("begins with amqp" in getattr(one, "reason", "") for one in events[seen:]), "the refusal")
    urls.append(rabbitmq_url)
    await until(lambda: None not in {broker._in.connection, broker._out.connection}, "both connections")
    await broker.close()


async def test_an_app_takes_the_urls_of_a_cluster_or_what_gives_them(rabbitmq_url):
    parts, asked = urlsplit(rabbitmq_url), []
    cluster = [rabbitmq_url.replace(f"{parts.hostname}:{parts.port}", "127.0.0.1:1"), rabbitmq_url]

    def place():
        asked.append(rabbitmq_url)
        return cluster

    for given in (cluster, place):
        async with App(given, observers=(), topology="ignore"):
            pass
    seen = len(asked)
    assert seen >= 2
    app = App("embedded://", observers=(), topology="ignore")
    app.configure(broker=place)
    async with app:
        app._broker.drop_connections()
        await until(lambda: None not in {app._broker._in.connection, app._broker._out.connection}, "both connections")
    assert len(asked) >= seen + 4


async def test_whoever_gives_the_url_may_fail_for_a_while(rabbitmq_url):
    failures, events = [], []

    def url():
        if failures:
            raise failures[-1]
        return rabbitmq_url

    broker = RabbitBroker(url, RealClock(), events.append)
    await broker.open()
    failures += [FileNotFoundError("the secret is being rotated")]
    broker.drop_connections()
    await until(lambda: any("being rotated" in getattr(one, "reason", "") for one in events), "the failure")
    failures.clear()
    await until(lambda: None not in {broker._in.connection, broker._out.connection}, "both connections")
    await broker.close()
    failures.append(KeyError("x"))
    with pytest.raises(BrokerUnavailable, match="KeyError"):
        RabbitBroker(url, RealClock())
    with pytest.raises(ConfigurationError, match="NoneType"):
        RabbitBroker(lambda: None, RealClock())


async def test_closing_while_it_is_restored_leaves_nothing(rabbitmq_url):
    before = sockets()
    for count in (0, 1, 10, 100, 300, 1_000, 3_000, 10_000):
        broker = RabbitBroker(rabbitmq_url, RealClock())
        await broker.open()
        broker.drop_connections()
        await turns(count)
        await broker.close()
        await left_nothing(before)


async def test_a_wire_that_is_cut_in_the_middle_of_a_frame_is_restored(rabbitmq_url):
    async with wired(urlsplit(rabbitmq_url).port) as wire:
        events = []
        async with opened(at(rabbitmq_url, port=wire.port), events) as broker:
            jobs = queue(kind="classic")
            await broker.declare(Topology(queues=(jobs,)))
            seen = set()

            def receive(delivery):
                seen.add(delivery.message.id)
                delivery.ack()

            await broker.consume(jobs.name, receive, prefetch=50, ended=print)
            for cut in (1, 7, 100, 3_000):
                wire.cut_after = cut
                batch = [to(jobs, b"x" * 500, id=f"{cut}.{number}") for number in range(300)]
                assert {type(result) for result in await broker.publish(batch)} == {Confirmed}
            expected = {f"{cut}.{number}" for cut in (1, 7, 100, 3_000) for number in range(300)}
            await until(lambda: seen == expected, "every message")
            assert "ConnectionDown" in kinds(events)


async def test_confirms_that_do_not_come_in_time_are_unknown_and_the_wire_recovers(rabbitmq_url):
    async with wired(urlsplit(rabbitmq_url).port) as wire:
        url = at(rabbitmq_url, port=wire.port)
        async with opened(url, confirm_timeout="700ms") as broker:
            jobs = queue(kind="classic")
            await broker.declare(Topology(queues=(jobs,)))
            wire.stall(to_server=False)
            results = await broker.publish([to(jobs, id="7")] * 3)
            assert results == [Unknown("no confirm within 700 ms")] * 3
            wire.flow()
            await until(lambda: _publishes(broker, jobs), "a confirm")
            assert len(await drained(broker, jobs.name)) >= 4


async def test_heartbeats_notice_a_wire_that_says_nothing_any_more(rabbitmq_url):
    async with wired(urlsplit(rabbitmq_url).port) as wire:
        events = []
        async with opened(at(rabbitmq_url, port=wire.port), events, heartbeat=1, confirm_timeout=60) as broker:
            jobs = queue(kind="classic")
            await broker.declare(Topology(queues=(jobs,)))
            wire.stall()
            publishing = asyncio.create_task(broker.publish([to(jobs, id="7")]))
            await until(lambda: kinds(events).count("ConnectionDown") >= 2, "both losses")
            assert "heartbeat" in events[2].reason
            wire.flow()
            assert await publishing == [Confirmed()]


async def test_closing_over_a_wire_that_says_nothing_ends(rabbitmq_url, monkeypatch):
    monkeypatch.setattr("carom.brokers.rabbitmq.connection.CLOSE_MS", 200)
    before = sockets()
    async with wired(urlsplit(rabbitmq_url).port) as wire:
        broker = RabbitBroker(with_options(at(rabbitmq_url, port=wire.port), timeout="1s"), RealClock())
        await broker.open()
        wire.stall()
        async with asyncio.timeout(5):
            await broker.close()
    await left_nothing(before)


async def test_a_restart_loop_of_the_network_ends_with_everything_restored(rabbitmq_url):
    async with wired(urlsplit(rabbitmq_url).port) as wire, opened(at(rabbitmq_url, port=wire.port)) as broker:
        queues = [queue(kind="classic") for _ in range(5)]
        await broker.declare(Topology(queues=tuple(queues)))
        came = {jobs.name: 0 for jobs in queues}

        def receive(delivery):
            came[delivery.queue] += 1
            delivery.ack()

        for jobs in queues:
            await broker.consume(jobs.name, receive, prefetch=5, ended=print)
        for number in range(30):
            known = wire.connections
            wire.reset()
            await until(lambda known=known: wire.connections > known, "another try")
            await turns(number * 20)
        await broker.publish([to(jobs) for jobs in queues])
        await until(lambda: all(came.values()), "a message from every queue")


async def _publishes(broker, jobs):
    with suppress(BrokerUnavailable):
        return isinstance((await broker.publish([to(jobs)]))[0], Confirmed)
    return False
