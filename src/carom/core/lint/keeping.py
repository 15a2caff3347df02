"""Keeping: queues where work is done, and queues of dead letters. What they lose, and what they take for ever.

Rule: a dead letter stays until somebody takes it; a message that cannot be handled stops coming back some day.
"""

from __future__ import annotations

from collections.abc import Iterator

from carom.core.lint.findings import Finding, Level, found
from carom.core.lint.versions import LIMITED
from carom.core.lint.view import Looked, View, knows

SELDOM = 1_000
"""A delivery limit that looking at dead letters does not reach."""


def findings(view: View) -> Iterator[Finding]:
    """Yield what is wrong with where messages are kept."""
    for name in sorted(view.dead):
        yield from _dead(view, view.queues[name])
    given_back = {name for delay in view.delays for name in view.targets(view.queues[delay]) or ()}
    for one in view.work():
        yield from _work(view, one, retried=one.name in given_back)
    for one in view.queues.values():
        facts = one.queue.facts
        if facts is not None and facts.without_ack:
            where = view.place("queue", one.name)
            yield found("consumed-without-ack", where, f"has {facts.without_ack} consumers that do not acknowledge")


def _dead(view: View, one: Looked) -> Iterator[Finding]:
    where = view.place("queue", one.name)
    if one.waits_ms is not None:
        yield found("dlq-expires", where, f"dead letters are deleted after {one.waits_ms} ms{_by(one, 'message-ttl')}")
    if "expires" in one.values:
        says = f"is deleted when nobody used it for {one.values['expires']} ms{_by(one, 'expires')}"
        yield found("dlq-expires", where, says)
    if one.bounded and not one.rejects:
        yield found("dlq-drops", where, "has a greatest length and lets its oldest dead letters go then")
    limit = view.limit(one)
    if limit is not None and limit < SELDOM:
        yield found("dlq-peeked-away", where, f"deletes a dead letter that was looked at {limit + 1} times")


def _work(view: View, one: Looked, *, retried: bool) -> Iterator[Finding]:
    where = view.place("queue", one.name)
    lasting = one.queue.durable and not one.queue.exclusive
    limit = view.limit(one)
    if one.exchange is None and limit is not None:
        yield found("limit-without-dlx", where, f"deletes a message that came back {limit + 1} times")
    elif one.exchange is None and retried:
        yield found("work-without-dlx", where, "takes retries and has no dead letter exchange")
    if one.kind == "quorum" and limit is None and not _is_bounded(view, one):
        yield found("unlimited-redelivery", where, "is a quorum queue without a delivery limit")
    elif one.kind == "classic" and lasting and (one.exchange is not None or retried):
        says = "is a classic queue, which counts no deliveries"
        yield found("unlimited-redelivery", where, says, Level.NOTE)
    if one.bounded and not one.rejects:
        level = Level.NOTE if one.exchange is not None else Level.WARNING
        yield found("work-drops", where, "has a greatest length and lets its oldest messages go then", level)
    if one.waits_ms is not None and one.exchange is not None:
        says = f"messages that nobody handled for {one.waits_ms} ms become dead letters{_by(one, 'message-ttl')}"
        yield found("work-expires", where, says)


def _is_bounded(view: View, one: Looked) -> bool:
    """Tell whether a limit was given that is only too high to be reached, or whether it cannot be told."""
    given = one.number("delivery-limit")
    if given is not None:
        return given >= 0
    return not knows(view.broker) or view.broker.version >= LIMITED


def _by(one: Looked, key: str) -> str:
    names = [
        policy.name for policy in (*one.applied.operators[:1], *one.applied.matching[:1]) if key in policy.definition
    ]
    return f", by policy {names[0]!r}" if names else ""
