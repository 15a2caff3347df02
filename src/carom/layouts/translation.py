"""Translation: a message of one layout becomes the same message in another, while a broker is migrated.

    ready in a queue, set apart ──▶ the same queue        waits for a queue ──▶ that queue, and waits on from there
    dead                        ──▶ the queue's dead letters, with its reason

It is read by the old layout's wire, taken out of the old envelope, and written by the new one's. Attempt, crashes,
deaths, address, ids, ancestors and the user's headers stay. The old system's own headers do not: what they say is said
by the new one's, and without them nothing is taken for an old message again.

Rule: what the new wire wrote is read by it, so that nothing is translated twice. What says nothing of itself belongs to
the old wire in a queue that is still as the old layout declared it, and to the new one everywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from carom.core import message as names
from carom.core.durations import LONGEST_MS
from carom.core.message import Message
from carom.core.migration import STAND_IN, Carried, Move
from carom.core.routing import NO_HEADERS, Router, router
from carom.core.settlement import Layout
from carom.core.topology import Queue
from carom.core.wire import Address, Arrival, Note, Wire, span

_COUNTED = "x-delivery-count"
"""Some system writes it, and every broker: it tells nobody from another."""


@dataclass(frozen=True, slots=True)
class Translation:
    """From one layout to another, for the same queues of the same app."""

    old: Layout
    new: Layout
    queues: tuple[str, ...]
    _find: Router = field(init=False, repr=False, compare=False)
    _dead: dict[str, str] = field(init=False, compare=False)
    _waits: dict[str, Queue] = field(init=False, compare=False)
    _olds: frozenset[str] = field(init=False, compare=False)
    _news: frozenset[str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Work out once which queue is for what, and by which headers each wire is known."""
        known = {*self.queues, self.old.suspects}
        leading = [queue for queue in self.old.topology.queues if queue.dead_letter_exchange is not None]
        object.__setattr__(self, "_find", router(self.new.topology))
        object.__setattr__(self, "_dead", self._graves())
        object.__setattr__(self, "_waits", {queue.name: queue for queue in leading if queue.name not in known})
        object.__setattr__(self, "_olds", signs(self.old.wire))
        object.__setattr__(self, "_news", signs(self.new.wire) - self._olds)

    @property
    def carried(self) -> Carried:
        """Return the dead letters that are written anew in their place, and the queues whose messages go elsewhere."""
        stay = {name for name in self._dead if self.new.topology.queue(name) is not None}
        return Carried(frozenset(stay), frozenset({*self._dead, *self._waits} - stay))

    def copies(self, message: Message, move: Move) -> tuple[Message, ...]:
        """Return what is published in the place of a message that is moved; nothing where nobody can tell its queue."""
        queue = move.queue.removeprefix(STAND_IN)
        homes, wait_ms = self._homes(message, queue)
        written = [self._written(message, home, wait_ms, queue, move) for home in homes]
        return tuple(copy for copy in written if copy is not None)

    def _written(self, message: Message, home: str, wait_ms: int, queue: str, move: Move) -> Message | None:
        """Return the copy that lies where the message lay, or comes to its queue and waits on from there."""
        wire, arrival = self.new.wire, self._arrival(message, home, certain=move.certain)
        if queue in self._dead:
            to = Address(move.exchange, home) if move.exchange else self._beside(self.new.dead_address(home), move)
            return wire.dead(_buried(arrival, message), to, _note(message))
        wait_ms = min(arrival.wait_ms + wait_ms, LONGEST_MS)
        to = Address(move.exchange, home if queue == self.old.suspects else message.routing_key)
        if not move.exchange:
            to = self._beside(self.new.queue_address(home), move)
        return wire.recounted(arrival, to) if arrival.crashes and not wait_ms else wire.held(arrival, to, wait_ms)

    def _arrival(self, message: Message, home: str, *, certain: bool) -> Arrival:
        """Return a message as the new wire writes and reads it, whichever of the two wrote it."""
        if not self._is_old(message, certain=certain):
            return self.new.wire.read(message, home)
        arrival = self.old.wire.read(message, home)
        seen = self.old.wire.seen(arrival)
        trail = {names.TRAIL: list(seen.trail)} if seen.trail else {}
        mine = {name: value for name, value in names.foreign(seen.headers).items() if name not in self._olds}
        again = self.new.wire.outgoing(replace(seen, headers={**mine, **trail}))
        notes = {name: value for name, value in message.headers.items() if name.startswith(names.OURS)}
        return replace(arrival, message=replace(again, headers={**again.headers, **notes, **trail}))

    def _is_old(self, message: Message, *, certain: bool) -> bool:
        """Tell which wire wrote a message: by its headers, by where it is, or, without any, by its payload."""
        if self._news & message.headers.keys():
            return False
        if certain or self._olds:
            return certain or bool(self._olds & message.headers.keys())
        return self.old.wire.seen(self.old.wire.read(message, "")).body != message.body

    def _homes(self, message: Message, queue: str) -> tuple[tuple[str, ...], int]:
        """Return which queues a message is for, and how long it waits here."""
        if queue in self.queues or queue in self._dead:
            return (self._dead.get(queue, queue),), 0
        waits, noted = self._waits.get(queue), message.headers.get(names.QUEUE)
        wait_ms = 0
        if waits is not None:
            own = message.expiration[:12]
            wait_ms = int(own) if own.isascii() and own.isdigit() else waits.ttl_ms or 0
        if waits is None or noted in self.queues:
            return tuple(name for name in self.queues if name == noted), wait_ms
        key = message.routing_key if waits.dead_letter_key is None else waits.dead_letter_key
        led = router(self.old.topology)(waits.dead_letter_exchange or "", key, NO_HEADERS)
        return tuple(name for name in self.queues if name in led), wait_ms

    def _beside(self, address: Address, move: Move) -> Address:
        """Return an address of the new layout; as long as its queue is being replaced, that of its stand-in."""
        reached = self._find(address.exchange, address.routing_key, NO_HEADERS) & set(move.standing)
        return Address(STAND_IN + min(reached), address.routing_key) if reached else address

    def _graves(self) -> dict[str, str]:
        """Return whose dead letters are in which queue; where several get them, in those that go on."""
        find, found = router(self.old.topology), dict[str, str]()
        for queue in self.queues:
            to = self.old.dead_address(queue)
            reached = find(to.exchange, to.routing_key, NO_HEADERS)
            stay = {name for name in reached if self.new.topology.queue(name) is not None}
            found |= dict.fromkeys(stay or reached, queue)
        return found


