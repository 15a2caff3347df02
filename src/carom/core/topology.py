"""Topology: exchanges, queues and bindings as one value that brokers declare, interpret, show and compare.

Rule: a topology that contradicts itself never reaches a broker; `validate` names everything wrong at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Argument: TypeAlias = str | int | bool
Arguments: TypeAlias = tuple[tuple[str, Argument], ...]
ExchangeKind: TypeAlias = Literal["direct", "topic", "fanout", "headers"]
DEFAULT_EXCHANGE = ""
"""The exchange without a name: it routes to the queue whose name is the routing key."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange. ``alternate`` takes what no binding wants."""

    name: str
    kind: ExchangeKind = "topic"
    durable: bool = True
    internal: bool = False
    alternate: str | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue with its broker arguments, sorted by name."""

    name: str
    durable: bool = True
    arguments: Arguments = ()

    def argument(self, name: str) -> Argument | None:
        """Return one argument, or None."""
        return dict(self.arguments).get(name)

    @property
    def kind(self) -> str:
        """Return ``quorum``, ``classic`` or ``stream``."""
        return str(self.argument("x-queue-type") or "classic")

    @property
    def dead_letter_exchange(self) -> str | None:
        """Return where its dead letters go; None means nowhere."""
        value = self.argument("x-dead-letter-exchange")
        return None if value is None else str(value)

    @property
    def dead_letter_key(self) -> str | None:
        """Return the routing key its dead letters get; None keeps their own."""
        value = self.argument("x-dead-letter-routing-key")
        return None if value is None else str(value)

    @property
    def ttl_ms(self) -> int | None:
        """Return how long a message may wait here before it expires."""
        value = self.argument("x-message-ttl")
        return value if isinstance(value, int) else None


@dataclass(frozen=True, slots=True)
class Binding:
    """From a source exchange to a queue, or to another exchange when ``to`` says so."""

    source: str
    target: str
    key: str = ""
    to: Literal["queue", "exchange"] = "queue"
    arguments: Arguments = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """What has to exist on a broker. Order is kept for people; equality and union go by name."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()


def arguments(values: Mapping[str, Argument | None]) -> Arguments:
    """Return broker arguments in the one order that makes equal things equal; None means not set."""
    return tuple(sorted((name, value) for name, value in values.items() if value is not None))


def quorum(name: str, **options: Argument | None) -> Queue:
    """Return a quorum queue; ``dead_letter_exchange="x"`` becomes the argument ``x-dead-letter-exchange``."""
    named = {"x-" + option.replace("_", "-"): value for option, value in options.items()}
    return Queue(name, arguments=arguments({"x-queue-type": "quorum", **named}))


def at_least_once(dead_letter_exchange: str, dead_letter_routing_key: str | None = None) -> dict[str, Argument | None]:
    """Return the options of a quorum queue that never loses a dead letter on its way."""
    return {
        "dead_letter_exchange": dead_letter_exchange,
        "dead_letter_routing_key": dead_letter_routing_key,
        "dead_letter_strategy": "at-least-once",
        "overflow": "reject-publish",
    }
