"""An app's server: what there is to say about it for the queues of one app.

Rule: what only looks at the moment (depths, alarms, timeouts) is here; what is unsafe at any time is the review's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from carom.core.durations import text
from carom.core.lint.findings import Finding, Level, found
from carom.core.lint.versions import OLDEST, version_of

if TYPE_CHECKING:
    from carom.core.topology import Queue, Topology

CONSUMER_TIMEOUT_MS = 1_800_000
"""How long RabbitMQ lets a message be unacknowledged before it takes it back, unless it is told otherwise."""


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


def lint_server(facts: ServerFacts, topology: Topology, timeouts_ms: Mapping[str, int | None]) -> tuple[Finding, ...]:
    """Return what there is to say about a server for a topology whose queues have these handler timeouts."""
    said = [
        *_version(facts),
        *_alarm(facts),
        *_permissions(facts.denied, topology),
        *_timeouts(timeouts_ms),
        *(finding for queue in topology.queues for finding in _queue(queue, facts, timeouts_ms)),
    ]
    return tuple(sorted(said, key=lambda finding: -finding.level))


def fine(subject: str, says: str) -> Finding:
    """Return that something was looked at and is well."""
    return Finding("fine", Level.FINE, subject, says)


def _version(facts: ServerFacts) -> Iterator[Finding]:
    subject = f"RabbitMQ {facts.version or '(no version)'}"
    if version_of(facts.version) < OLDEST:
        yield found("server-too-old", subject, "is older than 3.10")
    else:
        yield fine(subject, "has what is needed")
    if len(set(facts.versions)) > 1:
        says = f"its nodes run different versions: {', '.join(sorted(set(facts.versions)))}"
        yield found("mixed-versions", "cluster", says)
    if not facts.management:
        yield found("not-asked", "management API", "was not asked")


def _alarm(facts: ServerFacts) -> Iterator[Finding]:
    if facts.alarm:
        yield found("server-alarmed", "alarm", f"the broker takes no messages: {facts.alarm}")
    else:
        yield fine("alarms", "there are none, messages are taken")


def _permissions(denied: Needs | None, topology: Topology) -> Iterator[Finding]:
    if denied is None:
        return
    public = {exchange.name for exchange in topology.exchanges if exchange.public}
    for exchange in denied.writes:
        subject, says = f"exchange {exchange or '(the default one)'}", "this user may not publish to it"
        if exchange in public:
            yield found("not-permitted", subject, f"{says}, which is fine where it only consumes", Level.NOTE)
        else:
            yield found(
                "not-permitted", subject, f"{says}, so what fails or dies is never settled and keeps coming back"
            )
    for queue in denied.reads:
        yield found("not-permitted", f"queue {queue}", "this user may not consume from it")
    if denied == Needs():
        yield fine("permissions", "this user may publish and consume where this app does")


def _timeouts(timeouts_ms: Mapping[str, int | None]) -> Iterator[Finding]:
    for queue, timeout_ms in timeouts_ms.items():
        if timeout_ms is not None and timeout_ms >= CONSUMER_TIMEOUT_MS:
            yield found("outlives-patience", f"queue {queue}", f"its handler may run for {text(timeout_ms)}")


def _queue(queue: Queue, facts: ServerFacts, timeouts_ms: Mapping[str, int | None]) -> Iterator[Finding]:
    known = (facts.queues or {}).get(queue.name)
    if known is None:
        return
    subject = f"queue {queue.name}"
    for key, wanted in (known.policy or {}).items():
        own = queue.argument(f"x-{key}")
        if key in POLICED and not (isinstance(own, int) and isinstance(wanted, int) and own <= wanted):
            yield found("policy-overrides", subject, f"a policy sets {key} to {wanted!r}")
    if queue.name in timeouts_ms:
        if known.ready and not known.consumers:
            yield found("not-consumed", subject, f"{known.ready} messages are ready and nobody consumes")
    elif known.ready and _is_last(queue):
        yield found("kept", subject, f"{known.ready} messages are kept here")


POLICED = ("message-ttl", "expires", "max-length", "max-length-bytes", "overflow", "delivery-limit")
"""What a policy can change under a queue: a shorter time to live, an end of the queue, a silent loss."""


def _is_last(queue: Queue) -> bool:
    """Tell whether messages stay where they are once they are here: a dead letter queue, or the lost ones."""
    return queue.ttl_ms is None and queue.dead_letter_exchange is None
