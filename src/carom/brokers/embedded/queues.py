"""One queue: what is ready in it, in which order, who consumes it, and which of its dead letters are pinned.

Rule: this module keeps state and order and decides nothing about other queues; `engine` does.
"""

from __future__ import annotations

from collections import deque

import msgspec

from carom.brokers.embedded.arguments import Settings, settings
from carom.brokers.embedded.deaths import Reason
from carom.core.message import Message
from carom.core.topology import Queue

PINNED_LIMIT = 32
"""How many dead letters of one queue may be under way with at-least-once; when all are stuck, the queue's are."""
_UNLIMITED = 1 << 40
_QUORUM_UNLIMITED = 2000
_SOFT_LIMIT = 0.8


class Entry(msgspec.Struct, gc=False):
    """A message in one queue. ``returns`` counts how often it came back; it never expires before ``expires``."""

    message: Message
    expires: int | None
    position: int
    returns: int = 0


class Letter(msgspec.Struct, gc=False):
    """A dead letter that its queue keeps until every target has it: at-least-once dead-lettering."""

    entry: Entry
    reason: Reason
    died_ms: int
    due_ms: int = 0
    settled: tuple[str, ...] = ()


class Consumer:
    """Somebody who takes messages from a queue, ``room`` more of them at the moment."""

    __slots__ = ("active", "name", "queue", "room", "serial", "session")

    def __init__(self, serial: int, session: str, name: str, queue: QueueState, room: int) -> None:
        """Keep what identifies it; ``serial`` is never used twice."""
        self.serial = serial
        self.session = session
        self.name = name
        self.queue = queue
        self.room = room
        self.active = True


class QueueState:
    """The state of one queue."""

    __slots__ = (
        "blocked",
        "consumers",
        "declared",
        "limited",
        "name",
        "next_position",
        "pinned",
        "quorum",
        "ready",
        "ready_bytes",
        "rejects",
        "returned",
        "settings",
        "ttl_ms",
        "turn",
        "unacked",
        "waiting",
    )

    def __init__(self, declared: Queue) -> None:
        """Start empty."""
        self.declared = declared
        self.name = declared.name
        self.settings: Settings = settings(declared)
        self.quorum = self.settings.quorum
        self.ttl_ms = self.settings.ttl_ms
        self.limited = self.settings.limited
        self.rejects = self.settings.rejects
        self.ready: deque[Entry] = deque()
        self.returned: deque[Entry] = deque()
        self.ready_bytes = 0
        self.next_position = 0
        self.unacked = 0
        self.blocked = False
        self.consumers: dict[tuple[str, str], Consumer] = {}
        self.turn: deque[Consumer] = deque()
        self.waiting: deque[Letter] = deque()
        self.pinned: list[Letter] = []

    def __len__(self) -> int:
        """Return how many messages are ready."""
        return len(self.ready) + len(self.returned)

    def room(self, prefetch: int) -> int:
        """Return how many unsettled messages a prefetch allows; 0 is 2,000 on a quorum queue, no bound on others."""
        return prefetch or (_QUORUM_UNLIMITED if self.quorum else _UNLIMITED)

    def head(self) -> Entry | None:
        """Return the message that is next."""
        if self.returned:
            return self.returned[0]
        return self.ready[0] if self.ready else None

    def append(self, entry: Entry) -> None:
        """Put a message at the end."""
        self.ready.append(entry)
        self.ready_bytes += len(entry.message.body)

    def pop(self) -> Entry:
        """Take the message that is next."""
        entry = self.returned.popleft() if self.returned else self.ready.popleft()
        self.ready_bytes -= len(entry.message.body)
        if self.blocked:
            self.relax()
        return entry

    def put_back(self, entry: Entry, *, asked: bool) -> None:
        """Put a message back that was in somebody's hands.

        A classic queue puts it where it was. A quorum queue puts it before all that was never delivered, in order
        of return; but one without a delivery limit puts what was handed back by request at its end.
        """
        if not self.quorum:
            self._insert(entry)
        elif asked and self.settings.delivery_limit is None:
            self.ready.append(entry)
        else:
            self.returned.append(entry)
        self.ready_bytes += len(entry.message.body)

    def clear(self) -> int:
        """Forget all that is ready and return how much it was."""
        count = len(self)
        self.ready.clear()
        self.returned.clear()
        self.ready_bytes = 0
        self.blocked = False
        return count

    def refuses(self, body: bytes) -> bool:
        """Tell whether a queue that rejects publishes is full.

        A quorum queue notices when it is beyond its limit, so that it takes one more, and takes new messages
        again below four fifths of it; a classic queue counts exactly.
        """
        if self.quorum:
            return self.blocked
        return self._beyond(len(self) + 1, self.ready_bytes + len(body))

    def over(self) -> bool:
        """Tell whether more is in the queue than its limits allow. Pending dead letters count, unsettled do not."""
        return self._beyond(*self._weight())

    def relax(self) -> None:
        """Take publishes again if enough has left."""
        self.blocked = self._beyond(*self._weight(), _SOFT_LIMIT)

    def due_ms(self) -> int | None:
        """Return when the next thing happens by itself: the head expires or a pinned dead letter is tried again."""
        head = self.head()
        due = None if head is None else head.expires
        for letter in self.pinned:
            due = letter.due_ms if due is None or letter.due_ms < due else due
        return due

    def _weight(self) -> tuple[int, int]:
        if not (self.waiting or self.pinned):
            return len(self), self.ready_bytes
        pending = [letter.entry for letter in (*self.waiting, *self.pinned)]
        return len(self) + len(pending), self.ready_bytes + sum(len(entry.message.body) for entry in pending)

    def _beyond(self, length: int, size: int, share: float = 1) -> bool:
        longest, largest = self.settings.max_length, self.settings.max_bytes
        return (longest is not None and length > longest * share) or (largest is not None and size > largest * share)

    def _insert(self, entry: Entry) -> None:
        """Put a message among the returned, oldest first; all of them are older than what was never delivered."""
        returned, position = self.returned, entry.position
        if not returned or position < returned[0].position:
            returned.appendleft(entry)
            return
        index = len(returned)
        while returned[index - 1].position > position:
            index -= 1
        returned.insert(index, entry)
