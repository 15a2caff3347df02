"""Consuming: deliveries of one queue on a channel of its own, and their settlement, coalesced.

Finished deliveries are acknowledged once per turn of the loop: the contiguous ones with a single frame.

Rule: a delivery belongs to the channel that brought it. Once that is gone, its settlement is dropped: the broker has
the message again, and a tag of the old channel would mean another message on the new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from pika import exceptions
from pika.channel import Channel

from carom.brokers.rabbitmq.channels import Rpc, answer, fail, open_channel
from carom.brokers.rabbitmq.content import decode
from carom.brokers.rabbitmq.frames import Connection
from carom.core.message import Message
from carom.errors import BrokerError, BrokerUnavailable, DecodeError
from carom.ports import Delivery

_log = logging.getLogger("carom.rabbitmq")


class Acks:
    """The unsettled deliveries of one channel."""

    def __init__(self, channel: Channel) -> None:
        """Nothing is unsettled yet."""
        self._channel: Channel | None = channel
        self._open: dict[int, None] = {}
        self._finished: set[int] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def gone(self) -> bool:
        """Tell whether the channel is gone, so that nothing can be settled on it."""
        return self._channel is None

    def take(self, tag: int) -> None:
        """Count a delivery."""
        self._open[tag] = None

    def ack(self, tag: int) -> None:
        """Acknowledge it with the others of this turn."""
        if not self._finished:
            self._loop.call_soon(self.flush)
        self._finished.add(tag)

    def refuse(self, tag: int, *, requeue: bool) -> None:
        """Give it back, or let the broker make a dead letter of it.

        Handing back is a nack: since 4.3 only a reject counts as a failed delivery.
        """
        channel = self._channel
        if channel is None or self._open.pop(tag, tag) is not None:
            return
        _send(channel.basic_nack if requeue else channel.basic_reject, tag, requeue=requeue)

    def flush(self) -> None:
        """Acknowledge what is finished: the contiguous front with one frame, the others one by one."""
        channel, finished = self._channel, self._finished
        if channel is None or not finished:
            return
        unsettled, last = self._open, 0
        while unsettled and (first := next(iter(unsettled))) in finished:
            del unsettled[first]
            finished.discard(first)
            last = first
        if last:
            _send(channel.basic_ack, last, multiple=True)
        for tag in finished:
            if unsettled.pop(tag, tag) is None:
                _send(channel.basic_ack, tag)
        finished.clear()

    def lose(self) -> None:
        """The channel is gone."""
        self._channel = None
        self._open.clear()
        self._finished.clear()


class RabbitDelivery:
    """A message in our hands; implements `carom.ports.Delivery`."""

    __slots__ = ("_acks", "_body", "_message", "_method", "_properties", "_settled", "queue")

    def __init__(self, queue: str, acks: Acks, method: Any, properties: bytes, body: bytes) -> None:
        """Keep the bytes; the message is read when it is asked for."""
        self.queue = queue
        self._acks = acks
        self._method = method
        self._properties = properties
        self._body = body
        self._message: Message | None = None
        self._settled = False

    @property
    def message(self) -> Message:
        """Return the message, addressed as the broker delivered it."""
        message = self._message
        if message is None:
            method = self._method
            message = decode(self._properties, self._body, _name(method.exchange), _name(method.routing_key))
            self._message = message
        return message

    @property
    def redelivered(self) -> bool:
        """Tell whether the broker delivered it before."""
        return bool(self._method.redelivered)

    @property
    def stale(self) -> bool:
        """Tell whether the channel that brought it is gone."""
        return self._acks.gone

    def ack(self) -> None:
        """Settle it."""
        if not self._settled:
            self._settled = True
            self._acks.ack(self._method.delivery_tag)

    def hand_back(self) -> None:
        """Put it back into its queue."""
        self._settle(requeue=True)

    def refuse(self) -> None:
        """Let the broker make it a dead letter."""
        self._settle(requeue=False)

    def _settle(self, *, requeue: bool) -> None:
        if not self._settled:
            self._settled = True
            self._acks.refuse(self._method.delivery_tag, requeue=requeue)


class RabbitSubscription:
    """A consumer of one queue, across reconnects; implements `carom.ports.Subscription`."""

    def __init__(
        self,
        queue: str,
        receive: Callable[[Delivery], None],
        prefetch: int,
        ended: Callable[[str], None],
        forget: Callable[[RabbitSubscription], None],
    ) -> None:
        """Take nothing yet; see `start`."""
        self.queue = queue
        self._receive = receive
        self._prefetch = prefetch
        self._ended = ended
        self._forget = forget
        self._rpc: Rpc | None = None
        self._acks: Acks | None = None
        self._tag = ""
        self._cancelled = False

    async def start(self, connection: Connection | None) -> None:
        """Consume on a new channel of this connection. Raises BrokerError."""
        if self._cancelled:
            return
        channel = await open_channel(connection)
        rpc, acks = Rpc(channel), Acks(channel)
        channel.add_on_close_callback(lambda _channel, error: self._on_closed(acks, error))
        channel.add_on_cancel_callback(self._on_cancelled)
        await rpc.ask(channel.basic_qos, prefetch_count=self._prefetch)
        self._rpc, self._acks = rpc, acks
        started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._tag = channel.basic_consume(
            self.queue,
            self._on_delivery,
            callback=lambda value: answer(started, value),
        )
        channel.add_on_close_callback(lambda _channel, error: fail(started, _consume_error(self.queue, error)))
        await started

    async def cancel(self) -> None:
        """Stop taking messages; what is in our hands stays valid."""
        self._cancelled = True
        self._forget(self)
        rpc, tag, self._tag = self._rpc, self._tag, ""
        if rpc is None or not tag or not rpc.channel.is_open:
            return
        try:
            await rpc.ask(rpc.channel.basic_cancel, tag)
        except BrokerError:  # the channel went meanwhile, and the consumer with it
            return

    def lose(self, reason: str) -> None:
        """It cannot be restored: end it."""
        self._end(reason)

    def flush(self) -> None:
        """Write what is finished now: the connection is about to be closed."""
        if self._acks is not None:
            self._acks.flush()

    def _on_delivery(self, _channel: Channel, method: Any, properties: bytes, body: bytes) -> None:
        acks = self._acks
        if acks is None:
            return
        acks.take(method.delivery_tag)
        delivery = RabbitDelivery(self.queue, acks, method, properties, body)
        if self._cancelled:
            delivery.hand_back()
            return
        try:
            _ = delivery.message
        except (DecodeError, IndexError, ValueError, OverflowError) as error:
            _log.error("a message of %s cannot be read and is refused: %s", self.queue, error)
            delivery.refuse()
        else:
            self._receive(delivery)

    def _on_cancelled(self, _frame: Any) -> None:
        self._end("the broker cancelled the consumer: was the queue deleted, or did its leader change?")

    def _on_closed(self, acks: Acks, error: BaseException) -> None:
        acks.lose()
        if isinstance(error, exceptions.ChannelClosedByBroker) and self._acks is acks and not self._cancelled:
            self._end(f"the broker closed its channel: {error.reply_code} {error.reply_text}")

    def _end(self, reason: str) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._forget(self)
            self._ended(reason)


def _name(value: str | bytes) -> str:
    """Return a key or name as text; the library leaves what is not UTF-8 as bytes."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


def _send(method: Callable[..., None], *arguments: Any, **options: Any) -> None:
    try:
        method(*arguments, **options)
    except exceptions.AMQPError:  # the channel is closing: the broker takes the messages back by itself
        _log.debug("a settlement was dropped because its channel is closing")


def _consume_error(queue: str, error: BaseException) -> BrokerError:
    if isinstance(error, exceptions.ChannelClosedByBroker):
        return BrokerError(f"queue {queue!r} cannot be consumed from: {error.reply_code} {error.reply_text}")
    return BrokerUnavailable(f"the connection was lost while consuming from {queue!r} began: {error}")
