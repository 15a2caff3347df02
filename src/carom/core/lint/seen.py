"""What a RabbitMQ has, as one neutral value: exchanges, queues, bindings and policies of each vhost.

Rule: nothing is judged here and nothing is filled in; what nobody said is None or empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from carom.core.lint.versions import UNKNOWN, Version

Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a running server says of a queue."""

    messages: int = 0
    consumers: int = 0
    without_ack: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange, of any kind, with its arguments."""

    name: str
    kind: str = "topic"
    durable: bool = True
    internal: bool = False
    arguments: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue with its arguments as they were declared."""

    name: str
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: Values = field(default_factory=dict)
    facts: Facts | None = None

    @property
    def kind(self) -> str:
        """Return ``quorum``, ``classic`` or ``stream``."""
        return str(self.arguments.get("x-queue-type") or "classic")


@dataclass(frozen=True, slots=True)
class Binding:
    """From an exchange to a queue or another exchange."""

    source: str
    target: str
    key: str = ""
    to: str = "queue"
    arguments: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy, or one of the operator's."""

    name: str
    pattern: str
    definition: Values
    priority: int = 0
    apply_to: str = "all"
    operator: bool = False


@dataclass(frozen=True, slots=True)
class Vhost:
    """A vhost and what is in it."""

    name: str = "/"
    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()
    policies: tuple[Policy, ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """A server. ``flags`` has the feature flags that are known to be on or off."""

    version: Version = UNKNOWN
    vhosts: tuple[Vhost, ...] = ()
    flags: Mapping[str, bool] = field(default_factory=dict)
