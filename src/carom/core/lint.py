"""What is unsafe about a topology and the server it is on, and why: findings, worst first.

Rule: a finding names its subject, says what is the matter, and says what to do about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from carom.core.durations import text

if TYPE_CHECKING:
    from carom.core.topology import Queue, Topology

OLDEST = (3, 10)
CONSUMER_TIMEOUT_MS = 1_800_000
"""How long RabbitMQ lets a message be unacknowledged before it takes it back, unless it is told otherwise."""
OPERATOR_KEYS = ("message-ttl", "expires", "max-length", "max-length-bytes", "overflow", "delivery-limit")
"""What a policy can change under a queue: a shorter time to live, an end of the queue, a silent loss."""


class Level(IntEnum):
    """How much it matters."""

    FINE = 0
    NOTE = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, and what to do about it; nothing when it is fine."""

    level: Level
    subject: str
    says: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What a server says of a queue. ``policy`` is what its effective policies set."""

    ready: int
    consumers: int
    policy: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """The exchanges that somebody publishes to, and the queues that he consumes from."""

    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself. ``queues`` has None for one that does not exist.

    ``denied`` are the needs that this user is not permitted to meet; None when nobody could ask. ``versions`` are those
    of all nodes of a cluster, where they are known.
    """

    version: str
    alarm: str = ""
    management: bool = False
    queues: Mapping[str, QueueFacts | None] | None = None
    denied: Needs | None = None
    versions: tuple[str, ...] = ()


def worst(findings: Iterable[Finding]) -> Level:
    """Return the highest level among findings."""
    return max((finding.level for finding in findings), default=Level.FINE)


def lint_server(facts: ServerFacts, topology: Topology, timeouts_ms: Mapping[str, int | None]) -> tuple[Finding, ...]:
    """Return what there is to say about a server for a topology whose queues have these handler timeouts."""
    found = [
        *_version(facts),
        *_alarm(facts),
        *_permissions(facts.denied, topology),
        *_timeouts(timeouts_ms),
        *(finding for queue in topology.queues for finding in _queue(queue, facts, timeouts_ms)),
    ]
    return tuple(sorted(found, key=lambda finding: -finding.level))


def version_of(said: str) -> tuple[int, int]:
    """Return the first two numbers of a version; (0, 0) when there are none."""
    numbers = re.match(r"(\d{1,4})\.(\d{1,4})", said)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def _version(facts: ServerFacts) -> Iterator[Finding]:
    subject = f"RabbitMQ {facts.version or '(no version)'}"
    if version_of(facts.version) < OLDEST:
        yield Finding(
            Level.ERROR,
            subject,
            "is older than 3.10: its quorum queues neither expire messages nor dead-letter them safely",
            "upgrade it to 3.10 or later",
        )
    else:
        yield Finding(Level.FINE, subject, "has what is needed")
    if len(set(facts.versions)) > 1:
        yield Finding(
            Level.WARNING,
            "cluster",
            f"its nodes run different versions: {', '.join(sorted(set(facts.versions)))}",
            "finish the upgrade; until then only what all of them understand is declared",
        )
    if not facts.management:
        yield Finding(
            Level.NOTE,
            "management API",
            "was not asked, so policies and bindings were not looked at",
            "give its address with ?management=http://host:15672 in the broker's URL",
        )


def _alarm(facts: ServerFacts) -> Iterator[Finding]:
    if facts.alarm:
        yield Finding(
            Level.ERROR,
            "alarm",
            f"the broker takes no messages: {facts.alarm}",
            "free memory or disk on it, or raise its limits; publishing goes on by itself then",
        )
    else:
        yield Finding(Level.FINE, "alarms", "there are none, messages are taken")


def _permissions(denied: Needs | None, topology: Topology) -> Iterator[Finding]:
    if denied is None:
        return
    public = {exchange.name for exchange in topology.exchanges if exchange.public}
    for exchange in denied.writes:
        yield Finding(
            Level.NOTE if exchange in public else Level.ERROR,
            f"exchange {exchange or '(the default one)'}",
            "this user may not publish to it"
            + ("" if exchange in public else ", so what fails or dies is never settled and keeps coming back"),
            "grant write on it with 'rabbitmqctl set_permissions', unless this app only consumes"
            if exchange in public
            else "grant write on it with 'rabbitmqctl set_permissions'",
        )
    for queue in denied.reads:
        yield Finding(
            Level.ERROR,
            f"queue {queue}",
            "this user may not consume from it",
            "grant read on it with 'rabbitmqctl set_permissions'",
        )
    if denied == Needs():
        yield Finding(Level.FINE, "permissions", "this user may publish and consume where this app does")


def _timeouts(timeouts_ms: Mapping[str, int | None]) -> Iterator[Finding]:
    for queue, timeout_ms in timeouts_ms.items():
        if timeout_ms is not None and timeout_ms >= CONSUMER_TIMEOUT_MS:
            yield Finding(
                Level.WARNING,
                f"queue {queue}",
                f"its handler may run for {text(timeout_ms)}, and a broker takes a message back after 30m by default",
                "shorten the timeout, or raise consumer_timeout on the broker",
            )


def _queue(queue: Queue, facts: ServerFacts, timeouts_ms: Mapping[str, int | None]) -> Iterator[Finding]:
    known = (facts.queues or {}).get(queue.name)
    if known is None:
        return
    subject = f"queue {queue.name}"
    for key in OPERATOR_KEYS:
        if known.policy and key in known.policy:
            yield Finding(
                Level.WARNING,
                subject,
                f"a policy sets {key} to {known.policy[key]!r}, which may lose or shorten what waits there",
                "leave Carom's queues out of that policy's pattern",
            )
    if queue.name in timeouts_ms:
        if known.ready and not known.consumers:
            yield Finding(
                Level.WARNING, subject, f"{known.ready} messages are ready and nobody consumes", "start a worker"
            )
    elif known.ready and _is_last(queue):
        yield Finding(
            Level.NOTE, subject, f"{known.ready} messages are kept here", "look at their reasons and send them again"
        )


def _is_last(queue: Queue) -> bool:
    """Tell whether messages stay where they are once they are here: a dead letter queue, or the lost ones."""
    return queue.ttl_ms is None and queue.dead_letter_exchange is None
