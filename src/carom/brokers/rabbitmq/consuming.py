"""Consuming: deliveries of one queue on a channel of its own, and their settlement, coalesced.

Finished deliveries are acknowledged once per turn of the loop: the contiguous ones with a single frame.

Rule: a delivery belongs to the channel that brought it. Once that is gone, its settlement is dropped: the broker has
the message again, and a tag of the old channel would mean another message on the new one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from pika import exceptions, spec
from pika.channel import Channel

from carom.brokers.rabbitmq.channels import Rpc, open_channel, translated
from carom.brokers.rabbitmq.content import decode
from carom.brokers.rabbitmq.frames import Connection
from carom.core.message import Message
from carom.errors import BrokerError, BrokerUnavailable, DecodeError, NotPermitted
from carom.ports import Delivery

T = TypeVar("T")
_log = logging.getLogger("carom.rabbitmq")
_numbers = itertools.count(1)


class Acks:
    """The unsettled deliveries of one channel."""

    def __init__(self, channel: Channel) -> None:
        """Nothing is unsettled yet."""
        self._channel: Channel | None = channel
        self._open: dict[int, None] = {}
        self._finished: set[int] = set()
        self._is_retired = False
        self._loop = asyncio.get_running_loop()
        channel.add_on_close_callback(self._lose)

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

    def refuse(self, tag: int, *, requeue: bool, failed: bool = False) -> None:
        """Give it back, or let the broker make a dead letter of it.

        Handing back is a nack: since 4.3 only a reject counts as a ``failed`` delivery.
        """
        channel = self._channel
        if channel is None or self._open.pop(tag, tag) is not None:
            return
        _send(channel.basic_nack if requeue and not failed else channel.basic_reject, tag, requeue=requeue)
        self._leave()

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
        self._leave()

    def retire(self) -> None:
        """Nothing more will be delivered: close the channel as soon as nothing of it is in our hands."""
        self._is_retired = True
        self._leave()

    def _leave(self) -> None:
        channel = self._channel
        if self._is_retired and not self._open and channel is not None and channel.is_open:
            channel.close()

    def _lose(self, _channel: Channel, _error: BaseException) -> None:
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
            message = decode(self._properties, self._body, name(method.exchange), name(method.routing_key))
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

    def fail(self) -> None:
        """Put it back into its queue as a failed attempt."""
        self._settle(requeue=True, failed=True)

    def _settle(self, *, requeue: bool, failed: bool = False) -> None:
        if not self._settled:
            self._settled = True
            self._acks.refuse(self._method.delivery_tag, requeue=requeue, failed=failed)


class RabbitSubscription:
    """A consumer of one queue, across reconnects; implements `carom.ports.Subscription`."""

    def __init__(
        self, queue: str, receive: Callable[[Delivery], None], prefetch: int, ended: Callable[[str], None]
    ) -> None:
        """Take nothing yet; see `start`. ``ended`` is called once, when it is over without having been cancelled."""
        self.queue = queue
        self.is_over = False
        self._receive = receive
        self._prefetch = prefetch
        self._ended = ended
        self._rpc: Rpc | None = None
        self._acks: Acks | None = None
        self._tag = ""

    async def start(self, connection: Connection) -> None:
        """Consume on a new channel of this connection. Raises BrokerError."""
        channel = await open_channel(connection)
        rpc, acks = Rpc(channel), Acks(channel)
        channel.add_on_cancel_callback(lambda _frame: self._on_cancelled(acks))
        channel.add_on_close_callback(lambda _channel, error: self._on_closed(acks, error))
        tag = f"carom.{next(_numbers)}"
        try:
            await rpc.ask(channel.basic_qos, prefetch_count=self._prefetch)
            await rpc.ask(channel.basic_consume, self.queue, partial(self._on_delivery, acks), consumer_tag=tag)
            rpc.check()
        except BrokerUnavailable:
            raise
        except NotPermitted as refused:
            raise NotPermitted(f"queue {self.queue!r} cannot be consumed from: {refused}") from refused
        except BrokerError as error:
            raise BrokerError(f"queue {self.queue!r} cannot be consumed from: {error}") from error
        except BaseException:
            rpc.close()
            raise
        if self.is_over:  # it was cancelled meanwhile: the server must not go on delivering
            rpc.close()
            return
        self._rpc, self._acks, self._tag = rpc, acks, tag

    async def cancel(self) -> None:
        """Stop taking messages; what is in our hands stays valid, and what is on its way is received still.

        It is not handed back here: up to 4.2 a broker counts that as it counts a crash.
        """
        self.is_over = True
        rpc, acks, tag = self._rpc, self._acks, self._tag
        self._rpc = None
        if rpc is None or acks is None or not rpc.channel.is_open:
            return
        try:
            await rpc.ask(_cancel, rpc.channel, tag)
        except BrokerError:  # the channel went meanwhile, and the consumer with it
            return
        acks.retire()

    async def settled(self) -> None:
        """Return when the broker has everything that was settled: it answers on a channel in order."""
        rpc, acks = self._rpc, self._acks
        if rpc is None or acks is None or not rpc.channel.is_open:
            return
        acks.flush()
        with suppress(BrokerError):  # the channel went meanwhile: the broker has taken back what was not settled
            await rpc.ask(rpc.channel.basic_qos, prefetch_count=self._prefetch)

    def end(self, reason: str) -> None:
        """It cannot go on: say so."""
        if not self.is_over:
            self.is_over = True
            if self._acks is not None:
                self._acks.retire()
            guarded(self._ended, reason)

    def _on_delivery(self, acks: Acks, _channel: Channel, method: Any, properties: bytes, body: bytes) -> None:
        acks.take(method.delivery_tag)
        delivery = RabbitDelivery(self.queue, acks, method, properties, body)
        if self.is_over and self._acks is not acks:  # cancelled before it had begun: nobody expects anything
            delivery.hand_back()
        elif is_readable(delivery):
            guarded(self._receive, delivery)

    def _on_cancelled(self, acks: Acks) -> None:
        acks.retire()
        self.end("the broker cancelled the consumer: was the queue deleted, or is its node down?")

    def _on_closed(self, acks: Acks, error: BaseException) -> None:
        """End when the server closed this channel; when the connection was lost, the subscription is restored."""
        reason = translated(error)
        if self._acks is acks and not isinstance(reason, BrokerUnavailable):
            self.end(f"the broker closed its channel: {reason}")


def is_readable(delivery: RabbitDelivery) -> bool:
    """Tell whether a message can be read. One that cannot is refused: nobody else could read it either."""
    try:
        _ = delivery.message
    except DecodeError as error:
        _log.error("a message of %s cannot be read and is refused: %s", delivery.queue, error)
        delivery.refuse()
        return False
    return True


def guarded(receive: Callable[[T], None], value: T) -> None:
    """Call back. An exception goes to the loop's handler: the library would close the connection over it."""
    try:
        receive(value)
    except Exception as error:  # noqa: BLE001 - a callback's fault must not keep messages from the others
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": "a callback of the RabbitMQ broker failed", "exception": error})


def _cancel(channel: Channel, tag: str, callback: Callable[[Any], None]) -> None:
    """Cancel a consumer. The library's own way rejects what still arrives, which since 4.3 counts as a failure."""
    channel._rpc(spec.Basic.Cancel(consumer_tag=tag), callback, [(spec.Basic.CancelOk, {"consumer_tag": tag})])  # noqa: SLF001 - the library has no other way


def name(value: str | bytes) -> str:
    """Return a key or name as text; the library leaves what is not UTF-8 as bytes."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


def _send(method: Callable[..., None], *arguments: Any, **options: Any) -> None:
    try:
        method(*arguments, **options)
    except exceptions.AMQPError:  # the channel is closing: the broker takes the messages back by itself
        _log.debug("a settlement was dropped because its channel is closing")
