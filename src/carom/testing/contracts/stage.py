"""Stage: what a broker's contract plays on: the hooks an adapter gives, and the verbs its tests are written in.

Rule: a test knows of time only through `wait` and `now_ms`, and of names only through `name`, so that the same
test runs on virtual time in memory and in real time on a server shared with others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias
from uuid import uuid4

import pytest

from carom.core.effects import Confirmed
from carom.core.message import Message
from carom.core.topology import Argument, Binding, Exchange, ExchangeKind, Queue, Topology, arguments
from carom.ports import Broker, Delivery, Subscription
from carom.testing.contracts.playing import Playing

Part: TypeAlias = Exchange | Queue | Binding
KINDS = ("quorum", "classic")
QUIET_MS = 200
"""How long nothing must happen before a test believes that nothing will."""
COUNTS = ("x-delivery-count", "x-acquired-count")
"""Headers in which brokers count deliveries; they come and go and are no part of what was published."""


@dataclass(slots=True)
class Listening:
    """A subscription of a test: what it was given, and whether the broker ended it."""

    deliveries: list[Delivery] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    subscription: Subscription | None = None
    ack: bool = False

    def receive(self, delivery: Delivery) -> None:
        """Take a delivery, and settle it when that is wanted."""
        self.deliveries.append(delivery)
        if self.ack:
            delivery.ack()

    @property
    def bodies(self) -> list[bytes]:
        """Return the bodies that came, in order."""
        return [delivery.message.body for delivery in self.deliveries]

    async def cancel(self) -> None:
        """Stop listening."""
        if self.subscription is not None:
            await self.subscription.cancel()


class Stage(Playing):
    """The hooks and knobs of a broker's contract. Async tests of subclasses run in an event loop of their own.

    A test gets a fresh instance and a fresh prefix for its names. What it opened is closed, in reverse order, and
    `tear_down` is told what it declared, whether it failed or not.
    """

    sees_bindings: bool = True
    """Whether ``verify`` notices a missing binding; AMQP by itself cannot, RabbitMQ needs its management API."""
    counts_hand_backs: bool = True
    """Whether handing back counts against the delivery limit; on RabbitMQ 4.3 a nack no longer does, a loss does."""
    pinned_retry_ms: int | None = None
    """When an at-least-once dead letter that could not be placed is tried again (RabbitMQ: 180,000). None leaves out
    what would have to wait for it, where time is real."""

    prefix: str
    _declared: list[Topology]

    # --- hooks

    def make_broker(self) -> Broker:
        """Return a new broker, not yet open. Within one test, all of them reach the same server and its queues."""
        raise NotImplementedError("a broker contract needs make_broker(): return a new, unopened broker")

    async def drop_connection(self, broker: Broker) -> None:
        """Take the connection from a broker without asking it, as a broken network does."""
        raise NotImplementedError("a broker contract needs drop_connection(broker): break its connection")

    async def delete_queue(self, broker: Broker, queue: str) -> None:  # noqa: ARG002 - parameters of a hook
        """Delete a queue from outside. The port cannot, so tests that need it are skipped where this is not given."""
        pytest.skip("the adapter gives no way to delete a queue: override delete_queue(broker, queue)")

    async def tear_down(self, declared: Sequence[Topology]) -> None:
        """Clean up after a test: on a shared server, delete what was declared. All brokers are closed by then."""

    def _begin(self) -> None:
        self.prefix = f"contract.{uuid4().hex[:12]}"
        self._declared = []

    async def _end(self) -> None:
        await self.tear_down(tuple(self._declared))

    # --- naming

    def name(self, short: str) -> str:
        """Return a name of this test alone."""
        return f"{self.prefix}.{short}"

    def queue(self, short: str, kind: str = "quorum", **options: Argument | None) -> Queue:
        """Return a queue; ``message_ttl=100`` is its argument ``x-message-ttl``."""
        named = {"x-" + option.replace("_", "-"): value for option, value in options.items()}
        return Queue(self.name(short), arguments=arguments({"x-queue-type": kind, **named}))

    def exchange(self, short: str, kind: ExchangeKind = "direct", alternate: str | None = None) -> Exchange:
        """Return an exchange of this test alone."""
        return Exchange(self.name(short), kind, alternate=alternate)

    # --- acting

    async def connect(self) -> Broker:
        """Make and open a broker; it is closed when the test ends."""
        broker = self.make_broker()
        await broker.open()
        self._open.push_async_callback(broker.close)
        return broker

    async def declare(self, broker: Broker, *parts: Part) -> None:
        """Declare parts of a topology and remember them for `tear_down`."""
        topology = gather(*parts)
        self._declared.append(topology)
        await broker.declare(topology)

    async def publish(self, broker: Broker, *messages: Message) -> None:
        """Publish messages that all must be confirmed."""
        results = await broker.publish(messages)
        assert [type(result) for result in results] == [Confirmed] * len(messages), f"not confirmed: {results}"

    async def take(self, broker: Broker, queue: Queue) -> Delivery:
        """Get one message, waiting for it; it is not settled."""
        taken: list[Delivery] = []

        async def came() -> bool:
            delivery = await broker.get(queue.name)
            taken.extend([delivery] if delivery else [])
            return bool(taken)

        await self.until(came, f"a message in {queue.name}")
        return taken[0]

    async def receive(self, broker: Broker, queue: Queue, count: int = 1) -> list[Message]:
        """Get and acknowledge as many messages, waiting for them."""
        messages = []
        for _ in range(count):
            delivery = await self.take(broker, queue)
            delivery.ack()
            messages.append(delivery.message)
        return messages

    async def drain(self, broker: Broker, queue: Queue) -> list[bytes]:
        """Get and acknowledge all that is in a queue now; return the bodies."""
        bodies = []
        while delivery := await broker.get(queue.name):
            delivery.ack()
            bodies.append(delivery.message.body)
        return bodies

    async def listen(self, broker: Broker, queue: Queue, *, prefetch: int = 100, ack: bool = False) -> Listening:
        """Consume a queue until the test ends, keeping what comes."""
        listening = Listening(ack=ack)
        listening.subscription = await broker.consume(
            queue.name, listening.receive, prefetch=prefetch, ended=listening.ended.append
        )
        return listening

    async def ready(self, broker: Broker, queue: Queue) -> int:
        """Return how many messages of a queue are ready; it must exist."""
        depth = (await broker.depths([queue.name]))[queue.name]
        assert depth is not None, f"{queue.name} does not exist"
        return depth.ready

    # --- waiting

    async def until_ready(self, broker: Broker, queue: Queue, count: int) -> None:
        """Let time pass until so many messages of a queue are ready."""

        async def deep() -> bool:
            return await self.ready(broker, queue) == count

        await self.until(deep, f"{count} ready in {queue.name}")

    async def until_came(self, listening: Listening, count: int) -> None:
        """Let time pass until so many deliveries came in all."""
        await self.until(
            lambda: len(listening.deliveries) >= count, f"{count} deliveries, {len(listening.deliveries)} came"
        )

    async def stay_empty(self, broker: Broker, queue: Queue, ms: int = QUIET_MS) -> None:
        """Let time pass and find the queue empty at its end."""
        await self.wait(ms)
        assert await self.ready(broker, queue) == 0, f"{queue.name} should have stayed empty"
        assert await broker.get(queue.name) is None, f"{queue.name} should have stayed empty"


def gather(*parts: Part) -> Topology:
    """Return a topology of loose parts."""
    return Topology(
        exchanges=tuple(part for part in parts if isinstance(part, Exchange)),
        queues=tuple(part for part in parts if isinstance(part, Queue)),
        bindings=tuple(part for part in parts if isinstance(part, Binding)),
    )


def bind(
    source: Exchange, target: Queue | Exchange, key: str = "", matching: Mapping[str, Argument] | None = None
) -> Binding:
    """Return a binding; ``matching`` are the arguments of a headers exchange."""
    kind: Literal["queue", "exchange"] = "queue" if isinstance(target, Queue) else "exchange"
    return Binding(source.name, target.name, key, kind, arguments(matching or {}))


def to(target: Exchange | Queue, key: str = "", body: bytes = b"", **fields: Any) -> Message:
    """Return a message for an exchange, or straight for a queue through the default exchange."""
    if isinstance(target, Queue):
        return Message(body=body, exchange="", routing_key=target.name, **fields)
    return Message(body=body, exchange=target.name, routing_key=key, **fields)


def published(message: Message) -> Message:
    """Return a delivered message as it was published: without what the broker counts on it."""
    return replace(message, headers={key: value for key, value in message.headers.items() if key not in COUNTS})


def deaths(message: Message) -> list[Mapping[str, object]]:
    """Return the broker's history of a dead letter, newest first."""
    history = message.headers.get("x-death")
    assert isinstance(history, list), f"a dead letter has an x-death list, this one has {history!r}"
    return history
