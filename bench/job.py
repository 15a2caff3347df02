"""A job for one process: what to do, on which queue, with how many messages; and what came of it.

Rule: this module runs beside every peer, so it needs nothing but msgspec; Carom is not imported here.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

PREFETCH = 200
IN_FLIGHT = 500
"""How many publishes wait for their confirm at a time, where a client can do that."""
BODY_BYTES = 256


class Order(msgspec.Struct):
    """The payload of every message: `BODY_BYTES` bytes of JSON."""

    id: int
    customer: str
    note: str


ORDER = Order(1_000_000, "customer-000001", "x" * 203)
BODY = msgspec.json.encode(ORDER)
HEADERS = {"tenant": "bench", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is to do. ``warm_up`` messages come first and are not measured.

    ``delay_ms`` is how long a retry waits, ``path`` a directory to write to, ``database`` the URL of a PostgreSQL, for
    those who need them.
    """

    url: str
    queue: str
    messages: int
    warm_up: int = 0
    delay_ms: int = 0
    path: str = ""
    database: str = ""

    @property
    def total(self) -> int:
        """Return how many messages pass, the warm-up included."""
        return self.messages + self.warm_up


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process measured: messages a second, or nothing of the kind, and whatever else there is to say."""

    per_second: float | None
    more: Mapping[str, float | None] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Return it as one line."""
        return msgspec.json.encode(asdict(self))

    @classmethod
    def from_json(cls, line: bytes) -> Sample:
        """Read what `to_json` wrote."""
        return msgspec.json.decode(line, type=Sample)


def both(first: Sample, second: Sample) -> Sample:
    """Return how fast messages pass that have to pass two stretches, one after the other."""
    seconds = sum(1 / one.per_second for one in (first, second) if one.per_second)
    return Sample(1 / seconds, {"first_per_second": first.per_second, "second_per_second": second.per_second})


class Stopwatch:
    """Counts messages that were handled: runs from the end of the warm-up to the last message.

    It may be called by several threads. Without a warm-up it runs from the first message.
    """

    def __init__(self, job: Job, ended: Callable[[], Any]) -> None:
        """Call ``ended`` at the last message."""
        self._numbers: Iterator[int] = itertools.count(1)
        self._first = max(1, job.warm_up)
        self._last = job.total
        self._ended = ended
        self._started_at = self._ended_at = 0.0

    def count(self) -> None:
        """Count a message."""
        number = next(self._numbers)
        if number == self._first:
            self._started_at = time.perf_counter()
        if number == self._last:
            self._ended_at = time.perf_counter()
            self._ended()

    def sample(self) -> Sample:
        """Return how fast it went."""
        return self.sample_until(self._ended_at)

    def sample_until(self, ended_at: float) -> Sample:
        """Return how fast it went when what belongs to the last message took until then."""
        return rate(self._last - self._first, ended_at - self._started_at)


def rate(messages: int, seconds: float) -> Sample:
    """Return messages a second."""
    return Sample(messages / seconds if seconds > 0 else None)
