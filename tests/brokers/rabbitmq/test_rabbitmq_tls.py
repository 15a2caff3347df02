"""TLS: the server proves who it is, we prove who we are where it wants that, and every refusal is a sentence.

TLS ends at a wire in front of the real RabbitMQ, so that every certificate can be tried.
"""

import asyncio
import ssl
from urllib.parse import urlsplit

import pytest

from brokers.rabbitmq.certificates import Authority, refused, tls_url
from brokers.rabbitmq.rabbit_stage import at, kinds, opened, queue, to, until
from brokers.rabbitmq.wires import wired
from carom.brokers.rabbitmq.broker import RabbitBroker
from carom.core.effects import Confirmed
from carom.core.topology import Topology
from carom.errors import BrokerUnavailable
from carom.runtime.clock import RealClock


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ours"), "ca")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("theirs"), "ca")


def server_side(certificate, key, *, clients_of=None, versions=()):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients_of.file("ca"))
    if versions:
        context.minimum_version, context.maximum_version = versions
    return context


def let_the_wire_complain():
    """The side of the wire that is refused says so to the loop."""
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_messages_go_and_come_over_tls(rabbitmq_url, ours, host, version):
    tls = server_side(*ours.sign("server"), versions=(version, version))
    events = []
    async with (
        wired(urlsplit(rabbitmq_url).port, tls=tls) as wire,
        opened(tls_url(rabbitmq_url, wire.port, host, cafile=ours.file("ca")), events) as broker,
    ):
        jobs = queue(kind="classic")
        await broker.declare(Topology(queues=(jobs,)))
        large = bytes(index % 251 for index in range(300_000))
        bodies = []

        def receive(delivery):
            bodies.append(delivery.message.body)
            delivery.ack()

        await broker.consume(jobs.name, receive, prefetch=50, ended=print)
        for _ in range(2):
            results = await broker.publish([to(jobs, large), *(to(jobs, b"%d" % number) for number in range(2_000))])
            assert {type(result) for result in results} == {Confirmed}
            await until(lambda: len(set(bodies)) == 2_001, "every message")
            bodies.clear()
            broker.drop_connections()
        assert kinds(events)[:2] == ["ConnectionUp", "ConnectionUp"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_server_that_wants_a_client_certificate_gets_ours(rabbitmq_url, ours, theirs, version):
    let_the_wire_complain()
    tls = server_side(*ours.sign("server"), clients_of=theirs, versions=(version, version))
    certificate, key = theirs.sign("client")
    wrong, wrong_key = ours.sign("wrong")
    async with wired(urlsplit(rabbitmq_url).port, tls=tls) as wire:
        trusted = {"cafile": ours.file("ca")}
        async with opened(tls_url(rabbitmq_url, wire.port, **trusted, certfile=certificate, keyfile=key)) as broker:
            assert broker.server_version
        for options in (trusted, {**trusted, "certfile": wrong, "keyfile": wrong_key}):
            broker = RabbitBroker(tls_url(rabbitmq_url, wire.port, timeout="300ms", **options), RealClock())
            with pytest.raises(BrokerUnavailable, match="client certificate"):
                await broker.open()


@pytest.mark.parametrize(
    ("alternatives", "is_expired", "words"),
    [
        ("DNS:elsewhere", False, "Hostname mismatch"),
        ("IP:10.0.0.1", False, "Hostname mismatch"),
        ("DNS:localhost", True, "expired"),
    ],
)
async def test_a_certificate_that_does_not_fit_is_refused_with_a_sentence(
    rabbitmq_url, ours, alternatives, is_expired, words
):
    let_the_wire_complain()
    tls = server_side(*ours.sign("odd", alternatives, is_expired=is_expired))
    async with wired(urlsplit(rabbitmq_url).port, tls=tls) as wire:
        said = await refused(tls_url(rabbitmq_url, wire.port, cafile=ours.file("ca")))
        assert "not trusted" in said
        assert words in said
        async with opened(tls_url(rabbitmq_url, wire.port, verify="no")) as broker:
            assert broker.server_version


async def test_a_certificate_of_another_authority_is_refused(rabbitmq_url, ours, theirs):
    let_the_wire_complain()
    async with wired(urlsplit(rabbitmq_url).port, tls=server_side(*theirs.sign("server"))) as wire:
        assert "not trusted" in await refused(tls_url(rabbitmq_url, wire.port, cafile=ours.file("ca")))
        assert "not trusted" in await refused(tls_url(rabbitmq_url, wire.port))


async def test_a_port_without_tls_and_one_with_it_are_told_apart(rabbitmq_url, ours):
    let_the_wire_complain()
    broker = RabbitBroker(tls_url(rabbitmq_url, urlsplit(rabbitmq_url).port, timeout="300ms"), RealClock())
    with pytest.raises(BrokerUnavailable, match="is the port one for TLS"):
        await broker.open()
    async with wired(urlsplit(rabbitmq_url).port, tls=server_side(*ours.sign("server"))) as wire:
        broker = RabbitBroker(f"{at(rabbitmq_url, port=wire.port)}?timeout=300ms", RealClock())
        with pytest.raises(BrokerUnavailable, match="amqps://"):
            await broker.open()
