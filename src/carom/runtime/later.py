"""Messages that are published with a delay: they wait on the broker, then go where they were addressed.

A delay queue leads back to one queue and not to an exchange, because an exchange that routes nowhere would block it
for everybody. So a delayed message waits on its way to a queue of Carom's own, ``<namespace>.later``, which every
running app with ``delays=`` consumes, and from there it is published as it would have been at once.

Rule: it keeps its id. If nobody is bound for it when it is due, it is tried again, and then it is a dead letter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

from carom.codecs import Registry
from carom.core import message as wire
from carom.core.durations import Duration, milliseconds
from carom.core.message import Message
from carom.core.retry import RetryPolicy
from carom.core.settlement import Layout, Plan, postponed
from carom.errors import ConfigurationError
from carom.runtime.dispatch import read_handler
from carom.runtime.listener import Listener

CONCURRENCY = 64
CRASH_LIMIT = 5

Send: TypeAlias = Callable[[Message], Awaitable[None]]


def later_plan(namespace: str, delays: tuple[Duration, ...]) -> Plan | None:
    """Return the plan of the queue that delayed messages come to; None for an app that has no delays."""
    if not delays:
        return None
    ordered = sorted({milliseconds(delay) for delay in delays})
    if ordered[0] == 0:
        raise ConfigurationError("delays= has a delay of nothing: publish without a delay instead")
    return Plan(f"{namespace}.later", retry=RetryPolicy.delays(*(delay / 1000 for delay in ordered)))


def later_listener(plan: Plan, codecs: Registry, send: Send) -> Listener:
    """Return the listener that publishes what is due."""

    async def later(message: Message) -> None:
        await send(replace(message, headers=_own(message)))

    return Listener(
        read_handler(later, codecs),
        plan,
        concurrency=CONCURRENCY,
        prefetch=2 * CONCURRENCY,
        timeout_ms=None,
        batch=None,
    )


def delayed(message: Message, delay: Duration, plan: Plan | None, layout: Layout) -> Message:
    """Return the message as it begins to wait. Raises ConfigurationError in an app without delays."""
    if plan is None:
        raise ConfigurationError(
            "this app has no delays to publish with: name those that shall exist, as in App(delays=('10s', '5m')); "
            "a delay is rounded up to the next of them, and takes several turns beyond the longest"
        )
    waiting = postponed(message, plan, layout, milliseconds(delay))
    if waiting is None:
        raise ConfigurationError(f"the headers of message {message.id} are too large for a message that waits")
    return waiting


def _own(message: Message) -> dict[str, object]:
    """Return the headers the message had before it waited: the user's, and its ancestors."""
    kept = wire.foreign(message.headers)
    ancestors = message.trail
    return {**kept, wire.TRAIL: list(ancestors)} if ancestors else kept
