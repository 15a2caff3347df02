"""How a broker differs from what an app needs, compared and told.

Rule: what was not looked at is said; what cannot be changed in place is shown with both values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from carom.cli import definitions
from carom.cli.connecting import chosen_for
from carom.cli.output import shown
from carom.core.drift import Drift, drift
from carom.core.lint import Finding, Inventory, Level, of_topology, review
from carom.core.migration import is_stand_in
from carom.core.topology import Argument, Binding, Change, Topology
from carom.errors import BrokerUnavailable, ConfigurationError, NotPermitted, TopologyMismatch
from carom.layouts import Choice
from carom.ports import Broker, Observable
from carom.runtime.app import App

POLICED = frozenset({"policy-overrides", "dlq-expires", "delay-drops", "delay-expires", "dlq-drops"})
"""What a policy can do to a topology that is as declared."""
OURS = ("shared", "per_queue")
"""The layouts in which nobody but Carom makes anything."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What was found: by the management API, or, where it is not ``known``, only what AMQP says, as sentences.

    ``choice`` is the layout that was compared with, and why, where that was left open.
    """

    drift: Drift = field(default_factory=Drift)
    said: tuple[str, ...] = ()
    policies: tuple[Finding, ...] = ()
    known: bool = True
    choice: Choice | None = None

    def __bool__(self) -> bool:
        return bool(self.drift or self.said or self.policies)


async def compare(app: App, layout: str | None, broker: Broker, once: Sequence[str] = ()) -> Compared:
    """Compare an app's topology, perhaps in another layout, with an open broker. Nothing is changed.

    ``once`` are layouts it had before besides Carom's own: what it has left behind may be in any of them.
    """
    name = layout or app.layout_name
    choice = await chosen_for(app, broker) if name == "auto" else None
    wanted = app.in_layout(choice.name if choice else name).topology
    seen = await observed(broker)
    if seen is None:
        try:
            await broker.declare(wanted, "verify")
        except TopologyMismatch as mismatch:
            return Compared(said=tuple(mismatch.differences), known=False, choice=choice)
        return Compared(known=False, choice=choice)
    (vhost,) = seen.vhosts
    begun = tuple(
        f"queue {one.name!r} stands in for another: a migration was begun and goes on when it is run again"
        for one in vhost.queues
        if is_stand_in(one.name)
    )
    others = [app.in_layout(name).topology for name in (*OURS, *once)]
    findings = review(seen, only=[queue.name for queue in wanted.queues])
    declared = {(one.code, one.subject, one.says) for one in review(of_topology(wanted, vhost=vhost.name))}
    others_do = (one for one in findings if (one.code, one.subject, one.says) not in declared)
    policed = tuple(one for one in others_do if one.code in POLICED and one.level >= Level.WARNING)
    return Compared(drift(wanted, vhost, others), begun, policed, choice=choice)


async def observed(broker: Broker) -> Inventory | None:
    """Return what a broker has; None where there is no management API that lets us in."""
    if not isinstance(broker, Observable):
        return None
    try:
        return await broker.observe()
    except (ConfigurationError, NotPermitted, BrokerUnavailable):
        return None


def told(compared: Compared) -> str:
    """Return what was found, for people."""
    lines = list(_lines(compared))
    if compared.choice is not None:
        lines.insert(0, f"layout {compared.choice.name}: {compared.choice.why}")
    if not compared:
        lines.append("everything is there, as it is needed")
    if not compared.known:
        lines.append("bindings, policies and leftovers were not looked at: that needs the management API")
    return "\n".join(shown(line) for line in lines)


def written(app: App, compared: Compared) -> dict[str, Any]:
    """Return what was found, as JSON values."""
    found = compared.drift
    return {
        "app": app.name,
        "layout": None if compared.choice is None else {"name": compared.choice.name, "why": compared.choice.why},
        "drift": bool(compared),
        "create": definitions.written(found.missing),
        "differs": [_change(one) for one in found.changed],
        "left_over": definitions.written(found.leftovers),
        "stays": list(found.stays),
        "policies": [{"code": one.code, "subject": one.subject, "says": one.says} for one in compared.policies],
        "said": list(compared.said),
        "everything_looked_at": compared.known,
    }


def indented(value: Mapping[str, Any]) -> str:
    """Return JSON as people read it."""
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def _lines(compared: Compared) -> Iterator[str]:
    found = compared.drift
    yield from (f"! {one}" for one in compared.said)
    yield from (f"+ {one}" for one in _things(found.missing))
    for change in found.changed:
        both = f"{change.argument} is {_value(change.actual)}, and {_value(change.wanted)} is wanted"
        yield f"! {change.thing} {change.name}: {both}; it cannot be changed in place, 'carom topology migrate' can"
    yield from (f"! {one.subject}: {one.says}" for one in compared.policies)
    yield from (f"- {one}" for one in _things(found.leftovers))
    yield from (f"  stays: {one}" for one in found.stays)


def _things(topology: Topology) -> Iterator[str]:
    for exchange in topology.exchanges:
        yield f"{exchange.kind} exchange {exchange.name}"
    for queue in topology.queues:
        yield f"{queue.kind} queue {queue.name}"
    yield from (_binding(one) for one in topology.bindings)


def _binding(one: Binding) -> str:
    key = f" with key {one.key!r}" if one.key else ""
    return f"binding of {one.to} {one.target} to {one.source}{key}"


def _change(one: Change) -> dict[str, Any]:
    return {
        "thing": one.thing,
        "name": one.name,
        "argument": one.argument,
        "wanted": one.wanted,
        "actual": one.actual,
    }


def _value(value: Argument | None) -> str:
    return "not set" if value is None else repr(value)
