"""Taking messages one at a time, with ``basic.get``.

Rule: each queue has a channel of its own here, because a queue that does not exist closes the channel it is asked on,
and with it would go what was taken from others.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pika import exceptions, spec
from pika.channel import Channel

from carom.brokers.rabbitmq.channels import answer, fail, translated
from carom.brokers.rabbitmq.consuming import Acks, RabbitDelivery, is_readable
from carom.errors import BrokerError, BrokerUnavailable, NotPermitted


class Taker:
    """Takes messages from one queue on one channel."""

    def __init__(self, queue: str, channel: Channel) -> None:
        """Ask nothing yet."""
        self._acks = Acks(channel)
        self._queue = queue
        self._channel = channel
        self._lock = asyncio.Lock()
        self._answer: asyncio.Future[RabbitDelivery | None] | None = None
        self._is_wanted = False
        channel.add_callback(self._on_empty, [spec.Basic.GetEmpty], one_shot=False)
        channel.add_on_close_callback(self._on_closed)

    @property
    def is_usable(self) -> bool:
        """Tell whether it can be asked."""
        return bool(self._channel.is_open)

    async def take(self) -> RabbitDelivery | None:
        """Return a message, or None when none is ready. Raises BrokerError."""
        async with self._lock:
            if self._answer is not None and not self._answer.done():  # somebody stopped waiting for it
                await asyncio.wait([self._answer])
            while (delivery := await self._ask()) is not None:
                if is_readable(delivery):
                    return delivery
            return None

    async def _ask(self) -> RabbitDelivery | None:
        self._answer = asyncio.get_running_loop().create_future()
        self._answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._is_wanted = True
        try:
            self._channel.basic_get(self._queue, self._on_message)
            return await asyncio.shield(self._answer)
        except asyncio.CancelledError:
            self._is_wanted = False
            if self._answer.done() and not self._answer.exception() and (delivery := self._answer.result()):
                delivery.hand_back()
            raise
        except BrokerUnavailable:
            raise
        except NotPermitted as refused:
            raise NotPermitted(f"no message can be taken from {self._queue!r}: {refused}") from refused
        except (BrokerError, exceptions.AMQPError, ValueError) as error:
            self._answer.cancel()
            if self._channel.is_open:  # what it said is not known, so neither is what would answer the next
                self._channel.close()
            raise BrokerError(f"no message can be taken from {self._queue!r}: {error}") from error

    def _on_message(self, _channel: Channel, method: Any, properties: bytes, body: bytes) -> None:
        self._acks.take(method.delivery_tag)
        delivery = RabbitDelivery(self._queue, self._acks, method, properties, body)
        if not self._is_wanted:
            delivery.hand_back()
        if self._answer is not None:
            answer(self._answer, delivery)

    def _on_empty(self, _frame: Any) -> None:
        if self._answer is not None:
            answer(self._answer, None)

    def _on_closed(self, _channel: Channel, error: BaseException) -> None:
        if self._answer is not None:
            fail(self._answer, translated(error))
