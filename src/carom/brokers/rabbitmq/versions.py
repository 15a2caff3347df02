"""What a version of RabbitMQ can be told: arguments it does not know yet, or does not know any more.

A server stores an argument that it does not know and ignores it in silence. The queue then looks as it should and does
something else. Carom's own layouts use only what means the same from 3.10 to 4.3; other topologies may not.

Rule: everything that depends on the server's version when something is declared is written here, and only here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from carom.core.lint.versions import IGNORED_BEFORE, version_of
from carom.core.topology import Queue, Topology
from carom.errors import Unsupported

Version: TypeAlias = tuple[int, int]

UNTIL: dict[str, Version] = {"x-queue-mode": (4, 3)}
"""Arguments of queues that servers refuse from this version on."""

LASTING = (4, 3)
"""The version from which on a queue has to be durable."""


def check(topology: Topology, server: str) -> None:
    """Refuse what this server would ignore or not take. Raises Unsupported with every reason.

    A server that does not say its version is not doubted.
    """
    version = version_of(server)
    reasons = [reason for queue in topology.queues for reason in _reasons(queue, version)] if any(version) else []
    if reasons:
        lines = "\n".join(f"  - {reason}" for reason in reasons)
        raise Unsupported(f"RabbitMQ {server} cannot do what is asked:\n{lines}")


def _reasons(queue: Queue, version: Version) -> Iterator[str]:
    for name, _ in queue.arguments:
        since, until = IGNORED_BEFORE.get(name), UNTIL.get(name)
        if since is not None and version < since:
            yield f"queue {queue.name!r} has {name}, which is ignored before {_shown(since)}: leave it out, or upgrade"
        if until is not None and version >= until:
            yield f"queue {queue.name!r} has {name}, which is refused since {_shown(until)}: leave it out"
    if not queue.durable and version >= LASTING:
        yield f"queue {queue.name!r} is not durable, which is refused since {_shown(LASTING)}: make it durable"


def _shown(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
