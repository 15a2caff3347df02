"""The harness: an app as it is, on an embedded broker and virtual time.

    async with Harness(app) as h:
        await h.publish("order.created", {"id": 1})
        await h.advance("30m")                      # milliseconds of real time
        assert h.dead("billing.charge") == ()

Rule: nothing of the app is replaced but the broker's address and the clock. What passes here goes the same way
on RabbitMQ, because the embedded broker passes the same contract.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from carom.brokers.embedded.broker import MemoryBroker
from carom.core.durations import Duration, milliseconds
from carom.core.effects import PublishResult
from carom.core.message import Headers, Message
from carom.core.routing import matches
from carom.core.topology import DEFAULT_EXCHANGE
from carom.core.wire import Address
from carom.errors import ConfigurationError
from carom.runtime import events
from carom.runtime.app import App
from carom.runtime.publisher import Emit
from carom.testing.clock import VirtualClock

TURNS = 12
"""How often the event loop goes round without anything happening before it counts as quiet."""
BREATH = 0.001


class Harness:
    """Runs one app. Time stands still except in `advance`."""

    def __init__(self, app: App, *, patience: Duration = "2s") -> None:
        """Start nothing yet.

        ``patience`` is how long, in real time, a handler may go without doing anything before the harness lets
        virtual time go on without it. Only a handler that hangs costs it.
        """
        self.app = app
        self.clock: VirtualClock = VirtualClock()
        self.broker: MemoryBroker = MemoryBroker(self.clock, app.tell)
        self.events: list[object] = []
        self._patience = milliseconds(patience) / 1000
        self._hanging = 0

    async def __aenter__(self) -> Self:
        """Start the app."""
        self.app.observe(self._note)
        try:
            await self.app.start(broker=self.broker, clock=self.clock)
            await self.settle()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the app at once; what still runs is interrupted."""
        try:
            await self.app.stop(grace=0)
        finally:
            self.app.unobserve(self._note)

    # -- acting --------------------------------------------------------------------------------------------

    async def publish(
        self,
        routing_key: str,
        payload: Any = None,
        *,
        delay: Duration | None = None,
        headers: Headers | None = None,
        correlation_id: str | None = None,
    ) -> Message:
        """Publish as the app does, and wait until everything that follows at once has happened."""
        message = await self.app.publish(
            routing_key, payload, delay=delay, headers=headers, correlation_id=correlation_id
        )
        await self.settle()
        return message

    async def publish_many(self, items: Sequence[Emit | tuple[Any, ...]]) -> list[Message]:
        """Publish as the app does, and wait until everything that follows at once has happened."""
        messages = await self.app.publish_many(items)
        await self.settle()
        return messages

    async def put(self, message: Message) -> PublishResult:
        """Publish a message exactly as it is given, as somebody else on the broker would; return what came of it."""
        (result,) = await self.broker.publish((message,))
        await self.settle()
        return result

    async def advance(self, duration: Duration) -> None:
        """Let virtual time pass. Whatever is due on the way happens in its order, at its time."""
        until_ms = self.clock.now_ms() + milliseconds(duration)
        await self.settle()
        while self.clock.step(until_ms):
            await self.settle()
        self.clock.advance_to(until_ms)
        await self.settle()

    async def settle(self) -> None:
        """Wait until nothing more happens without time passing: every handler has ended, or hangs."""
        seen: tuple[int, ...] = ()
        quiet = 0
        deadline = 0.0
        while True:
            await asyncio.sleep(0 if quiet < TURNS else BREATH)
            now = (len(self.events), self.app.busy, self._running(), int(self.broker.idle))
            quiet += 1
            if now != seen:
                seen, quiet, deadline = now, 0, time.monotonic() + self._patience
            elif quiet >= TURNS and self.broker.idle and self._running() <= self._hanging:
                self._hanging = self._running()
                return
            elif time.monotonic() > deadline:
                self._hanging = self._running()
                if not self.broker.idle:  # somebody changed the engine behind the broker's back
                    return

    # -- asking --------------------------------------------------------------------------------------------

    def handled(self, queue: str) -> tuple[Message, ...]:
        """Return the messages that a queue's handler has finished, in their order."""
        return tuple(one.message for one in self._of(events.Handled, queue))

    def attempts(self, queue: str) -> tuple[Message, ...]:
        """Return the messages that were handed to a queue's handler, once for every attempt."""
        return tuple(one.message for one in self._of(events.Received, queue))

    def discarded(self, queue: str) -> tuple[Message, ...]:
        """Return the messages that a queue's handler discarded."""
        return tuple(one.message for one in self._of(events.Discarded, queue))

    def dead(self, queue: str) -> tuple[Message, ...]:
        """Return the dead letters of a queue, as they are on the broker."""
        return self.broker.engine.contents(self._destination(self.app.layout.dead_address(queue)))

    def emitted(self, key: str) -> tuple[Message, ...]:
        """Return the messages that the app published and the broker confirmed; the key may be a topic pattern."""
        published = (event.message for event in self.events if isinstance(event, events.Published))
        return tuple(message for message in published if matches("topic", key, message.routing_key))

    def waiting(self) -> tuple[Message, ...]:
        """Return the messages that wait for their next attempt; the routing key says for which queue."""
        delays = (queue.name for queue in self.app.topology.queues if queue.ttl_ms is not None)
        return tuple(message for name in delays for message in self.broker.engine.contents(name))

    def ready(self, queue: str) -> tuple[Message, ...]:
        """Return the messages that are in a queue and in nobody's hands."""
        return self.broker.engine.contents(queue)

    def _of(self, kind: type[events.Delivered], queue: str) -> list[events.Delivered]:
        if queue not in {one.queue for one in self.app.listeners}:
            raise ConfigurationError(f"the app has no listener on queue {queue!r}")
        return [event for event in self.events if isinstance(event, kind) and event.queue == queue]

    def _destination(self, address: Address) -> str:
        if address.exchange == DEFAULT_EXCHANGE and self.app.topology.queue(address.routing_key):
            return address.routing_key
        for binding in self.app.topology.bindings:
            if (binding.source, binding.key) == (address.exchange, address.routing_key):
                return binding.target
        raise ConfigurationError(f"the app has no listener on queue {address.routing_key!r}")

    def _running(self) -> int:
        return sum(one.running for one in self.app.consumers)

    def _note(self, event: object) -> None:
        self.events.append(event)
