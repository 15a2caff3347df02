"""Channels as awaitables: opening one, asking something of it, and what it means when the server closes it.

Rule: a channel that the server closes fails whatever waits for an answer on it, at once and with the server's words.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from pika import exceptions
from pika.channel import Channel

from carom.brokers.rabbitmq.frames import Connection
from carom.errors import BrokerError, BrokerUnavailable, NotPermitted

NOT_FOUND, ACCESS_REFUSED, PRECONDITION_FAILED, LOCKED = 404, 403, 406, 405
BLAMING = frozenset({501, 502, 503, 504, 505, 540, 541})
"""Codes with which the server closes a whole connection over one frame of ours."""


class ChannelClosed(BrokerError):
    """The server closed a channel over what was asked of it, with its code and its words."""

    def __init__(self, code: int, words: str) -> None:
        """Keep both."""
        self.code = code
        self.words = words
        super().__init__(f"{code} {words}")


def answer(future: asyncio.Future[Any], value: Any) -> None:
    """Give a future its value, unless somebody was faster or has stopped waiting."""
    if not future.done():
        future.set_result(value)


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Give a future its error, unless somebody was faster or has stopped waiting."""
    if not future.done():
        future.set_exception(error)


class Rpc:
    """One channel on which one question after another is asked."""

    def __init__(self, channel: Channel) -> None:
        """Watch the channel for being closed."""
        self.channel = channel
        self._waiting: asyncio.Future[Any] | None = None
        self._closed: BrokerError | None = None
        channel.add_on_close_callback(self._on_closed)

    async def ask(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a method of the channel that takes a callback, and return what the server answers."""
        self.check()
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting = waiting
        try:
            method(*arguments, callback=lambda value: answer(waiting, value), **options)
        except (exceptions.ChannelWrongStateError, exceptions.ConnectionWrongStateError) as error:
            raise BrokerUnavailable(f"the channel is closed: {error}") from error
        except (exceptions.AMQPError, ValueError, struct.error) as error:
            raise BrokerError(f"it cannot be said in AMQP: {error}") from error
        try:
            return await waiting
        finally:
            self._waiting = None

    def check(self) -> None:
        """Raise what the channel was closed with, if it was."""
        if self._closed is not None:
            raise self._closed

    def close(self) -> None:
        """Close the channel, if it still is open."""
        if self.channel.is_open:
            self.channel.close()

    def _on_closed(self, _channel: Channel, error: Exception) -> None:
        self._closed = translated(error)
        if self._waiting is not None:
            fail(self._waiting, self._closed)


async def open_channel(connection: Connection) -> Channel:
    """Open a channel. Raises BrokerUnavailable when there is no connection, or it is lost meanwhile."""
    opened: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()

    def closed(_channel: Channel, error: Exception) -> None:
        fail(opened, BrokerUnavailable(f"the connection was lost while a channel was opened: {error}"))

    try:
        channel = connection.channel(on_open_callback=lambda one: answer(opened, one))
    except exceptions.AMQPError as error:
        raise BrokerUnavailable(f"RabbitMQ opens no channel: {error}") from error
    channel.add_on_close_callback(closed)
    try:
        return await opened
    except asyncio.CancelledError:  # nobody will ever use it
        if not (channel.is_closing or channel.is_closed):
            channel.close()
        raise


def translated(error: BaseException) -> BrokerError:
    """Return why a channel was closed, in our own terms.

    When the server closes the whole connection over a frame, that is told like a channel closed over a request.
    """
    code = int(getattr(error, "reply_code", 0) or 0)
    words = str(getattr(error, "reply_text", ""))
    if isinstance(error, exceptions.ConnectionClosedByBroker) and code in BLAMING:
        return ChannelClosed(code, words)
    if not isinstance(error, exceptions.ChannelClosedByBroker):
        return BrokerUnavailable(f"the connection was lost: {error}")
    if code == ACCESS_REFUSED:
        return NotPermitted(f"RabbitMQ refuses it: {words}. Grant the permission with 'rabbitmqctl set_permissions'")
    return ChannelClosed(code, words)
