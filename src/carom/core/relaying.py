"""Relaying: what is written into an outbox, what a relay takes from it, and what becomes of a row it tried to publish.

Rule: a row leaves the outbox because the broker has confirmed its message, and for no other reason. Everything else
waits and is tried again, or is parked where people can see it, with the reason.
Rule: rows of one ordering key are in flight one after the other; a row without a key waits for nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
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
    """A message in an outbox, as a relay takes it: its place, its key, and how often publishing it failed."""

    seq: int
    message: Message
    ordering_key: str = ""
    failures: int = 0


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


def ready(rows: Iterable[Row], busy: Collection[str]) -> tuple[list[Row], list[Row]]:
    """Split rows into those that may go now and those whose key has one before them, in flight or among these."""
    now: list[Row] = []
    later: list[Row] = []
    taken: set[str] = set()
    for row in rows:
        key = row.ordering_key
        if not key:
            now.append(row)
        elif key in busy or key in taken:
            later.append(row)
        else:
            taken.add(key)
            now.append(row)
    return now, later


def tally(marks: Sequence[Mark]) -> tuple[int, int, int]:
    """Return how many were sent, how many are tried again and how many were parked."""
    sent = sum(isinstance(mark, Sent) for mark in marks)
    again = sum(isinstance(mark, Again) for mark in marks)
    return sent, again, len(marks) - sent - again
