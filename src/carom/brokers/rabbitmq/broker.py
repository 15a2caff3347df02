"""RabbitMQ behind the port: two connections, so that a broker that stops reading publishes still reads acks.

Rule: one connection consumes, settles and declares; the other publishes. Each is restored by itself, with what
lived on it, and an event says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from pika import exceptions, spec
from pika.channel import Channel

from carom.brokers.rabbitmq import declaring
from carom.brokers.rabbitmq.address import Address, parse
from carom.brokers.rabbitmq.channels import ChannelClosed, Rpc, answer, fail, open_channel, translated
from carom.brokers.rabbitmq.connection import Link
from carom.brokers.rabbitmq.consuming import Acks, RabbitDelivery, RabbitSubscription
from carom.brokers.rabbitmq.frames import Connection
from carom.brokers.rabbitmq.management import Management
from carom.brokers.rabbitmq.publishing import Publishing
from carom.core.effects import PublishResult
from carom.core.lint import QueueFacts, ServerFacts
from carom.core.message import Message
from carom.core.topology import Topology
from carom.errors import BrokerError, BrokerUnavailable
from carom.ports import BrokerEvent, Clock, ConnectionBlocked, ConnectionUnblocked, Delivery, Depth, Mode, Report

ALARM_S = 1.0
"""How long a broker may take to say that it takes no messages."""


class RabbitBroker:
    """Implements `carom.ports.Broker` on a RabbitMQ from 3.10 on."""

    def __init__(self, url: str | Callable[[], str], clock: Clock, report: Report | None = None) -> None:
        """Connect to nothing yet. A callable is asked for the URL at every connect, for credentials that rotate."""
        self._url = url
        self._address_now = self._address()
        self._clock = clock
        self._report = report or _ignore
        self._subscriptions: list[RabbitSubscription] = []
        self._taking: tuple[Rpc, Acks] | None = None
        self._confirming: Channel | None = None
        self._closing = False
        self._background: set[asyncio.Task[None]] = set()
        self._publishing = Publishing(
            clock, self._address_now.window, self._address_now.confirm_timeout_ms, self._reopen_publishing
        )
        self._in = Link("consumer", self._address, clock, self._report, up=self._restore_in, down=self._lost_in)
        self._out = Link("publisher", self._address, clock, self._told_out, up=self._restore_out, down=self._lost_out)

    @property
    def server_version(self) -> str:
        """Return the version the server reports, such as ``3.10.8``; empty when there is no connection."""
        connection = self._in.connection
        return "" if connection is None else str((connection.server_properties or {}).get("version", ""))

    # -- the port ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect both connections."""
        self._closing = False
        await self._in.open()
        try:
            await self._out.open()
        except BaseException:
            await self._in.close()
            raise

    async def close(self) -> None:
        """Write what is finished, then disconnect."""
        self._closing = True
        for subscription in self._subscriptions:
            subscription.flush()
        self._subscriptions.clear()
        if self._taking is not None:
            self._taking[1].flush()
            self._taking = None
        self._publishing.close()
        await asyncio.gather(self._in.close(), self._out.close())
        for task in tuple(self._background):
            task.cancel()

    async def declare(self, topology: Topology, mode: Mode = "apply") -> None:
        """Make the topology exist, or compare it."""
        if mode == "apply":
            await declaring.apply(lambda: self._in.connection, topology)
        elif mode == "verify":
            await declaring.verify(lambda: self._in.connection, topology)

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Publish, mandatory and confirmed."""
        return await self._publishing.publish(messages)

    async def consume(
        self, queue: str, receive: Callable[[Delivery], None], *, prefetch: int, ended: Callable[[str], None]
    ) -> RabbitSubscription:
        """Consume on a channel of its own."""
        subscription = RabbitSubscription(queue, receive, prefetch, ended, self._forget)
        await subscription.start(self._in.connection)
        self._subscriptions.append(subscription)
        return subscription

    async def get(self, queue: str) -> Delivery | None:
        """Take one message."""
        rpc, acks = await self._taker()
        channel = rpc.channel
        answered: asyncio.Future[RabbitDelivery | None] = asyncio.get_running_loop().create_future()

        def got(_channel: Channel, method: Any, properties: bytes, body: bytes) -> None:
            acks.take(method.delivery_tag)
            delivery = RabbitDelivery(queue, acks, method, properties, body)
            if answered.done():
                delivery.hand_back()
            answer(answered, delivery)

        channel.add_callback(lambda _frame: answer(answered, None), [spec.Basic.GetEmpty])
        channel.add_on_close_callback(lambda _channel, error: fail(answered, translated(error)))
        try:
            channel.basic_get(queue, got)
        except exceptions.AMQPError as error:
            raise BrokerUnavailable(f"no message can be taken from {queue!r}: {error}") from error
        try:
            return await answered
        except ChannelClosed as closed:
            raise BrokerError(f"no message can be taken from {queue!r}: {closed}") from closed

    async def depths(self, queues: Iterable[str]) -> dict[str, Depth | None]:
        """Return how deep the queues are; the broker does not say how much is unsettled."""
        found: dict[str, Depth | None] = {}
        for queue in queues:
            counted = await declaring.depth(lambda: self._in.connection, queue)
            found[queue] = None if counted is None else Depth(counted[0], None, counted[1])
        return found

    async def inspect(self, queues: Sequence[str]) -> ServerFacts:
        """Return what the server says of itself, over AMQP, and over its management API where that is known."""
        management = Management(self._address())
        answers = await management.answers()
        found: dict[str, QueueFacts | None] = {}
        for queue, depth in (await self.depths(queues)).items():
            policy = await management.queue_policy(queue) if answers and depth is not None else None
            found[queue] = None if depth is None else QueueFacts(depth.ready, depth.consumers, policy)
        return ServerFacts(self.server_version, await self._alarm(), answers, found)

    def drop_connections(self) -> None:
        """Cut both connections as a failing network would, for tests; they are restored."""
        for link in (self._in, self._out):
            link.drop("cut by a test")

    # -- inside --------------------------------------------------------------------------------------------

    async def _alarm(self) -> str:
        """Publish to nowhere: a broker that is short of something says so, and only then, when it is published to."""
        asked = asyncio.ensure_future(self.publish([Message(routing_key=f"carom.nowhere.{id(self)}")]))
        await asyncio.wait([asked], timeout=ALARM_S)
        asked.cancel()
        await asyncio.wait([asked])
        return self._out.blocked

    def _address(self) -> Address:
        return parse(self._url() if callable(self._url) else self._url)

    async def _restore_in(self, connection: Connection) -> None:
        for subscription in tuple(self._subscriptions):
            try:
                await subscription.start(connection)
            except BrokerUnavailable:
                raise
            except BrokerError as error:
                subscription.lose(str(error))

    def _lost_in(self, _reason: str) -> None:
        self._taking = None

    async def _restore_out(self, connection: Connection) -> None:
        channel = await open_channel(connection)
        rpc = Rpc(channel)
        await rpc.ask(partial(channel.confirm_delivery, self._publishing.confirmed))
        channel.add_on_close_callback(self._publishing_closed)
        self._confirming = channel
        self._publishing.attach(channel)

    def _publishing_closed(self, channel: Channel, error: BaseException) -> None:
        if channel is not self._confirming:
            return
        self._confirming = None
        self._publishing.detach(translated(error))
        connection = self._out.connection
        if connection is not None and connection.is_open and not self._closing:
            task = asyncio.get_running_loop().create_task(self._restore_channel(connection))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _restore_channel(self, connection: Connection) -> None:
        try:
            await self._restore_out(connection)
        except BrokerError as error:
            self._out.drop(f"no channel to publish on: {error}")

    def _lost_out(self, _reason: str) -> None:
        self._publishing.resume()

    def _told_out(self, event: BrokerEvent) -> None:
        if isinstance(event, ConnectionBlocked):
            self._publishing.pause(f"RabbitMQ takes no messages: {event.reason}")
        elif isinstance(event, ConnectionUnblocked):
            self._publishing.resume()
        self._report(event)

    def _reopen_publishing(self) -> None:
        """A confirm did not come in time: what that channel still says cannot be trusted to come."""
        if self._confirming is not None and self._confirming.is_open:
            self._confirming.close()

    async def _taker(self) -> tuple[Rpc, Acks]:
        if self._taking is None or self._taking[1].gone:
            channel = await open_channel(self._in.connection)
            acks = Acks(channel)
            channel.add_on_close_callback(lambda _channel, _error: acks.lose())
            self._taking = (Rpc(channel), acks)
        return self._taking

    def _forget(self, subscription: RabbitSubscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)


def _ignore(_event: BrokerEvent) -> None:
    """Tell nobody."""
