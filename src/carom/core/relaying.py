"""Relaying: what is written into an outbox, what a relay takes from it, and what becomes of a row it tried to publish.

Rule: a row leaves the outbox because the broker has confirmed its message, and for no other reason. Everything else
waits and is tried again, or is parked where people can see it, with the reason.
Rule: rows of one ordering key are in flight one after the other; a row without a key waits for nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from carom.core.effects import Confirmed, Nacked, PublishResult, Returned, lasts
from carom.core.message import Message, clip

REASON_LIMIT = 1024
"""What is written down about a row that could not be published, in bytes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A message on its way into an outbox.

    ``wait_ms`` is counted by the database's clock from the moment it is written; ``at_ms`` is a time of day instead.
    """

    message: Message
    ordering_key: str = ""
    wait_ms: int = 0
    at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A message in an outbox, as a relay takes it: its place, its key, and how often publishing it failed.

    ``flaw`` is why no message can be made of it: somebody wrote into the table what is none. Then ``message`` is what
    could be read.
    """

    seq: int
    message: Message
    ordering_key: str = ""
    failures: int = 0
    flaw: str = ""


State: TypeAlias = Literal["ready", "later", "failing", "parked", "sent"]
"""Where a row is: to be published now, waiting until it is due, waiting after a failure, given up, or published."""
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True, slots=True)
class Held:
    """A row as people look at it. Times are of the database's clock, in milliseconds since 1970; None for never."""

    seq: int
    id: str
    state: State
    exchange: str
    routing_key: str
    ordering_key: str = ""
    failures: int = 0
    error: str = ""
    created_ms: int = 0
    due_ms: int | None = None
    sent_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much is in an outbox, by state, and how long the oldest row that could be published has been waiting."""

    ready: int = 0
    later: int = 0
    failing: int = 0
    parked: int = 0
    sent: int = 0
    oldest_ms: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    """The broker has it."""

    seq: int


@dataclass(frozen=True, slots=True)
class Again:
    """Not now: try it again after a while, by the database's clock."""

    seq: int
    wait_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Parked:
    """Not by itself any more: people have to look at it."""

    seq: int
    reason: str


Mark: TypeAlias = Sent | Again | Parked


@dataclass(frozen=True, slots=True)
class Patience:
    """How a relay meets a row that cannot be published: how often it tries, and how long it waits between."""

    attempts: int = 10
    first_ms: int = 1_000
    most_ms: int = 300_000

    def wait_ms(self, failures: int, fraction: float) -> int:
        """Return the wait after so many failures: doubling, at most the longest, half of it jitter."""
        whole = min(self.most_ms, self.first_ms * 2 ** min(failures - 1, 30))
        return int(whole * (0.5 + fraction / 2))


PATIENCE = Patience()


def resolve(row: Row, result: PublishResult, patience: Patience, fraction: float) -> Mark:
    """Return what becomes of a row, from what the broker said of its message.

    What the broker would refuse for ever is parked at once. What nobody knows was no failure of the row: it is tried
    again for as long as it takes, with the same id.
    """
    if isinstance(result, Confirmed):
        return Sent(row.seq)
    reason = clip(said(result), REASON_LIMIT)
    failures = row.failures + 1
    if lasts(result) or (isinstance(result, Returned | Nacked) and failures >= patience.attempts):
        return Parked(row.seq, reason)
    return Again(row.seq, patience.wait_ms(failures, fraction), reason)


def flawed(row: Row) -> Parked:
    """Return what becomes of a row of which no message can be made: nothing will make one of it but people."""
    return Parked(row.seq, clip(f"no message can be made of this row: {row.flaw}", REASON_LIMIT))


def said(result: PublishResult) -> str:
    """Return what the broker said, as a sentence for people."""
    match result:
        case Confirmed():
            return "confirmed"
        case Returned(code, text):
            return f"returned: {code} {text}; no queue is bound for it"
        case Nacked(why):
            return f"refused by the broker: {why or 'a queue it goes to is full or broken'}"
        case _:
            return f"nobody knows whether the broker has it: {result.why}"


class Lanes:
    """What of an outbox is in a relay's hands: rows in flight, and those that wait behind one of their own key.

    A row is in its hands until what became of it is written down, or it was let go of; so long no claim may bring it.
    Belongs to one leadership: a new one begins with nothing in its hands.
    """

    def __init__(self) -> None:
        """Have nothing in hand."""
        self._taken: set[int] = set()
        self._behind: dict[str, deque[Row]] = {}
        self._held = 0
        self._claims = 0
        self._shut: dict[str, int] = {}

    @property
    def flying(self) -> int:
        """Return how many are on their way: at the broker, or waiting to be marked."""
        return len(self._taken) - self._held

    @property
    def held(self) -> int:
        """Return how many wait behind one of their key."""
        return self._held

    def claiming(self) -> list[int]:
        """Begin a claim; returns the rows that it must not bring."""
        self._claims += 1
        return list(self._taken)

    def take(self, rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
        """Take the rows of the claim that was begun last; returns what may go now, and of that what others wait for.

        A claim looks at the table at one moment. Rows whose key has had a failure that it may not have seen are left
        where they are: a later one sees what may go.
        """
        self._shut = {key: opens for key, opens in self._shut.items() if opens > self._claims}
        now: list[Row] = []
        for row in rows:
            key = row.ordering_key
            if row.seq in self._taken or key in self._shut:
                continue
            self._taken.add(row.seq)
            if not key:
                now.append(row)
            elif key in self._behind:
                self._behind[key].append(row)
                self._held += 1
            else:
                self._behind[key] = deque()
                now.append(row)
        ahead = [row for row in now if row.ordering_key and self._behind[row.ordering_key]]
        return [row for row in now if not row.ordering_key or not self._behind[row.ordering_key]], ahead

    def passed(self, rows: Iterable[Row]) -> list[Row]:
        """Note rows that the broker has confirmed; returns those that were next behind them."""
        following: list[Row] = []
        for row in rows:
            key = row.ordering_key
            if not key:
                continue
            behind = self._behind[key]
            if behind:
                self._held -= 1
                following.append(behind.popleft())
            else:
                del self._behind[key]
        return following

    def failed(self, row: Row) -> list[int]:
        """Note a row that is not through; returns those behind it, to be let go of once its mark is written."""
        if not row.ordering_key:
            return []
        behind = self._behind.pop(row.ordering_key)
        self._held -= len(behind)
        self._shut[row.ordering_key] = _UNTIL_MARKED
        return [one.seq for one in behind]

    def marked(self, seqs: Iterable[int], failed: Iterable[Row] = ()) -> None:
        """Let go of rows of which the database knows by now what became, those ``failed`` and those behind them too."""
        self._taken.difference_update(seqs)
        for row in failed:
            self._taken.discard(row.seq)
            if row.ordering_key:
                self._shut[row.ordering_key] = self._claims + 1

    def give_back(self, rows: Iterable[Row]) -> None:
        """Let go of rows, and those behind them, as if they had never been taken: a later claim brings them again."""
        for row in rows:
            self.marked(self.failed(row), (row,))


_UNTIL_MARKED = 2**63
"""No claim has such a number."""
