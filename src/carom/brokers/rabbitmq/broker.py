"""RabbitMQ behind the port: two connections, so that a broker that stops reading publishes still reads acks.

Rule: one connection consumes, settles and declares; the other publishes. Each is restored by itself, with what
lived on it, and an event says so. What is asked while one is being restored waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from carom.brokers.rabbitmq import changing, declaring, permissions, versions
from carom.brokers.rabbitmq.address import Address, read
from carom.brokers.rabbitmq.channels import Rpc, open_channel, translated
from carom.brokers.rabbitmq.connection import Link
from carom.brokers.rabbitmq.consuming import RabbitSubscription
from carom.brokers.rabbitmq.declaring import Questions
from carom.brokers.rabbitmq.frames import Connection
from carom.brokers.rabbitmq.management import Management
from carom.brokers.rabbitmq.publishing import Publishing
from carom.brokers.rabbitmq.taking import Taker
from carom.core.effects import PublishResult
from carom.core.lint import Inventory, Needs, QueueFacts, ServerFacts
from carom.core.message import Message
from carom.core.topology import Binding, Topology
from carom.errors import BrokerError, BrokerUnavailable, NotPermitted
from carom.ports import (
    BrokerEvent,
    Clock,
    ConnectionBlocked,
    ConnectionUnblocked,
    ConsumerEnded,
    Delivery,
    Depth,
    Location,
    Mode,
    Report,
)

ALARM_S = 1.0
"""How long a broker may take to say that it takes no messages."""


class RabbitBroker:
    """Implements `carom.ports.Broker` on a RabbitMQ from 3.10 on."""

    def __init__(self, url: Location, clock: Clock, report: Report | None = None) -> None:
        """Connect to nothing yet. A callable is asked for the URL at every connect, for credentials that rotate."""
        self._url = url
        first = self._address()
        self._report = report or _ignore
        self._subscriptions: list[RabbitSubscription] = []
        self._takers: dict[str, Taker] = {}
        self._taking = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._confirming: Any = None
        self._closing = False
        self._restoring: asyncio.Task[None] | None = None
        self._publishing = Publishing(clock, first.window, first.confirm_timeout_ms, self._reopen_publishing)
        self._in = Link("consumer", self._address, clock, self._report, up=self._restore_in, down=self._lost_in)
        self._out = Link("publisher", self._address, clock, self._told_out, up=self._restore_out, down=self._lost_out)

    @property
    def server_version(self) -> str:
        """Return the version the server reports, such as ``3.10.8``; empty when there is no connection."""
        connection = self._in.connection
        return "" if connection is None else str((connection.server_properties or {}).get("version", ""))

    # -- the port ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect both connections; a second time does nothing.

        Raises BrokerUnavailable when the address's timeout is over, and NotPermitted at once.
        """
        async with self._opening:
            self._closing = False
            self._publishing.resume()
            try:
                await self._in.open()
                await self._out.open()
            except BaseException:
                await self._in.close()
                raise

    async def close(self) -> None:
        """Write what is finished, then disconnect; a second time does nothing."""
        self._closing = True
        await asyncio.sleep(0)  # what was settled in this turn is written at its end
        self._subscriptions.clear()
        self._takers.clear()
        self._publishing.close()
        restoring, self._restoring = self._restoring, None
        if restoring is not None:
            restoring.cancel()
            await asyncio.wait([restoring])
        await asyncio.gather(self._in.close(), self._out.close())

    async def declare(self, topology: Topology, mode: Mode = "apply") -> None:
        """Make the topology exist, or compare it.

        Raises TopologyMismatch, Unsupported, NotPermitted or BrokerError.
        """
        if mode == "ignore":
            return
        async with self._questions() as questions:
            management = Management(self._address())
            for version in dict.fromkeys((self.server_version, *await management.versions())):
                versions.check(topology, version)
            if mode == "apply":
                await declaring.apply(questions, topology)
            else:
                await declaring.verify(questions, topology, await management.bindings())

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Publish, mandatory and confirmed."""
        return await self._publishing.publish(messages)

    async def consume(
        self, queue: str, receive: Callable[[Delivery], None], *, prefetch: int, ended: Callable[[str], None]
    ) -> RabbitSubscription:
        """Consume on a channel of its own."""

        def over(reason: str) -> None:
            self._report(ConsumerEnded(queue, reason))
            ended(reason)

        subscription = RabbitSubscription(queue, receive, prefetch, over)
        await subscription.start(await self._in.wait())
        self._subscriptions = [one for one in self._subscriptions if not one.is_over]
        if not self._closing:
            self._subscriptions.append(subscription)
        return subscription

    async def get(self, queue: str) -> Delivery | None:
        """Take one message."""
        return await (await self._taker(queue)).take()

    async def depths(self, queues: Iterable[str]) -> dict[str, Depth | None]:
        """Return how deep the queues are; the broker does not say how much is unsettled."""
        found: dict[str, Depth | None] = {}
        async with self._questions() as questions:
            for queue in queues:
                counted = await declaring.depth(questions, queue)
                found[queue] = None if counted is None else Depth(counted[0], None, counted[1])
        return found

    async def inspect(self, queues: Sequence[str], needs: Needs) -> ServerFacts:
        """Return what the server says of itself, over AMQP, and over its management API where that is known."""
        management = Management(self._address())
        answers = await management.answers()
        found: dict[str, QueueFacts | None] = {}
        for queue in queues:
            depth = await self._visible_depth(queue)
            policy = await management.queue_policy(queue) if answers and depth is not None else None
            found[queue] = None if depth is None else QueueFacts(depth.ready, depth.consumers, policy)
        alarm = await self._alarm()
        denied = None if alarm else await self._denied(needs)  # under an alarm nothing that publishes is answered
        return ServerFacts(self.server_version, alarm, answers, found, denied, await management.versions())

    async def observe(self) -> Inventory:
        """Return everything in the vhost, from the management API."""
        return await Management(self._address()).observe()

    async def unbind(self, binding: Binding) -> None:
        """Remove a binding."""
        async with self._questions() as questions:
            await changing.unbind(questions, binding)

    async def remove_queue(self, queue: str) -> None:
        """Remove a queue, whatever is in it."""
        async with self._questions() as questions:
            await changing.remove_queue(questions, queue)

    async def remove_exchange(self, exchange: str) -> bool:
        """Remove an exchange to which nothing is bound; tell whether it is gone."""
        async with self._questions() as questions:
            return await changing.remove_exchange(questions, exchange)

    async def held(self, queues: Iterable[str]) -> dict[str, int | None]:
        """Return how many messages queues hold, ready or in somebody's hands, some seconds ago."""
        management = Management(self._address())
        return {queue: await management.held(queue) for queue in queues}

    def drop_connections(self) -> None:
        """Cut both connections as a failing network would, for tests; they are restored."""
        for link in (self._in, self._out):
            link.drop("cut by a test")

    # -- inside --------------------------------------------------------------------------------------------

    async def _visible_depth(self, queue: str) -> Depth | None:
        try:
            return (await self.depths([queue]))[queue]
        except NotPermitted:  # since 4.3 a queue is not shown to who may do nothing with it
            return None

    async def _denied(self, needs: Needs) -> Needs:
        questions = Questions(await self._out.wait())
        try:
            return Needs(
                await permissions.unwritable(questions, needs.writes),
                await permissions.unreadable(questions, needs.reads),
            )
        finally:
            questions.close()

    async def _alarm(self) -> str:
        """Publish to nowhere: a broker that is short of something says so, and only then, when it is published to."""
        asked = asyncio.ensure_future(self.publish([Message(routing_key=f"carom.nowhere.{id(self)}")]))
        await asyncio.wait([asked], timeout=ALARM_S)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        return self._out.blocked

    def _address(self) -> Address:
        if not callable(self._url):
            return read(self._url)
        try:
            url = self._url()
        except Exception as error:  # somebody else's code: whatever it raises, the next try asks again
            raise BrokerUnavailable(f"the broker's URL cannot be had: {type(error).__name__}: {error}") from error
        return read(url)

    @asynccontextmanager
    async def _questions(self) -> AsyncIterator[Questions]:
        questions = Questions(await self._in.wait())
        try:
            yield questions
        finally:
            questions.close()

    async def _taker(self, queue: str) -> Taker:
        connection = await self._in.wait()
        async with self._taking:
            taker = self._takers.get(queue)
            if taker is None or not taker.is_usable:
                taker = self._takers[queue] = Taker(queue, await open_channel(connection))
            return taker

    async def _restore_in(self, connection: Connection) -> None:
        self._subscriptions = [one for one in self._subscriptions if not one.is_over]
        for subscription in tuple(self._subscriptions):
            try:
                await subscription.start(connection)
            except BrokerUnavailable:
                raise
            except BrokerError as error:
                subscription.end(str(error))

    def _lost_in(self, _reason: str) -> None:
        self._takers.clear()

    async def _restore_out(self, connection: Connection) -> None:
        channel = await open_channel(connection)
        await Rpc(channel).ask(partial(channel.confirm_delivery, self._publishing.confirmed))
        channel.add_on_close_callback(self._publishing_closed)
        self._confirming = channel
        self._publishing.attach(channel)

    def _publishing_closed(self, channel: Any, error: BaseException) -> None:
        if self._confirming is not channel:
            return
        self._confirming = None
        self._publishing.detach(translated(error))
        connection: Connection = channel.connection
        if connection.is_usable and not self._closing:
            self._restoring = asyncio.get_running_loop().create_task(self._restore_channel(connection))

    async def _restore_channel(self, connection: Connection) -> None:
        try:
            await self._restore_out(connection)
        except Exception as error:  # noqa: BLE001 - whatever it is: a connection without its channel is of no use
            self._out.drop(f"no channel to publish on: {error}", connection)

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


def _ignore(_event: BrokerEvent) -> None:
    """Tell nobody."""
