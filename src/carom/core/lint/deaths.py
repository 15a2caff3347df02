"""Dead letters: where they go, whether they arrive, and whether they go round in circles.

Rule: a finding is certain. Where a dead letter keeps a key that only the message knows, only what holds for every key
is said.
"""

from __future__ import annotations

from collections.abc import Iterator

from carom.core.lint.findings import Finding, found
from carom.core.lint.versions import FLAGLESS
from carom.core.lint.view import Looked, View, is_routable, knows
from carom.core.soundness import loops


def findings(view: View) -> Iterator[Finding]:
    """Yield what is wrong with the dead letters of a vhost."""
    for one in view.queues.values():
        yield from _ways(view, one)
        yield from _strategy(view, one)
    for way in loops(view.topology):
        text = " -> ".join(way)
        yield found("dlx-cycle", view.place("queue", way[0]), f"its dead letters come back by themselves: {text}")


def _ways(view: View, one: Looked) -> Iterator[Finding]:
    where, exchange = view.place("queue", one.name), one.exchange
    if exchange is None:
        if one.waits_ms is not None and one.name not in view.dead:
            says = f"messages expire after {one.waits_ms} ms, and it has no dead letter exchange"
            yield found("ttl-without-dlx", where, says)
        return
    here = view.exchanges.get(exchange)
    if exchange and here is None:
        yield found("dlx-missing", where, f"its dead letters go to exchange {exchange!r}, which does not exist")
        return
    certain = here is None or is_routable(here)
    to = "the default exchange" if here is None else f"exchange {exchange!r}"
    if here is not None and not view.bound(exchange) and here.arguments.get("alternate-exchange") is None:
        if certain:
            yield found("dlx-unbound", where, f"its dead letters go to {to}, and nothing is bound to it")
    elif certain and (here is None or here.kind != "headers") and view.targets(one) == frozenset():
        key = "" if one.key is None else f" with key {one.key!r}"
        yield found("dlx-unbound", where, f"its dead letters go to {to}{key}, where no queue takes them")


def _strategy(view: View, one: Looked) -> Iterator[Finding]:
    where = view.place("queue", one.name)
    if one.exchange is None or one.kind == "stream":
        return
    if not one.at_least_once:
        yield found("dead-letters-at-most-once", where, f"is a {one.kind} queue that sends dead letters at most once")
        return
    if one.kind != "quorum":
        yield found("at-least-once-downgraded", where, f"asks for at-least-once dead lettering as a {one.kind} queue")
    elif one.values.get("overflow") != "reject-publish":
        by = " by a policy" if "overflow" in one.applied.defines else ""
        is_ = one.values.get("overflow", "drop-head")
        yield found("at-least-once-downgraded", where, f"asks for at-least-once dead lettering with overflow {is_}{by}")
    elif knows(view.broker) and view.broker.version < FLAGLESS and view.broker.flags.get("stream_queue") is False:
        says = "asks for at-least-once dead lettering, and the feature flag stream_queue is off"
        yield found("at-least-once-downgraded", where, says)
    else:
        yield from _pinned(view, one, where)


def _pinned(view: View, one: Looked, where: str) -> Iterator[Finding]:
    """Yield a finding when messages for one missing queue stop those for all others."""
    if one.key is not None:
        return
    if not one.exchange:
        says = "sends dead letters with their own keys to the default exchange, which can have no alternate exchange"
        yield found("at-least-once-pins", where, says)
        return
    here = view.exchanges.get(one.exchange)
    if here is not None and here.kind != "fanout" and here.arguments.get("alternate-exchange") is None:
        says = f"sends dead letters with their own keys to exchange {here.name!r}, which has no alternate exchange"
        yield found("at-least-once-pins", where, says)
