"""Waiting: delay queues, what they do with a retry, and what can happen to it there.

Rule: a delay queue has one time for all its messages, loses none of them, and gives each back to one queue.
"""

from __future__ import annotations

from collections.abc import Iterator

from carom.core.lint.findings import Finding, found
from carom.core.lint.view import Looked, View


def findings(view: View) -> Iterator[Finding]:
    """Yield what is wrong with the delays of a vhost."""
    for name in sorted(view.delays):
        one = view.queues[name]
        yield from _time(view, one)
        yield from _multiplied(view, one)
        yield from _lost(view, one)


def _time(view: View, one: Looked) -> Iterator[Finding]:
    where = view.place("queue", one.name)
    if one.waits_ms is None:
        yield found("per-message-ttl", where, "has no time to live of its own: each message brings how long it waits")
        return
    by_policy = [key for key in ("message-ttl", "dead-letter-exchange") if one.by_policy(key)]
    if by_policy:
        yield found("delay-by-policy", where, f"has its {' and '.join(by_policy)} from a policy alone")


def _multiplied(view: View, one: Looked) -> Iterator[Finding]:
    where, reached = view.place("queue", one.name), view.targets(one)
    if reached is None:
        reached = _whoever(view, one)
        if len(reached) > 1:
            says = f"gives back what waited to exchange {one.exchange!r}, where one key reaches several of"
            yield found("retry-fans-out", where, f"{says} {_listed(reached)}")
    elif len(reached) > 1:
        key = "" if one.key is None else f" with key {one.key!r}"
        says = f"gives back what waited to exchange {one.exchange!r}{key}, which is {len(reached)} queues"
        yield found("retry-fans-out", where, f"{says}: {_listed(reached)}")


def _whoever(view: View, one: Looked) -> frozenset[str]:
    """Return the queues that get copies of the same message, whichever: that one binding's key is wanted by several."""
    exchange = one.exchange or ""
    keys = {bound.key for bound in view.bound(exchange)}
    reached = [view.find(exchange, key, {}) for key in sorted(keys) if exchange]
    return max(reached, key=len, default=frozenset())


def _lost(view: View, one: Looked) -> Iterator[Finding]:
    where = view.place("queue", one.name)
    if "expires" in one.values:
        yield found("delay-expires", where, f"is deleted after {one.values['expires']} ms")
    if one.bounded and not one.rejects:
        yield found("delay-drops", where, f"holds no more than {_bound(one)} and lets its oldest go then")
    facts = one.queue.facts
    if facts is not None and facts.consumers:
        yield found("delay-consumed", where, f"has {facts.consumers} consumers")


def _bound(one: Looked) -> str:
    length = one.number("max-length")
    return f"{one.number('max-length-bytes')} bytes" if length is None else f"{length} messages"


def _listed(names: frozenset[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""  # noqa: PLR2004 - as many as one reads at a glance
    return ", ".join(shown[:5]) + more
