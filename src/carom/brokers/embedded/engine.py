"""The embedded broker's engine: RabbitMQ's behaviour as a state machine.

Exchanges, queues, expiry, dead-lettering and delivery as RabbitMQ 3.10 to 4.2 do them, with quorum queues and
classic ones. Time is an argument and there is no input or output: the same calls in the same order make the same
state and the same deliveries in every process, which is what the log of a broker file is replayed with.

Deliveries and ended consumers are collected in `handed` and `ended`; the owner takes and clears them after each call.

Rule: nothing here reads a clock, draws a random number, waits, or depends on the order of a set or on an identity.
Rule: a call that raises has changed nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Literal, TypeAlias

import msgspec

from carom.brokers.embedded import snapshots
from carom.brokers.embedded.arguments import refuse
from carom.brokers.embedded.deaths import Reason, dead, is_cycle, keys
from carom.brokers.embedded.differences import compare
from carom.brokers.embedded.publishing import invalid, lifetime
from carom.brokers.embedded.queues import PINNED_LIMIT, Consumer, Entry, Letter, QueueState
from carom.brokers.embedded.router import Router
from carom.core.effects import CONFIRMED, NACKED, PublishResult, Returned
from carom.core.message import Message
from carom.core.topology import Topology
from carom.errors import BrokerError, TopologyMismatch
from carom.ports import Depth

Verb: TypeAlias = Literal["ack", "hand_back", "refuse"]
Held: TypeAlias = tuple[QueueState, Consumer | None, Entry]
RETRY_MS = 180_000
"""How long a dead letter that no target took stays pinned before it is tried again."""
_COUNT = "x-delivery-count"
_RETURNED = Returned()


class Handed(msgspec.Struct, gc=False):
    """A message given to a consumer, or to nobody in particular (``consumer`` is empty) by `Engine.get`."""

    session: str
    consumer: str
    tag: int
    queue: str
    message: Message
    redelivered: bool


class Ended(msgspec.Struct):
    """A consumer that the broker ended, and why."""

    session: str
    consumer: str
    queue: str
    reason: str


class Engine:
    """All of a broker's state. Belongs to one thread at a time.

    ``owner`` is for whoever passes the deliveries on; the engine never looks at it.
    """

    def __init__(self) -> None:
        """Start with nothing but the default exchange."""
        self.handed: list[Handed] = []
        self.ended: list[Ended] = []
        self.owner: object | None = None
        self.queues: dict[str, QueueState] = {}
        self.router = Router(self.queues.keys())
        self.held: dict[str, dict[int, Held]] = {}
        self.consumers: dict[tuple[str, str], Consumer] = {}
        self.last_tag = 0
        self.last_serial = 0
        self.timed: dict[str, QueueState] = {}
        self._deaths: deque[tuple[QueueState, Entry, Reason]] = deque()

    def declare(self, topology: Topology, now_ms: int) -> None:  # noqa: ARG002 - every change of the engine has its time
        """Make a topology exist. What is there already is left alone.

        Raises Unsupported for what the engine does not do and TopologyMismatch, with all differences, for what is
        there and differs or cannot be bound; then nothing at all was declared.
        """
        refuse(topology)
        if wrong := compare(self.topology(), topology, missing=False):
            raise TopologyMismatch(wrong)
        for queue in topology.queues:
            if queue.name not in self.queues:
                self.queues[queue.name] = QueueState(queue)
        self.router.add(topology.exchanges, topology.bindings)

    def compare(self, topology: Topology) -> tuple[str, ...]:
        """Return what a topology has and the broker has not, or has otherwise, a sentence each."""
        return compare(self.topology(), topology, missing=True)

    def topology(self) -> Topology:
        """Return what exists, in the order it was declared."""
        return Topology(
            exchanges=tuple(self.router.exchanges.values()),
            queues=tuple(queue.declared for queue in self.queues.values()),
            bindings=tuple(self.router.bindings),
        )

    def publish(self, message: Message, now_ms: int) -> PublishResult:
        """Publish, mandatory and confirmed. Every queue that took the message has it, also when another refused."""
        headers = message.headers
        if reason := invalid(message, self.router.exchanges):
            return reason
        if headers and "CC" in headers:
            route = self.router.route(message.exchange, keys(message), headers)
        else:
            route = self.router.one(message.exchange, message.routing_key, headers)
        if not route:
            return _RETURNED
        taken = True
        for name in route:
            if not self._accept(self.queues[name], message, now_ms):
                taken = False
        if self._deaths:
            self._bury(now_ms)
        return CONFIRMED if taken else NACKED

    def consume(self, session: str, consumer: str, queue: str, prefetch: int, now_ms: int) -> None:
        """Start a consumer. Raises BrokerError for an unknown queue, or a name that the session uses already."""
        state = self._queue(queue)
        if (session, consumer) in self.consumers:
            raise BrokerError(f"consumer {consumer!r} exists already in this session: cancel it or use another name")
        if prefetch < 0:
            raise BrokerError(f"a prefetch of {prefetch} on queue {queue!r} means nothing: use 0 for no bound")
        self.last_serial += 1
        started = Consumer(self.last_serial, session, consumer, state, state.room(prefetch))
        self.consumers[session, consumer] = state.consumers[session, consumer] = started
        self.held.setdefault(session, {})
        state.turn.append(started)
        self._serve(state, now_ms)
        self._bury(now_ms)

    def cancel(self, session: str, consumer: str, now_ms: int) -> None:  # noqa: ARG002 - every change has its time
        """Stop a consumer. What it has unsettled stays valid. An unknown one is cancelled already."""
        stopped = self.consumers.pop((session, consumer), None)
        if stopped is not None:
            self._stop(stopped)

    def get(self, session: str, queue: str, now_ms: int) -> Handed | None:
        """Take one message. Raises BrokerError for an unknown queue."""
        state = self._queue(queue)
        self._expire(state, now_ms)
        handed = None
        if state.head() is not None:
            handed = self._hand(state, None, state.pop(), session)
            self._expire(state, now_ms)
        self._bury(now_ms)
        return handed

    def settle(self, session: str, tag: int, verb: Verb, now_ms: int) -> bool:
        """Settle a delivery. One that is unknown, settled already or of another session: False, and nothing happens."""
        mine = self.held.get(session)
        held = None if mine is None else mine.pop(tag, None)
        if held is None:
            return False
        state, consumer, entry = held
        state.unacked -= 1
        if consumer is not None and consumer.active:
            if consumer.room <= 0:
                state.turn.append(consumer)
            consumer.room += 1
        if verb == "refuse":
            self._die(state, entry, "rejected")
        elif verb == "hand_back":
            self._return(state, entry, asked=True)
        if state.ready or state.returned:
            self._serve(state, now_ms)
        if self._deaths:
            self._bury(now_ms)
        return True

    def unsettled(self, session: str) -> list[Handed]:
        """Return what a session has in its hands, oldest first."""
        return [
            Handed(session, consumer.name if consumer else "", tag, state.name, _shown(state, entry), entry.returns > 0)
            for tag, (state, consumer, entry) in self.held.get(session, {}).items()
        ]

    def end(self, session: str, now_ms: int) -> None:
        """End a session: its consumers are cancelled, what it has unsettled returns and is counted as returned."""
        for key in [key for key in self.consumers if key[0] == session]:
            self._stop(self.consumers.pop(key))
        held = list(self.held.pop(session, {}).values())
        touched: dict[str, QueueState] = {}
        for state, _, entry in held:
            touched[state.name] = state
            state.unacked -= 1
            if state.quorum:
                self._return(state, entry, asked=False)
        for state, _, entry in reversed(held):  # the last first: each goes to the front of those that came after it
            if not state.quorum:
                self._return(state, entry, asked=False)
        for state in touched.values():
            self._serve(state, now_ms)
        self._bury(now_ms)

    def tick(self, now_ms: int) -> None:
        """Do what is due: expire messages, earliest first, and try pinned dead letters again."""
        due = [(when, name) for name, state in self.timed.items() if (when := state.due_ms()) is not None]
        heapify(due)
        while due and due[0][0] <= now_ms:
            when, name = heappop(due)
            state = self.timed[name]
            self._retry_pinned(state, now_ms)
            self._expire(state, when)
            self._bury(now_ms)
            again = state.due_ms()
            if again is not None:
                heappush(due, (again, name))

    def next_due_ms(self) -> int | None:
        """Return when `tick` has something to do; None when nothing waits for time."""
        if not self.timed:
            return None
        return min((due for state in self.timed.values() if (due := state.due_ms()) is not None), default=None)

    def depths(self, queues: Iterable[str]) -> dict[str, Depth | None]:
        """Return how deep queues are; None for those that do not exist. Pinned dead letters count in neither number."""
        found = {name: self.queues.get(name) for name in queues}
        return {
            name: None if state is None else Depth(len(state), state.unacked, len(state.consumers))
            for name, state in found.items()
        }

    def contents(self, queue: str) -> tuple[Message, ...]:
        """Return what is ready in a queue in the order of delivery, then its pinned dead letters."""
        state = self._queue(queue)
        entries = [*state.returned, *state.ready, *(letter.entry for letter in (*state.pinned, *state.waiting))]
        return tuple(entry.message for entry in entries)

    def delete_queue(self, queue: str, now_ms: int) -> int:  # noqa: ARG002 - every change has its time
        """Delete a queue with all that is in it and end its consumers. Returns how much was ready; 0 if unknown."""
        state = self.queues.pop(queue, None)
        if state is None:
            return 0
        self.timed.pop(queue, None)
        self.router.forget_queue(queue)
        for consumer in list(state.consumers.values()):
            del self.consumers[consumer.session, consumer.name]
            self._stop(consumer)
            self.ended.append(Ended(consumer.session, consumer.name, queue, f"queue {queue!r} was deleted"))
        for session, mine in self.held.items():
            self.held[session] = {tag: held for tag, held in mine.items() if held[0] is not state}
        return len(state)

    def purge(self, queue: str, now_ms: int) -> int:  # noqa: ARG002 - every change has its time
        """Forget what is ready in a queue and return how much it was. Raises BrokerError for an unknown queue."""
        return self._queue(queue).clear()

    def snapshot(self) -> bytes:
        """Return the whole state as bytes. `handed` and `ended` are not part of it: take them first."""
        return snapshots.freeze(self)

    @classmethod
    def restore(cls, data: bytes) -> Engine:
        """Return an engine that goes on exactly where the one went on that `snapshot` was taken of."""
        engine = cls()
        snapshots.thaw(engine, data)
        return engine

    def _queue(self, name: str) -> QueueState:
        state = self.queues.get(name)
        if state is None:
            raise BrokerError(f"there is no queue {name!r}: declare it first")
        return state

    def _accept(self, state: QueueState, message: Message, now_ms: int, *, forced: bool = False) -> bool:
        """Put a message into a queue, or into the hands of a waiting consumer; False when the queue is full."""
        if state.rejects and not (forced and state.quorum) and state.refuses(message.body):
            if state.settings.overflow == "reject-publish-dlx":
                self._die(state, Entry(message, None, 0), "maxlen")
            return False
        life = state.ttl_ms
        if message.expiration:
            life = lifetime(message.expiration, life)
        position = state.next_position
        state.next_position = position + 1
        entry = Entry(message, None if life is None else now_ms + life, position)
        if life is not None:
            self.timed.setdefault(state.name, state)
        if state.turn and not state.ready and not state.returned:
            consumer = state.turn[0]
            self._hand(state, consumer, entry, consumer.session)
            return True
        if state.limited and state.name in self.timed:
            self._expire(state, now_ms)  # what is overdue makes room first
        state.append(entry)
        if state.limited:
            self._trim(state)
        if life is not None:
            self._expire(state, now_ms)
        return True

    def _serve(self, state: QueueState, now_ms: int) -> None:
        """Give out what is ready while somebody has room, then let go what is beyond the queue's limits."""
        turn = state.turn
        while turn:
            if state.name in self.timed:
                self._expire(state, now_ms)
            if not state.ready and not state.returned:
                break
            consumer = turn[0]
            self._hand(state, consumer, state.pop(), consumer.session)
        if state.name in self.timed:
            self._expire(state, now_ms)
        if state.limited:
            self._trim(state)

    def _hand(self, state: QueueState, consumer: Consumer | None, entry: Entry, session: str) -> Handed:
        """Put a message into somebody's hands: the consumer's whose turn it is, or whoever got it."""
        self.last_tag = tag = self.last_tag + 1
        name = "" if consumer is None else consumer.name
        handed = Handed(session, name, tag, state.name, _shown(state, entry), entry.returns > 0)
        state.unacked += 1
        if consumer is None:
            self.held.setdefault(session, {})[tag] = (state, None, entry)
            return handed
        self.held[session][tag] = (state, consumer, entry)
        self.handed.append(handed)
        consumer.room -= 1
        if consumer.room > 0:
            state.turn.rotate(-1)
        else:
            state.turn.popleft()
        return handed

    def _stop(self, consumer: Consumer) -> None:
        consumer.active = False
        del consumer.queue.consumers[consumer.session, consumer.name]
        if consumer.room > 0:
            consumer.queue.turn.remove(consumer)

    def _return(self, state: QueueState, entry: Entry, *, asked: bool) -> None:
        """Put an unsettled message back; beyond the delivery limit it dies."""
        entry.returns += 1
        limit = state.settings.delivery_limit
        if limit is not None and entry.returns > limit:
            self._die(state, entry, "delivery_limit")
        else:
            state.put_back(entry, asked=asked)

    def _expire(self, state: QueueState, now_ms: int) -> None:
        """Let expired messages go from the head; one that is not at the head waits for those before it."""
        while (head := state.head()) is not None and head.expires is not None and head.expires <= now_ms:
            self._die(state, state.pop(), "expired")

    def _trim(self, state: QueueState) -> None:
        if state.rejects:
            state.blocked = state.blocked or state.over()
            return
        while state.over():
            self._die(state, state.pop(), "maxlen")

    def _die(self, state: QueueState, entry: Entry, reason: Reason) -> None:
        if state.settings.dead_letter_exchange is not None:
            self._deaths.append((state, entry, reason))

    def _bury(self, now_ms: int) -> None:
        """Pass dead messages on until there are none; each may push another out of a full queue."""
        while self._deaths:
            state, entry, reason = self._deaths.popleft()
            letter = Letter(entry, reason, now_ms)
            if state.settings.at_least_once:
                state.waiting.append(letter)
                self._forward(state, now_ms)
            else:
                self._pass_on(state, letter, now_ms, safely=False)

    def _forward(self, state: QueueState, now_ms: int) -> None:
        """Pass on what waits to be dead-lettered; what cannot arrive stays pinned, up to a limit."""
        while state.waiting and len(state.pinned) < PINNED_LIMIT:
            letter = state.waiting.popleft()
            if not self._pass_on(state, letter, now_ms, safely=True):
                letter.due_ms = now_ms + RETRY_MS
                state.pinned.append(letter)
                self.timed.setdefault(state.name, state)
        if state.blocked:
            state.relax()

    def _retry_pinned(self, state: QueueState, now_ms: int) -> None:
        pinned = state.pinned
        if not pinned or all(letter.due_ms > now_ms for letter in pinned):
            return
        state.pinned = []
        for letter in pinned:
            if letter.due_ms <= now_ms:
                if self._pass_on(state, letter, now_ms, safely=True):
                    continue
                letter.due_ms = now_ms + RETRY_MS
            state.pinned.append(letter)
        self._forward(state, now_ms)

    def _pass_on(self, state: QueueState, letter: Letter, now_ms: int, *, safely: bool) -> bool:
        """Give a dead letter to its targets; True when each of them has it. ``safely`` respects full queues."""
        exchange = state.settings.dead_letter_exchange or ""
        message, routing_keys = dead(
            letter.entry.message,
            state.name,
            letter.reason,
            letter.died_ms,
            exchange=exchange,
            key=state.settings.dead_letter_key,
        )
        route = self.router.route(exchange, routing_keys, message.headers)
        if letter.reason != "rejected":
            route = tuple(name for name in route if not is_cycle(message, name))
        complete = bool(route or letter.settled)
        for name in route:
            if name in letter.settled:
                continue
            if self._accept(self.queues[name], message, now_ms, forced=not safely):
                letter.settled = (*letter.settled, name)
            else:
                complete = False
        return complete


def _shown(state: QueueState, entry: Entry) -> Message:
    """Return a message as it is delivered: a quorum queue writes on it how often it came back, if it did."""
    if not entry.returns or not state.quorum:
        return entry.message
    return replace(entry.message, headers={**entry.message.headers, _COUNT: entry.returns})
