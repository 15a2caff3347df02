"""The review: everything there is to say about a RabbitMQ, and about the one it is to become.

Rule: the same thing is said once; the order is that of importance, then of names, and never of chance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from carom.core.lint import deaths, delays, keeping, lasting, policing
from carom.core.lint.findings import Finding, Level, found
from carom.core.lint.seen import Inventory
from carom.core.lint.versions import LATEST, OLDEST, Version, shown
from carom.core.lint.view import View, knows, views


def review(
    broker: Inventory, upgrade_to: Version | None = None, only: Collection[str] | None = None
) -> tuple[Finding, ...]:
    """Return the findings about a broker, worst first.

    With ``upgrade_to`` also what is unsafe only after that upgrade. Without, what the latest version would break is
    told as a note, where the version of the server is known. ``only`` names queues: others are passed over.
    """
    now = list(_all(broker, only))
    target = upgrade_to or LATEST
    if knows(broker) and broker.version < target:
        known = {(one.code, one.subject): one.level for one in now}
        for one in _all(replace(broker, version=target), only):
            before = known.get((one.code, one.subject), Level.FINE)
            told = Level.NOTE if upgrade_to is None else before
            if one.level >= Level.WARNING and before <= told < one.level:
                now.append(_later(one, target, Level.NOTE if upgrade_to is None else one.level))
    return ordered(now)


def ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return findings without repetition, worst first, then by code and place."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda one: (-one.level, one.code, one.subject, one.says)))


def _later(one: Finding, target: Version, level: Level) -> Finding:
    return replace(one, level=level, says=f"on RabbitMQ {shown(target)}: {one.says}")


def _all(broker: Inventory, only: Collection[str] | None) -> Iterator[Finding]:
    if knows(broker) and broker.version < OLDEST:
        yield found("server-too-old", f"RabbitMQ {shown(broker.version)}", "is older than 3.10")
    for view in views(broker):
        wanted = None if only is None else {view.place("queue", name) for name in only}
        for one in _of(view):
            if wanted is None or one.subject in wanted or not one.subject.startswith("queue "):
                yield one


def _of(view: View) -> Iterator[Finding]:
    for room in (deaths, delays, keeping, lasting, policing):
        yield from room.findings(view)
