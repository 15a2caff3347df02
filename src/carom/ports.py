"""The ports: what Carom asks of the world outside. Adapters implement them; the runtime knows nothing else.

Rule: expected answers are values, what the caller did not ask for is an exception of `carom.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from carom.core.effects import PublishResult
    from carom.core.lint import Needs, ServerFacts
    from carom.core.message import Message
    from carom.core.topology import Topology

Location: TypeAlias = str | Sequence[str] | Callable[[], str | Sequence[str]]
"""Where a broker is: a URL, the URLs of a cluster's hosts, or what gives either whenever it is asked."""

Mode: TypeAlias = Literal["apply", "verify", "ignore"]
"""``apply`` declares what is missing, ``verify`` only compares, ``ignore`` does nothing."""


@runtime_checkable
class Clock(Protocol):
    """Time as an argument: real in production, virtual in tests."""

    def now_ms(self) -> int:
        """Return the time of day in milliseconds since 1970."""

    def call_later(self, delay_ms: int, action: Callable[[], None]) -> Callable[[], None]:
        """Run an action later; the returned function cancels it."""

    async def sleep(self, delay_ms: int) -> None:
        """Wait."""


class Delivery(Protocol):
    """A message in our hands. It must be settled exactly once; settling again, or too late, does nothing.

    The three settling calls return at once. A delivery belongs to the connection that brought it: after a
    reconnect its settlement is dropped, because the broker delivers the message again.
    """

    @property
    def message(self) -> Message:
        """Return the message as it is on the wire, addressed as the broker delivered it."""

    @property
    def queue(self) -> str:
        """Return the queue it was taken from."""

    @property
    def redelivered(self) -> bool:
        """Tell whether the broker delivered this message before."""

    @property
    def stale(self) -> bool:
        """Tell whether the connection that brought it is gone, so that the broker has it again."""

    def ack(self) -> None:
        """Settle it: the broker may forget the message."""

    def hand_back(self) -> None:
        """Put it back into its queue."""

    def refuse(self) -> None:
        """Let the broker make it a dead letter."""


class Subscription(Protocol):
    """A running consumer of one queue."""

    async def cancel(self) -> None:
        """Stop taking messages; what is on its way is received before this returns, and nothing after.

        Deliveries already in our hands stay valid and can still be settled.
        """

    async def settled(self) -> None:
        """Return when the broker has everything that was settled so far, and a crash of ours cannot bring it back."""


@dataclass(frozen=True, slots=True)
class Depth:
    """How much is in a queue: ready to deliver, in somebody's hands, and how many consumers it has.

    ``unacked`` is None where the broker does not say.
    """

    ready: int
    unacked: int | None = None
    consumers: int = 0


class Broker(Protocol):
    """A message broker. Every implementation passes `carom.testing.contracts.BrokerContract`."""

    async def open(self) -> None:
        """Connect. Raises BrokerUnavailable or NotPermitted."""

    async def close(self) -> None:
        """Write what is still to be written, then disconnect. Unsettled deliveries go back."""

    async def declare(self, topology: Topology, mode: Mode = "apply") -> None:
        """Make the topology exist, or compare it. Raises TopologyMismatch, Unsupported or NotPermitted."""

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Publish, mandatory and confirmed; the results come in the order of the messages.

        Applies back pressure: waits while too much is unconfirmed. Never raises for a single message.
        """

    async def consume(
        self, queue: str, receive: Callable[[Delivery], None], *, prefetch: int, ended: Callable[[str], None]
    ) -> Subscription:
        """Deliver messages of a queue to ``receive``, at most ``prefetch`` unsettled at a time.

        Reconnects restore it. ``ended`` is called with a sentence when the broker ended it for good.
        """

    async def get(self, queue: str) -> Delivery | None:
        """Take one message if there is one ready."""

    async def depths(self, queues: Iterable[str]) -> dict[str, Depth | None]:
        """Return how deep the queues are; None for one that does not exist."""


@runtime_checkable
class Inspectable(Protocol):
    """A broker that can be asked about itself; not every one can."""

    async def inspect(self, queues: Sequence[str], needs: Needs) -> ServerFacts:
        """Return what the server says of itself, of these queues, and of what this user may do."""


@dataclass(frozen=True, slots=True)
class ConnectionUp:
    """A connection to the broker stands."""

    broker: str


@dataclass(frozen=True, slots=True)
class ConnectionDown:
    """A connection to the broker is gone; it is being restored."""

    broker: str
    reason: str
    retry_in_ms: int


@dataclass(frozen=True, slots=True)
class ConnectionBlocked:
    """The broker has stopped taking messages because it is short of memory or disk."""

    broker: str
    reason: str


@dataclass(frozen=True, slots=True)
class ConnectionUnblocked:
    """The broker takes messages again."""

    broker: str


@dataclass(frozen=True, slots=True)
class ConsumerEnded:
    """The broker ended a consumer: its queue was deleted, or it was cancelled from the outside."""

    queue: str
    reason: str


BrokerEvent: TypeAlias = ConnectionUp | ConnectionDown | ConnectionBlocked | ConnectionUnblocked | ConsumerEnded
Report: TypeAlias = Callable[[BrokerEvent], None]


class Observer(Protocol):
    """Somebody who wants to know. Called synchronously with every event of `carom.runtime.events`."""

    def __call__(self, event: object, /) -> None:
        """Take notice; an exception from here is logged and changes nothing."""
