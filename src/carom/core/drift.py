"""Drift: how a live broker differs from the topology an app needs, and what an app has left behind there.

Rule: only what was certainly made for this app is called left over: what the same app would have in another layout, or
a delay queue like one of its own with another delay. What others may use, by a binding or as a way back, is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import cast

from carom.core.lint.seen import Exchange as SeenExchange
from carom.core.lint.seen import Queue as SeenQueue
from carom.core.lint.seen import Vhost
from carom.core.topology import Argument, Binding, Change, Exchange, ExchangeKind, Queue, Topology, arguments, diff

_FAMILY = re.compile(r"(.*[^0-9A-Za-z])[0-9][0-9A-Za-z]*")
"""A name that ends in a delay, and what is before it."""


@dataclass(frozen=True, slots=True)
class Drift:
    """What is missing, what is there and different, and what is left over. False when there is none of them.

    ``stays`` are leftovers that others may use, each with the reason; they are no drift.
    """

    missing: Topology = field(default_factory=Topology)
    changed: tuple[Change, ...] = ()
    leftovers: Topology = field(default_factory=Topology)
    stays: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changed) or self.missing != Topology() or self.leftovers != Topology()


def there(vhost: Vhost) -> Topology:
    """Return what a vhost has, as a topology."""
    return Topology(
        tuple(_exchange(one) for one in vhost.exchanges if one.name),
        tuple(_queue(one) for one in vhost.queues if not one.exclusive),
        tuple(
            Binding(
                one.source, one.target, one.key, "exchange" if one.to == "exchange" else "queue", _plain(one.arguments)
            )
            for one in vhost.bindings
            if one.source
        ),
    )


def drift(wanted: Topology, vhost: Vhost, once: Iterable[Topology] = ()) -> Drift:
    """Compare. ``once`` are topologies the same app has, or may have had, in other layouts."""
    actual = there(vhost)
    found = diff(wanted, actual)
    candidates = _candidates(wanted, actual, tuple(once))
    leftovers, stays = _unused(candidates, wanted, actual)
    going = {queue.name for queue in vhost.queues if queue.auto_delete and wanted.queue(queue.name)}
    return Drift(
        Topology(found.missing_exchanges, found.missing_queues, found.missing_bindings),
        (*found.changed, *(Change("queue", name, "auto-delete", wanted=False, actual=True) for name in sorted(going))),
        leftovers,
        stays,
    )


def _candidates(wanted: Topology, actual: Topology, once: tuple[Topology, ...]) -> Topology:
    """Return everything that is there and was made for this app, but is not wanted."""
    alike = {(_family(queue.name), _but_its_delay(queue)) for queue in wanted.queues if queue.ttl_ms is not None}
    other = {queue.name for one in once for queue in one.queues}
    queues = tuple(
        queue
        for queue in actual.queues
        if wanted.queue(queue.name) is None
        and (queue.name in other or (_family(queue.name), _but_its_delay(queue)) in alike)
    )
    names = {exchange.name for one in once for exchange in one.exchanges}
    names |= {queue.name for queue in queues if queue.ttl_ms is not None}
    exchanges = tuple(one for one in actual.exchanges if one.name in names and wanted.exchange(one.name) is None)
    old = {binding for one in once for binding in one.bindings}
    bindings = tuple(
        one
        for one in actual.bindings
        if one not in wanted.bindings
        and (one in old or _is_dropped(one, wanted) or (one.source in {each.name for each in exchanges}))
    )
    return Topology(exchanges, queues, bindings)


def _is_dropped(binding: Binding, wanted: Topology) -> bool:
    """Tell whether a binding of ours is for a key that a listener no longer names."""
    return binding.to == "queue" and any(
        one.source == binding.source and one.target == binding.target for one in wanted.bindings
    )


def _unused(candidates: Topology, wanted: Topology, actual: Topology) -> tuple[Topology, tuple[str, ...]]:
    """Leave out, again and again, what something that stays leads to or comes back through."""
    left, stays = candidates, dict[str, None]()
    while True:
        reasons = dict(_reasons(left, wanted, actual))
        if not reasons:
            return left, tuple(stays)
        stays.update(dict.fromkeys(f"{kind} {name!r}: {reason}" for (kind, name), reason in reasons.items()))
        left = Topology(
            tuple(one for one in left.exchanges if ("exchange", one.name) not in reasons),
            tuple(one for one in left.queues if ("queue", one.name) not in reasons),
            tuple(one for one in left.bindings if ("exchange", one.source) not in reasons),
        )


def _reasons(left: Topology, wanted: Topology, actual: Topology) -> Iterator[tuple[tuple[str, str], str]]:
    going = {("exchange", one.name) for one in left.exchanges} | {("queue", one.name) for one in left.queues}
    ours = {("exchange", one.name) for one in wanted.exchanges} | {("queue", one.name) for one in wanted.queues}
    for binding in actual.bindings:
        source, target = ("exchange", binding.source), (binding.to, binding.target)
        if source in going and target not in going | ours:
            yield source, f"{binding.to} {binding.target!r} is bound to it"
        if target in going and source not in going and binding not in left.bindings:
            yield target, f"it is bound to exchange {binding.source!r}, which stays"
    for exchange in actual.exchanges:
        if ("exchange", exchange.name) not in going and ("exchange", exchange.alternate or "") in going:
            yield ("exchange", exchange.alternate or ""), f"it is the alternate exchange of {exchange.name!r}"
    for queue in actual.queues:
        leads = ("exchange", queue.dead_letter_exchange or "")
        if ("queue", queue.name) not in going and leads in going and ("queue", queue.name) not in ours:
            yield leads, f"queue {queue.name!r} sends its dead letters there"
    for queue in left.queues:
        # What goes back by any key through the default exchange may be of whoever is bound to an exchange of ours.
        anybody = queue.dead_letter_exchange == "" and queue.dead_letter_key is None
        ways = {one.name for one in wanted.exchanges} if anybody else {queue.dead_letter_exchange}
        others = sorted(
            one.target for one in actual.bindings if one.source in ways and (one.to, one.target) not in going | ours
        )
        if queue.ttl_ms is not None and others:
            yield ("queue", queue.name), f"retries of {others[0]!r} may come back from it"
            yield ("exchange", queue.name), f"retries of {others[0]!r} may wait behind it"


def _family(name: str) -> str:
    found = _FAMILY.fullmatch(name)
    return found[1] if found else name


def _but_its_delay(queue: Queue) -> tuple[object, ...]:
    return tuple(one for one in queue.arguments if one[0] != "x-message-ttl") if queue.ttl_ms is not None else ()


def _exchange(one: SeenExchange) -> Exchange:
    alternate = one.arguments.get("alternate-exchange")
    kind = cast("ExchangeKind", one.kind)
    return Exchange(one.name, kind, one.durable, one.internal, None if alternate is None else str(alternate))


def _queue(one: SeenQueue) -> Queue:
    return replace(Queue(one.name, one.durable), arguments=_plain({**one.arguments, "x-queue-type": one.kind}))


def _plain(values: object) -> tuple[tuple[str, Argument], ...]:
    there = cast("dict[str, object]", values)
    return arguments({key: value if isinstance(value, str | int) else str(value) for key, value in there.items()})
