"""MemoryBroker: the embedded broker in this process's memory, in real or in virtual time.

Brokers that are given the same `Engine` are several connections to one broker, as long as they live in one event loop.
Nothing survives the process. A publish is confirmed at once; deliveries come from the event loop, all that are due
in one turn, never from inside a call of publish, ack or the like.

Rule: all that happens is decided by `engine`; this module only carries it to the right callback at the right time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence

from carom.brokers.embedded.deliveries import EmbeddedDelivery, guarded
from carom.brokers.embedded.engine import Engine, Verb
from carom.core.effects import PublishResult
from carom.core.message import Message
from carom.core.topology import Topology
from carom.errors import BrokerError, BrokerUnavailable, TopologyMismatch
from carom.ports import BrokerEvent, Clock, ConnectionDown, ConnectionUp, ConsumerEnded, Delivery, Depth, Mode, Report

NAME = "embedded://"


class MemorySubscription:
    """A running consumer of one queue; see `carom.ports.Subscription`."""

    def __init__(
        self,
        broker: MemoryBroker,
        queue: str,
        receive: Callable[[Delivery], None],
        prefetch: int,
        ended: Callable[[str], None],
    ) -> None:
        """Keep what is needed to start it, again after each disconnect."""
        self.broker = broker
        self.queue = queue
        self.receive = receive
        self.prefetch = prefetch
        self.ended = ended
        self.consumer = ""

    async def cancel(self) -> None:
        """Stop taking messages; deliveries already in our hands stay valid. Afterwards ``receive`` is not called."""
        self.broker.stop(self)

    async def settled(self) -> None:
        """Return: what is settled is settled at once."""


class _Connection:
    """One session with the engine. What was delivered on it is worth nothing when it is no longer open."""

    __slots__ = ("_engine", "_now_ms", "_server", "open", "session", "subscriptions")

    def __init__(self, server: _Server, session: str) -> None:
        self.session = session
        self.open = True
        self.subscriptions: dict[str, MemorySubscription] = {}
        self._server = server
        self._engine = server.engine
        self._now_ms = server.clock.now_ms

    def settle(self, tag: int, verb: Verb) -> None:
        if self.open:
            engine = self._engine
            engine.settle(self.session, tag, verb, self._now_ms())
            if engine.handed or verb != "ack":
                self._server.wake()


class _Server:
    """What all brokers of one engine share: the timer, and who gets which delivery."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine = engine
        self.clock = clock
        self.connections: dict[str, tuple[_Connection, MemoryBroker]] = {}
        self._numbers = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._armed: tuple[int, Callable[[], None]] | None = None

    @classmethod
    def of(cls, engine: Engine, clock: Clock) -> _Server:
        """Return the server of an engine, a new one if it has none."""
        if not isinstance(engine.owner, cls):
            engine.owner = cls(engine, clock)
        return engine.owner

    @property
    def idle(self) -> bool:
        """Tell whether nothing waits to be handed over."""
        return self._loop is None and not self.engine.handed and not self.engine.ended

    def connect(self, broker: MemoryBroker) -> _Connection:
        connection = _Connection(self, f"memory-{next(self._numbers)}")
        self.connections[connection.session] = (connection, broker)
        return connection

    def disconnect(self, connection: _Connection) -> None:
        connection.open = False
        del self.connections[connection.session]
        self.engine.end(connection.session, self.clock.now_ms())
        if self.connections:
            self.wake()
        else:
            self.engine.handed.clear()
            self._disarm()

    def next_consumer(self) -> str:
        return f"consumer-{next(self._numbers)}"

    def wake(self) -> None:
        """Hand over in the next turn of the event loop, once."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # also when an earlier loop ended before its turn came
            self._loop = loop
            loop.call_soon(self._turn)

    def arm(self) -> None:
        """Set the timer to when the engine has something to do."""
        due_ms = self.engine.next_due_ms()
        if self._armed is not None and self._armed[0] == due_ms:
            return
        self._disarm()
        if due_ms is not None and self.connections:
            self._armed = (due_ms, self.clock.call_later(max(0, due_ms - self.clock.now_ms()), self._due))

    def hand_over(self) -> None:
        """Call everybody for whom something was handed over or ended; what they cause waits for the next turn."""
        engine = self.engine
        handed, engine.handed = engine.handed, []
        connections = self.connections
        for one in handed:
            found = connections.get(one.session)
            subscription = None if found is None else found[0].subscriptions.get(one.consumer)
            if found is not None and subscription is not None:
                guarded(subscription.receive, EmbeddedDelivery(found[0], one))
        ended, engine.ended = engine.ended, []
        for gone in ended:
            found = connections.get(gone.session)
            subscription = None if found is None else found[0].subscriptions.pop(gone.consumer, None)
            if found is not None and subscription is not None:
                found[1].tell(ConsumerEnded(gone.queue, gone.reason))
                guarded(subscription.ended, gone.reason)

    def _turn(self) -> None:
        self._loop = None
        self.hand_over()
        self.arm()

    def _due(self) -> None:
        self._armed = None
        self.engine.tick(self.clock.now_ms())
        self.arm()
        if self.engine.handed:
            self.wake()

    def _disarm(self) -> None:
        if self._armed is not None:
            self._armed[1]()
            self._armed = None


class MemoryBroker:
    """A `carom.ports.Broker` in memory. Give several brokers one ``engine`` to connect them to the same queues."""

    def __init__(
        self, clock: Clock, report: Callable[[BrokerEvent], None] | None = None, engine: Engine | None = None
    ) -> None:
        """Prepare it; nothing happens before `open`."""
        self.engine = Engine() if engine is None else engine
        self._clock = clock
        self._report: Report = report or (lambda _event: None)
        self._server = _Server.of(self.engine, clock)
        self._connection: _Connection | None = None

    @property
    def idle(self) -> bool:
        """Tell whether no delivery is waiting to be handed over: until time passes, nothing comes by itself."""
        return self._server.idle

    def pending(self) -> bool:
        """Tell whether a delivery is waiting to be handed over."""
        return not self._server.idle

    async def open(self) -> None:
        """Connect. Never fails; a second time does nothing."""
        if self._connection is None:
            self._connection = self._server.connect(self)
            self._server.arm()
            self.tell(ConnectionUp(NAME))

    async def close(self) -> None:
        """Disconnect. Unsettled deliveries go back and are stale from now on. A second time does nothing."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._server.disconnect(connection)

    async def declare(self, topology: Topology, mode: Mode = "apply") -> None:
        """Make the topology exist, or compare it. Raises TopologyMismatch or Unsupported; then nothing is changed."""
        self._connected()
        if mode == "apply":
            self.engine.declare(topology, self._clock.now_ms())
        elif mode == "verify" and (missing := self.engine.compare(topology)):
            raise TopologyMismatch(missing)

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Publish, mandatory and confirmed; the results come in the order of the messages.

        Lets the event loop go round once, so that publishers and consumers take turns.
        """
        self._connected()
        now_ms, publish = self._clock.now_ms(), self.engine.publish
        results = [publish(message, now_ms) for message in messages]
        self._changed()
        await asyncio.sleep(0)
        return results

    async def consume(
        self, queue: str, receive: Callable[[Delivery], None], *, prefetch: int, ended: Callable[[str], None]
    ) -> MemorySubscription:
        """Deliver messages of a queue to ``receive``. Raises BrokerError for a queue that does not exist."""
        subscription = MemorySubscription(self, queue, receive, prefetch, ended)
        self._start(self._connected(), subscription)
        self._changed()
        return subscription

    async def get(self, queue: str) -> EmbeddedDelivery | None:
        """Take one message if there is one ready. Raises BrokerError for a queue that does not exist."""
        connection = self._connected()
        handed = self.engine.get(connection.session, queue, self._clock.now_ms())
        self._changed()
        return None if handed is None else EmbeddedDelivery(connection, handed)

    async def depths(self, queues: Iterable[str]) -> dict[str, Depth | None]:
        """Return how deep the queues are; None for one that does not exist."""
        self._connected()
        return self.engine.depths(queues)

    async def delete_queue(self, queue: str) -> int:
        """Delete a queue with all that is in it; its consumers are told. Returns how much was ready."""
        self._connected()
        count = self.engine.delete_queue(queue, self._clock.now_ms())
        self._changed()
        return count

    async def purge(self, queue: str) -> int:
        """Forget what is ready in a queue and return how much it was."""
        self._connected()
        count = self.engine.purge(queue, self._clock.now_ms())
        self._changed()
        return count

    def disconnect(self) -> None:
        """Lose the connection and have a new one at once, for tests: what was unsettled goes back and is counted."""
        lost = self._connected()
        self._server.disconnect(lost)
        self.tell(ConnectionDown(NAME, "disconnected on request", 0))
        self._connection = connection = self._server.connect(self)
        self.tell(ConnectionUp(NAME))
        for subscription in lost.subscriptions.values():
            try:
                self._start(connection, subscription)
            except BrokerError as gone:  # its queue was deleted and nobody had told it yet
                self.tell(ConsumerEnded(subscription.queue, str(gone)))
                guarded(subscription.ended, str(gone))
        self._changed()

    def stop(self, subscription: MemorySubscription) -> None:
        """Cancel a subscription; what was handed to it before is passed on first. A second time does nothing."""
        connection = self._connection
        if connection is None or connection.subscriptions.get(subscription.consumer) is not subscription:
            return
        self.engine.cancel(connection.session, subscription.consumer, self._clock.now_ms())
        self._server.hand_over()
        connection.subscriptions.pop(subscription.consumer, None)
        self._changed()

    def tell(self, event: BrokerEvent) -> None:
        """Report an event to whoever asked for them."""
        self._report(event)

    def _connected(self) -> _Connection:
        if self._connection is None:
            raise BrokerUnavailable("the embedded broker is not open: call open() first")
        return self._connection

    def _start(self, connection: _Connection, subscription: MemorySubscription) -> None:
        consumer = self._server.next_consumer()
        self.engine.consume(
            connection.session, consumer, subscription.queue, subscription.prefetch, self._clock.now_ms()
        )
        subscription.consumer = consumer
        connection.subscriptions[consumer] = subscription

    def _changed(self) -> None:
        self._server.arm()
        if self.engine.handed or self.engine.ended:
            self._server.wake()