def translation(old: Layout, new: Layout, queues: tuple[str, ...]) -> Translation | None:
    """Return how messages are translated; None where both layouts write alike."""
    return None if old.wire == new.wire else Translation(old, new, queues)


def signs(wire: Wire) -> frozenset[str]:
    """Return the headers by which a message of a wire is known, as it is published and as it waits."""
    first = wire.outgoing(Message(id="id", correlation_id="id", headers={names.TRAIL: ["id"]}))
    later = wire.held(Arrival(first, "queue", exchange="exchange", routing_key="key"), Address("", ""))
    written = {*first.headers, *(later.headers if later else ())}
    return frozenset(name for name in written if not name.startswith(names.OURS) and name != _COUNTED)


def _buried(arrival: Arrival, message: Message) -> Arrival:
    """Return what died: with a reason of Carom's on it, as that wrote it down; else as it was delivered last."""
    headers = message.headers
    since = span(headers.get(names.FIRST_FAILED_AT))
    if names.REASON not in headers:
        return replace(arrival, first_failed_at=since)
    return replace(
        arrival,
        attempt=names.count(headers.get(names.ATTEMPT), least=1),
        deaths=max(arrival.deaths - 1, 0),
        exchange=names.name(headers.get(names.EXCHANGE)),
        routing_key=names.name(headers.get(names.KEY)),
        first_failed_at=since,
        crashes=names.count(headers.get(names.CRASHES)),
    )


def _note(message: Message) -> Note:
    """Return what was written down about a failure; of one that the broker buried, its own reason."""
    read = {name: value for name, value in message.headers.items() if isinstance(value, str)}
    return Note(
        span(message.headers.get(names.FAILED_AT)),
        read.get(names.HOST, ""),
        read.get(names.REASON) or read.get("x-first-death-reason") or "rejected",
        read.get(names.ERROR_TYPE, ""),
        read.get(names.ERROR, ""),
        read.get(names.ERROR_TRACE, ""),
    )
