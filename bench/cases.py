"""What a benchmark is made of: cases, each a function that runs in a process of its own, and what is to be reached.

Rule: a case says in its name how it is set up; what is compared is compared within one run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["carom", "limit", "peer"]
Needs: TypeAlias = Literal["nothing", "empty queue", "full queue"]
"""What is to be there before, and so what is to be left: as many messages as were published, or none."""


@dataclass(frozen=True, slots=True)
class Case:
    """One way to do one thing.

    ``subject`` is what others compare themselves with: a short name, one for each peer or limit. ``share`` is the
    part of the messages that is enough for somebody slow. ``delay_ms`` says how long a retry waits, by the number of
    messages. Who ``declares`` makes the queue itself. A peer is run by an environment of its own.
    """

    subject: str
    name: str
    module: str
    function: str
    role: Role = "carom"
    needs: Needs = "nothing"
    declares: bool = True
    share: float = 1.0
    delay_ms: Callable[[int], int] | None = None

    def messages(self, asked: int) -> int:
        """Return how many messages this case is measured with."""
        return max(1, int(asked * self.share))


@dataclass(frozen=True, slots=True)
class Target:
    """What a case of Carom is to reach: ratios to others, and bounds on what it measures."""

    ratios: Mapping[str, float] = field(default_factory=dict)
    at_least: Mapping[str, float] = field(default_factory=dict)
    at_most: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark: its cases, and how much of everything is usual.

    ``warm_up`` is the part of the messages that passes before anything is measured.
    """

    name: str
    about: str
    cases: tuple[Case, ...]
    messages: int
    rounds: int = 5
    warm_up: float = 0.1
    targets: Mapping[str, Target] = field(default_factory=dict)
    embedded: bool = False
    database: bool = False

    def chosen(self, subjects: frozenset[str] | None) -> tuple[Case, ...]:
        """Return Carom's cases and those of these subjects; of all, when nobody chose."""
        return tuple(one for one in self.cases if one.role == "carom" or subjects is None or one.subject in subjects)


def limit(
    name: str,
    function: str,
    needs: Needs,
    subject: str = "pika-asyncio",
    delay_ms: Callable[[int], int] | None = None,
) -> Case:
    """Return a case of the client library itself."""
    return Case(subject, name, "bench.peers.pika_asyncio", function, "limit", needs, declares=False, delay_ms=delay_ms)


def peer(
    subject: str,
    name: str,
    function: str,
    needs: Needs,
    share: float = 1.0,
    module: str | None = None,
    *,
    declares: bool = False,
) -> Case:
    """Return a case of something one could use instead."""
    where = module or subject.replace("-", "_")
    return Case(subject, name, f"bench.peers.{where}", function, "peer", needs, declares, share)
