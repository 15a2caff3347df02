"""The ports: what Carom asks of the world outside. Adapters implement them; the runtime knows nothing else.

Rule: expected answers are values, what the caller did not ask for is an exception of `carom.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from carom.core.relaying import PATIENCE

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from carom.core.durations import Duration
    from carom.core.effects import PublishResult
    from carom.core.lint import Inventory, Needs, ServerFacts
    from carom.core.message import Message
    from carom.core.relaying import Backlog, Entry, Held, Mark, Patience, Row, State
    from carom.core.topology import Binding, Topology

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

    def fail(self) -> None:
        """Put it back into its queue as a failed attempt; a queue that delays by itself counts it and makes it wait."""


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


@runtime_checkable
class Observable(Protocol):
    """A server that can be asked for everything in it."""

    async def observe(self) -> Inventory:
        """Return exchanges, queues, bindings and policies. Raises ConfigurationError where nobody can be asked."""


@runtime_checkable
class Changeable(Observable, Protocol):
    """A broker from which things can be taken away. What is gone already is no error."""

    async def unbind(self, binding: Binding) -> None:
        """Remove a binding."""

    async def remove_queue(self, queue: str) -> None:
        """Remove a queue, whatever is in it: whoever asks has made sure that nothing is."""

    async def remove_exchange(self, exchange: str) -> bool:
        """Remove an exchange to which nothing is bound; tell whether it is gone."""

    async def held(self, queues: Iterable[str]) -> dict[str, int | None]:
        """Return how many messages queues hold, in whose hands ever, as it was some seconds ago; None: nobody knows."""


@dataclass(frozen=True, slots=True)
class KbairakTable:
    """The outbox table of kbairak/outbox (PostgreSQL), as what an app's outbox is; its own relay may run beside ours.

    ``exchange`` is where its rows are published: the table says nothing of it. ``table`` is its name, with its schema
    if it is not on the search path. ``hold`` is for how long a row that a relay has taken is out of everybody else's
    sight: what is not through by then, because its relay died say, is taken again.
    """

    exchange: str = "outbox"
    table: str = "outbox_table"
    hold: Duration = "60s"


@dataclass(frozen=True, slots=True)
class Database:
    """A database and how Carom uses it.

    ``url`` is an address or an engine of SQLAlchemy's, synchronous or not. ``schema`` and ``prefix`` are where the
    tables are and how their names begin. ``keep_sent`` is how long a row stays in the outbox after it was published,
    and nothing deletes it at once; ``keep_seen`` is how long the inbox remembers what was handled, and has to exceed
    the longest ladder of retries plus ``replay_window``, the time in which people send dead letters again.
    ``patience`` is how a relay meets a row that cannot be published. ``tables`` is whether to create what is missing
    when an app starts, only to verify it, or to ignore it. ``outbox`` is another system's table in place of Carom's.
    """

    url: object
    schema: str | None = None
    prefix: str = "carom_"
    keep_sent: Duration = 0
    keep_seen: Duration = "14d"
    replay_window: Duration = "7d"
    patience: Patience = PATIENCE
    tables: Mode = "apply"
    outbox: KbairakTable | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Proof of leadership: whoever leads next has a higher epoch, and what an older one marks is not done."""

    holder: str
    epoch: int


