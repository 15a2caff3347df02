"""What a server of some version would ignore in silence is refused before anything is declared."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from brokers.rabbitmq.rabbit_stage import declared, fresh, opened, queue
from carom.brokers.rabbitmq.versions import check
from carom.core.lint import Needs, version_of
from carom.core.retry import RetryPolicy
from carom.core.settlement import Plan
from carom.core.topology import Queue
from carom.errors import Unsupported
from carom.layouts import PerQueue, Shared

EVERY = ("3.10.8", "3.12.14", "3.13.7", "4.0.9", "4.1.0", "4.2.3", "4.3.5")
PLAN = Plan("q", ("k",), RetryPolicy.delays("1s", "1m"))


@pytest.mark.parametrize("server", EVERY)
@pytest.mark.parametrize("laid_out", [Shared, PerQueue])
def test_the_layouts_use_what_every_version_understands(server, laid_out):
    check(laid_out(plans=(PLAN,)).topology, server)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"delayed_retry_type": "failed"}, EVERY[:-1]),
        ({"delayed_retry_min": 1, "delayed_retry_max": 2}, EVERY[:-1]),
        ({"consumer_timeout": 60_000}, EVERY[:1]),
        ({"consumer_disconnected_timeout": 60_000}, EVERY[:-1]),
        ({"kind": "classic", "queue_mode": "lazy"}, EVERY[-1:]),
        ({"max_length": 5}, ()),
    ],
)
def test_an_argument_is_refused_where_it_means_nothing(options, refused):
    one = queue(**options)
    for server in EVERY:
        if server in refused:
            with pytest.raises(Unsupported, match=one.name):
                check(declared(one), server)
        else:
            check(declared(one), server)


def test_every_reason_is_named_at_once_and_says_what_to_do():
    first, second = queue(delayed_retry_type="all", consumer_timeout=9), queue(delayed_retry_min=9)
    with pytest.raises(Unsupported) as caught:
        check(declared(first, second), "3.10.8")
    said = str(caught.value)
    assert said.count("leave it out, or upgrade") == 3
    assert "RabbitMQ 3.10.8" in said
    assert "before 4.3" in said


def test_a_queue_that_does_not_last_is_refused_where_the_server_would_refuse_it():
    fleeting = Queue(fresh(), durable=False)
    check(declared(fleeting), "4.2.0")
    with pytest.raises(Unsupported, match="is not durable"):
        check(declared(fleeting), "4.3.0")


def test_a_server_that_does_not_say_its_version_is_not_doubted():
    check(declared(queue(delayed_retry_type="all")), "")


@pytest.mark.parametrize("mode", ["apply", "verify"])
async def test_a_real_server_is_asked_for_its_version_before_anything_is_declared(rabbitmq_url, mode):
    async with opened(rabbitmq_url) as broker:
        wanted = queue(consumer_timeout=60_000, delayed_retry_type="failed")
        if version_of(broker.server_version) >= (4, 3):
            await broker.declare(declared(wanted))
            return
        with pytest.raises(Unsupported, match=wanted.name):
            await broker.declare(declared(wanted), mode)
        assert (await broker.depths([wanted.name]))[wanted.name] is None


@asynccontextmanager
async def management_of(*found):
    """Serve a management API of a cluster whose nodes have these versions; there is no cluster to be had here."""
    nodes = [{"applications": [{"name": "ssl", "version": "1"}, {"name": "rabbit", "version": one}]} for one in found]
    body = json.dumps([*nodes, {"running": False}]).encode()

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"?management=http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("mode", ["apply", "verify"])
async def test_every_node_of_a_cluster_has_to_understand_what_is_declared(rabbitmq_url, mode):
    async with management_of("3.11.5", "4.3.1") as management, opened(f"{rabbitmq_url}{management}") as broker:
        for wanted, version in (
            (queue(consumer_timeout=60_000), "3.1"),
            (queue(kind="classic", queue_mode="lazy"), "4.3"),
        ):
            with pytest.raises(Unsupported, match=rf"RabbitMQ {version}[.0-9]* cannot"):
                await broker.declare(declared(wanted), mode)
        assert (await broker.inspect([], Needs())).versions == ("3.11.5", "4.3.1")


async def test_the_nodes_of_a_real_server_are_its_own(rabbitmq_url, rabbitmq_management_url):
    management = "" if rabbitmq_management_url is None else f"?management={rabbitmq_management_url}"
    async with opened(f"{rabbitmq_url}{management}") as broker:
        versions = (await broker.inspect([], Needs())).versions
        assert set(versions) == ({broker.server_version} if management else set())
