"""Grants: the least that each role may do on a broker, as the three regular expressions that RabbitMQ asks.

    admin      makes the topology            publisher, relay   publish
    worker     handles, retries, buries      console            reads dead letters and sends them again

Rule: an expression names things one by one, anchored and escaped; nothing is granted by a pattern that fits more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from carom.core.routing import NO_HEADERS, router
from carom.core.settlement import Layout
from carom.core.topology import DEFAULT_EXCHANGE, Topology

Role: TypeAlias = Literal["admin", "publisher", "relay", "worker", "console"]
ROLES: tuple[Role, ...] = ("admin", "publisher", "relay", "worker", "console")
DEFAULT_EXCHANGE_PERMISSION = "amq.default"
"""How the default exchange is called in permissions. Who may write there may write to every queue of the vhost."""


MANY = 10_000
"""More delays than anybody declares a queue for: a layout that makes any delay out of a few."""


@dataclass(frozen=True, slots=True)
class Grants:
    """The names a role may configure, write to and read from."""

    configure: frozenset[str] = frozenset()
    write: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()

    def __or__(self, other: Grants) -> Grants:
        return Grants(self.configure | other.configure, self.write | other.write, self.read | other.read)

    @property
    def patterns(self) -> tuple[str, str, str]:
        """Return what RabbitMQ is told: configure, write, read."""
        return _pattern(self.configure), _pattern(self.write), _pattern(self.read)

    @property
    def everywhere(self) -> bool:
        """Tell whether this lets write to every queue of the vhost, by its name."""
        return DEFAULT_EXCHANGE_PERMISSION in self.write


def grants(layout: Layout, queues: Iterable[str], exchange: str, roles: Iterable[Role], later: str = "") -> Grants:
    """Return what these roles need for some queues in a layout, taken together.

    ``queues`` are those that are listened to, ``later`` the one that delayed messages come to.
    """
    asked, listened = set(roles), tuple(queues)
    granted = Grants()
    if "admin" in asked:
        granted |= _admin(layout.topology)
    if asked & {"publisher", "relay"}:
        granted |= Grants(write=_exchanges({exchange, *_delays(layout, [later] if later else [])}))
    if "worker" in asked:
        granted |= _worker(layout, listened)
    if "console" in asked:
        granted |= _console(layout, listened, exchange)
    return granted


def _admin(topology: Topology) -> Grants:
    """A binding is a write to its target and a read of its source; a dead letter exchange is a write to it."""
    names = {one.name for one in topology.exchanges} | {one.name for one in topology.queues}
    leads = {one.dead_letter_exchange for one in topology.queues} | {one.alternate for one in topology.exchanges}
    written = _exchanges({name for name in leads if name is not None}) | {one.target for one in topology.bindings}
    read = {one.source for one in topology.bindings}
    read |= {one.name for one in topology.queues if one.dead_letter_exchange is not None}
    read |= {one.name for one in topology.exchanges if one.alternate is not None}
    return Grants(frozenset(names), frozenset(written), frozenset(read))


def _worker(layout: Layout, queues: tuple[str, ...]) -> Grants:
    written = {layout.queue_address(queue).exchange for queue in queues} | set(_delays(layout, queues))
    written |= {layout.dead_address(queue).exchange for queue in queues}
    written |= {layout.suspect_address(queue).exchange for queue in queues}
    return Grants(write=_exchanges(written), read=frozenset({*queues, layout.suspects} if queues else ()))


def _console(layout: Layout, queues: tuple[str, ...], exchange: str) -> Grants:
    find = router(layout.topology)
    addresses = [layout.dead_address(queue) for queue in queues]
    dead = {name for one in addresses for name in find(one.exchange, one.routing_key, NO_HEADERS)}
    lost = {
        binding.target
        for binding in layout.topology.bindings
        if binding.source in {one.alternate for one in layout.topology.exchanges}
    }
    back = {layout.queue_address(queue).exchange for queue in queues}
    return Grants(write=_exchanges({exchange, *back}), read=frozenset(dead | lost))


def _delays(layout: Layout, queues: Iterable[str]) -> set[str]:
    return {layout.delay_address(queue, delay).exchange for queue in queues for delay in _some(layout.delays(queue))}


def _some(delays: Sequence[int]) -> Iterable[int]:
    """Return all delays, or of a range that nobody could go through the ends and what lies around each doubling."""
    if len(delays) <= MANY:
        return delays
    doublings = [1 << power for power in range(len(delays).bit_length())]
    near = {place + beside for place in doublings for beside in (-1, 0)}
    return [delays[place] for place in sorted({0, len(delays) - 1, *near}) if place < len(delays)]


def _exchanges(names: Iterable[str]) -> frozenset[str]:
    return frozenset(DEFAULT_EXCHANGE_PERMISSION if name == DEFAULT_EXCHANGE else name for name in names)


def _pattern(names: frozenset[str]) -> str:
    return "^$" if not names else "^(" + "|".join(re.escape(name) for name in sorted(names)) + ")$"