class Outbox(Protocol):
    """A table of messages that were promised in committed transactions.

    The three ways in write a row and nothing else: no commit, no rollback, no connection of their own.
    """

    def add(self, session: object, entries: Sequence[Entry]) -> None:
        """Add rows to the unit of work of a `Session` or `AsyncSession`. No I/O."""

    async def write(self, connection: object, entries: Sequence[Entry]) -> None:
        """Insert rows through an asynchronous driver's connection; raises ConfigurationError outside a transaction."""

    def write_now(self, connection: object, entries: Sequence[Entry]) -> None:
        """Insert rows through a synchronous driver's connection; raises ConfigurationError outside a transaction."""

    async def lead(self, holder: str, ttl_ms: int) -> Lease | None:
        """Become the leader, or stay it; None when somebody else is. The time is the database's."""

    async def resign(self, lease: Lease) -> None:
        """Stop being the leader, so that another need not wait for the lease to end."""

    async def release(self) -> int | None:
        """Let rows whose time has come be claimed; return how long until the next one's, None when none waits."""

    async def claim(self, limit: int, without: Collection[int]) -> Sequence[Row]:
        """Return rows that can be published now, in the order they were written, except those in flight already.

        A row whose ordering key has an earlier one that waits after a failure cannot.
        """

    async def mark(self, lease: Lease, marks: Sequence[Mark]) -> bool:
        """Write down what became of rows, all at once; False, and nothing is written, when the lease is another's."""

    def watch(self, wake: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Call ``wake`` whenever rows may have come, where the database can tell.

        A connection lost meanwhile is asked for again; ``wake`` is called when it is back. Waking is a hint: whoever
        waits also looks from time to time.
        """

    async def backlog(self) -> Backlog:
        """Count what is in it."""

    async def find(self, states: Collection[State], limit: int) -> Sequence[Held]:
        """Return rows in these states, oldest first."""

    async def retry(self, seqs: Collection[int] | None) -> int:
        """Let parked and failing rows, these or all, be published as if they had never failed; return how many."""

    async def expedite(self, seqs: Collection[int]) -> int:
        """Let rows that wait until they are due be published now; return how many."""

    async def cancel(self, seqs: Collection[int]) -> int:
        """Delete rows that were not published; return how many. One in flight is published all the same."""

    async def forget_sent(self, limit: int) -> int:
        """Delete some of what was kept long enough after it was sent; return how many."""


class Unit(Protocol):
    """One transaction of ours in which a handler works."""

    @property
    def session(self) -> object:
        """Return the `AsyncSession`, or `Session`, that the handler is given."""

    async def admit(self, listener: str, arrivals: Sequence[tuple[str, int]]) -> Sequence[bool]:
        """Record (message id, attempt) for a listener; tell of each whether it is new and is to be handled.

        Waits for another transaction that is handling the same id. Not new is what was handled, an attempt of which
        `failing` has recorded that it failed, and the second of two that are the same.
        """

    async def commit(self) -> None:
        """Make it so."""

    @property
    def lost(self) -> bool:
        """Tell whether the connection broke while the session was used."""


class Inbox(Protocol):
    """A table of what was handled, written in the same transaction as what the handler did."""

    def begin(self, *, synchronous: bool) -> AbstractAsyncContextManager[Unit]:
        """Begin a transaction; it is rolled back unless it was committed.

        Synchronous ones have a `Session`, which a handler in a thread may use; others an `AsyncSession`.
        """

    def failing(self, listener: str, message_id: str, attempt: int, *, last: bool) -> AbstractAsyncContextManager[bool]:
        """Hold a message while the copy that follows from a failed attempt is published, then record the failure.

        Yields whether this is the first to do so: otherwise a copy exists already and none must be published. After
        the ``last`` attempt, which makes a dead letter, what was recorded of the others is forgotten, so that a dead
        letter that is put back is handled anew. An exception inside leaves everything as it was.
        """

    def is_passing(self, error: BaseException) -> bool:
        """Tell whether a transaction failed for being beside others, a deadlock say, and may just be run again."""

    def is_absence(self, error: BaseException) -> bool:
        """Tell whether the database was not there: not reached, restarting, or the connection was lost."""

    async def forget_seen(self, limit: int) -> int:
        """Delete some of what was kept long enough; return how many."""


class Store(Outbox, Inbox, Protocol):
    """A database with Carom's tables in it. Every implementation passes `carom.testing.contracts.StoreContract`.

    What the database does not do raises DatabaseUnavailable when it is not there, and StoreError otherwise; errors in
    a handler's own session stay what they are.
    """

    @property
    def where(self) -> str:
        """Return where the database is, for people: no credentials."""

    async def open(self, mode: Mode) -> None:
        """Connect and see to the tables. Raises DatabaseUnavailable or SchemaMismatch."""

    async def close(self) -> None:
        """Disconnect from what was connected to here."""


@dataclass(frozen=True, slots=True)
class StoreDown:
    """The database does not answer; what needs it waits and tries again."""

    database: str
    reason: str
    retry_in_ms: int


@dataclass(frozen=True, slots=True)
class StoreUp:
    """The database answers again."""

    database: str


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
