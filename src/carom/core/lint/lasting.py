"""Lasting: what is gone after a restart, and what this version of RabbitMQ, or the next one, refuses.

Rule: what depends on the server's version is said only when the version is known.
"""

from __future__ import annotations

from collections.abc import Iterator

from carom.core.lint.findings import Finding, Level, found
from carom.core.lint.versions import IGNORED_BEFORE, LATEST, shown
from carom.core.lint.view import Looked, View, knows

UNDERSTOOD_BY = {
    "x-delivery-limit": ("quorum",),
    "x-dead-letter-strategy": ("quorum",),
    "x-max-priority": ("classic",),
    "x-queue-mode": ("classic",),
    "x-max-age": ("stream",),
    "x-message-ttl": ("classic", "quorum"),
    "x-expires": ("classic", "quorum"),
    "x-overflow": ("classic", "quorum"),
    "x-dead-letter-exchange": ("classic", "quorum"),
    "x-dead-letter-routing-key": ("classic", "quorum"),
}
"""The kinds of queue that have an argument; to the others it is refused."""


def findings(view: View) -> Iterator[Finding]:
    """Yield what does not last."""
    for one in view.queues.values():
        yield from _life(view, one)
        yield from _arguments(view, one)
    for exchange in view.vhost.exchanges:
        if exchange.kind == "x-delayed-message":
            gone = view.broker.version >= LATEST
            where = view.place("exchange", exchange.name)
            yield found("delayed-exchange", where, "delays messages with a plugin", Level.ERROR if gone else None)


def _life(view: View, one: Looked) -> Iterator[Finding]:
    queue, where = one.queue, view.place("queue", one.name)
    if queue.kind != "classic":
        wrong = [
            word
            for word, is_so in (
                ("transient", not queue.durable),
                ("exclusive", queue.exclusive),
                ("deleted automatically", queue.auto_delete),
            )
            if is_so
        ]
        if wrong:
            yield found("quorum-refused", where, f"is a {queue.kind} queue and {' and '.join(wrong)}")
        return
    if queue.exclusive:
        return  # it belongs to one connection, and is meant to go with it
    if not queue.durable:
        level = Level.ERROR if view.broker.version >= LATEST else None
        yield found("transient-queue", where, "is not durable", level)
    elif queue.auto_delete:
        yield found("auto-delete-queue", where, "is durable and is deleted when its last consumer goes")


def _arguments(view: View, one: Looked) -> Iterator[Finding]:
    where = view.place("queue", one.name)
    for name in one.queue.arguments:
        since = IGNORED_BEFORE.get(name)
        if one.kind not in UNDERSTOOD_BY.get(name, (one.kind,)):
            yield found("argument-refused", where, f"has {name} as a {one.kind} queue, which is refused")
        elif name == "x-queue-mode" and view.broker.version >= LATEST:
            yield found("argument-refused", where, f"has {name}, which is refused since {shown(LATEST)}")
        elif since is not None and knows(view.broker) and view.broker.version < since:
            yield found("argument-ignored", where, f"has {name}, which is ignored before {shown(since)}")
