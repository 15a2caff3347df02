"""Publishing with confirms: a window, a deadline, and every return matched to its message.

Rule: a result is never better than the broker's word. What was written when the connection went is written again,
with the same id, as soon as there is a channel; when its deadline comes first, the result is Unknown.
Rule: a message that makes the server close the channel or the connection (no such exchange, no permission, too large)
condemns no other: what was in flight is written again one by one until it is clear which one it was.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

from pika import spec
from pika.channel import Channel

from carom.brokers.rabbitmq.channels import BLAMING, NOT_FOUND, PRECONDITION_FAILED, ChannelClosed
from carom.brokers.rabbitmq.consuming import name
from carom.brokers.rabbitmq.content import decode, encode
from carom.core.effects import CONFIRMED, Nacked, PublishResult, Returned, Unknown
from carom.core.message import Message
from carom.errors import BrokerUnavailable, NotPermitted
from carom.ports import Clock

SWEEP_MS = 500
UNSENT_BYTES = 16 * 1024 * 1024
"""While so much waits to be sent, nothing more is written."""
STUBBORN_MS = 5_000
"""After refusing for so long a channel is replaced, in a moment when nothing is in flight. A quorum queue that was
full refuses what comes over a channel for ever, even empty, when its limit was lifted by a policy (3.10.8)."""


class _Batch:
    """The results of one call, filled as they come."""

    __slots__ = ("deadline_ms", "done", "left", "messages", "results", "written")

    def __init__(self, messages: Sequence[Message], deadline_ms: int) -> None:
        self.messages = messages
        self.results: list[PublishResult] = [Unknown()] * len(messages)
        self.left = len(messages)
        self.deadline_ms = deadline_ms
        self.written = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, index: int, result: PublishResult) -> None:
        self.results[index] = result
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(None)


class _Flight:
    """A message between us and its confirm."""

    __slots__ = ("batch", "index", "returned")

    def __init__(self, batch: _Batch, index: int) -> None:
        self.batch = batch
        self.index = index
        self.returned: Returned | None = None

    @property
    def message(self) -> Message:
        return self.batch.messages[self.index]


class Publishing:
    """The publishing side of a broker, across reconnects."""

    def __init__(self, clock: Clock, window: int, deadline_ms: int, reopen: Callable[[], None]) -> None:
        """Publish nothing until a channel is attached. ``reopen`` is called when a channel is of no more use."""
        self._clock = clock
        self._window = window
        self._deadline_ms = deadline_ms
        self._reopen = reopen
        self._channel: Channel | None = None
        self._tag = 0
        self._flights: OrderedDict[int, _Flight] = OrderedDict()
        self._again: deque[_Flight] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._one_by_one = False
        self._refused_at_ms: int | None = None
        self._is_stubborn = False
        self._paused = ""
        self._sweeping: Callable[[], None] | None = None

    # -- for the broker ------------------------------------------------------------------------------------

    async def publish(self, messages: Sequence[Message]) -> list[PublishResult]:
        """Publish; waits for room in the window, and for every result until its deadline."""
        if not messages:
            return []
        batch = _Batch(messages, self._clock.now_ms() + self._deadline_ms)
        for index in range(len(messages)):
            if not self._has_room() and not await self._room(batch):
                self._give_up(batch, index)
                break
            self._write(_Flight(batch, index))
        self._watch()
        await batch.done
        return batch.results

    def attach(self, channel: Channel) -> None:
        """Publish on this channel, which is in confirm mode, beginning with what is to be written again."""
        self._channel = channel
        self._tag = 0
        self._refused_at_ms, self._is_stubborn = None, False
        channel.add_on_return_callback(self._on_return)
        self._go_on()

    def detach(self, reason: BaseException) -> None:
        """The channel is gone. What was in flight is written again, unless it is to blame itself."""
        self._channel = None
        flights = list(self._flights.values())
        self._flights.clear()
        if isinstance(reason, ChannelClosed | NotPermitted) and flights:
            if len(flights) == 1:
                flight = flights.pop()
                flight.batch.settle(flight.index, _blamed(reason))
            self._one_by_one = True
        self._again.extendleft(reversed(flights))

    def pause(self, reason: str) -> None:
        """The broker has stopped reading: write nothing more until `resume`."""
        self._paused = reason

    def resume(self) -> None:
        """The broker reads again, or another one will, or the closed one is opened."""
        self._paused = ""
        self._go_on()

    def close(self) -> None:
        """Nobody will confirm anything any more."""
        self._channel = None
        for flight in [*self._flights.values(), *self._again]:
            flight.batch.settle(flight.index, Unknown("the broker was closed"))
        self._flights.clear()
        self._again.clear()
        self._paused = _CLOSED
        self._wake()
        if self._sweeping is not None:
            self._sweeping()
            self._sweeping = None

    def confirmed(self, frame: Any) -> None:
        """Take the broker's word: an ack or a nack, for one message or for all up to it."""
        method = frame.method
        tag, flights = method.delivery_tag, self._flights
        nacked = isinstance(method, spec.Basic.Nack)
        if method.multiple:
            while flights and (first := next(iter(flights))) <= tag:
                self._settle(flights.pop(first), nacked=nacked)
        elif (flight := flights.pop(tag, None)) is not None:
            self._settle(flight, nacked=nacked)
        if self._is_stubborn and not flights:
            self._reopen()
        if self._again or self._waiters:
            self._go_on()

    # -- inside --------------------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        return not self._again and self._may_write()

    def _may_write(self) -> bool:
        channel = self._channel
        if channel is None or not channel.is_open or self._paused or self._is_stubborn:
            return False
        limit = 1 if self._one_by_one else self._window
        return len(self._flights) < limit and channel.connection.unsent < UNSENT_BYTES

    def _write(self, flight: _Flight) -> None:
        message = flight.message
        channel: Any = self._channel
        try:
            channel.connection.publish(
                channel.channel_number, message.exchange, message.routing_key, encode(message), message.body
            )
        except (ValueError, TypeError, AttributeError) as error:  # it is no message that AMQP could carry
            flight.batch.settle(flight.index, Nacked(f"the message cannot be written: {error}", lasting=True))
        else:
            self._tag += 1
            self._flights[self._tag] = flight

    def _settle(self, flight: _Flight, *, nacked: bool) -> None:
        if flight.returned is not None:
            flight.batch.settle(flight.index, flight.returned)
        else:
            flight.batch.settle(flight.index, _REFUSED if nacked else CONFIRMED)
            if nacked:
                self._note_refusal()

    def _note_refusal(self) -> None:
        now_ms = self._clock.now_ms()
        if self._refused_at_ms is None:
            self._refused_at_ms = now_ms
        elif now_ms - self._refused_at_ms > STUBBORN_MS:
            self._is_stubborn = True

    def _on_return(self, _channel: Channel, method: Any, properties: bytes, _body: bytes) -> None:
        """Mark the message that came back: it precedes its own ack, and an id alone does not tell which it is."""
        exchange, routing_key = name(method.exchange), name(method.routing_key)
        identity = decode(properties, b"", exchange, routing_key).id
        for flight in self._flights.values():
            message = flight.message
            if (
                flight.returned is None
                and message.id == identity
                and message.routing_key == routing_key
                and message.exchange == exchange
            ):
                flight.returned = Returned(method.reply_code, name(method.reply_text))
                return

    def _go_on(self) -> None:
        while self._again and self._may_write():
            self._write(self._again.popleft())
        if not self._again and not self._flights:
            self._one_by_one = False
        if self._waiters and self._has_room() and len(self._flights) <= self._window // 2:
            self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _room(self, batch: _Batch) -> bool:
        """Wait for room; False when the batch's deadline comes first."""
        self._watch()
        while not self._has_room():
            left_ms = batch.deadline_ms - self._clock.now_ms()
            if left_ms <= 0 or self._paused == _CLOSED:
                return False
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            cancel = self._clock.call_later(left_ms, lambda one=waiter: one.done() or one.set_result(None))  # type: ignore[misc]  # a default binds the loop's value
            try:
                await waiter
            finally:
                cancel()
        return True

    def _give_up(self, batch: _Batch, first: int) -> None:
        why = self._paused or (
            "the window is full of unconfirmed messages" if self._channel else "there is no connection"
        )
        if first == 0:
            raise BrokerUnavailable(f"nothing was published within {self._deadline_ms} ms: {why}")
        for index in range(first, len(batch.messages)):
            batch.settle(index, Unknown(f"not published: {why}"))

    def _watch(self) -> None:
        if self._sweeping is None and (self._flights or self._again):
            self._sweeping = self._clock.call_later(SWEEP_MS, self._sweep)

    def _sweep(self) -> None:
        """Answer Unknown for what is over its deadline; a channel that keeps us waiting so long is given up."""
        self._sweeping = None
        now_ms = self._clock.now_ms()
        late = [tag for tag, flight in self._flights.items() if flight.batch.deadline_ms <= now_ms]
        for tag in late:
            flight = self._flights.pop(tag)
            flight.batch.settle(flight.index, Unknown(f"no confirm within {self._deadline_ms} ms"))
        waiting, self._again = self._again, deque()
        for flight in waiting:
            if flight.batch.deadline_ms <= now_ms:
                flight.batch.settle(flight.index, Unknown(f"no confirm within {self._deadline_ms} ms"))
            else:
                self._again.append(flight)
        if late:
            self._reopen()
        self._go_on()
        self._watch()


_CLOSED = "closed"
_REFUSED = Nacked("a queue it goes to is full or broken")


def _blamed(reason: ChannelClosed | NotPermitted) -> PublishResult:
    if isinstance(reason, NotPermitted):
        return Nacked(str(reason))
    if reason.code == NOT_FOUND:
        return Returned(reason.code, reason.words)
    return Nacked(reason.words, lasting=reason.code == PRECONDITION_FAILED or reason.code in BLAMING)
