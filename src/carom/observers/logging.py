"""What happens, in the standard library's log: one record an event, with the facts as ``extra`` fields.

`message_id`, `correlation_id`, `queue`, `attempt` and, for failures, `classification`, `error_type` and the
delay or the reason are attributes of each record, so that any formatter can show them.

Rule: no payload is ever logged, and nothing from outside can forge a line: text is shown as its repr.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from carom.core.durations import text
from carom.ports import (
    ConnectionBlocked,
    ConnectionDown,
    ConnectionUnblocked,
    ConnectionUp,
    ConsumerEnded,
    StoreDown,
    StoreUp,
)
from carom.runtime import events

LOGGER = "carom"
LONGEST = 1_000
"""No sentence and no text in a field is longer, in characters."""

_LEVELS: dict[type, int] = {
    events.Received: logging.DEBUG,
    events.Handled: logging.DEBUG,
    events.Published: logging.DEBUG,
    events.Postponed: logging.DEBUG,
    events.Relayed: logging.DEBUG,
    events.Leading: logging.INFO,
    events.StandingBy: logging.INFO,
    events.Discarded: logging.INFO,
    events.Duplicate: logging.INFO,
    events.HandedBack: logging.INFO,
    events.HandlerFreed: logging.INFO,
    events.Started: logging.INFO,
    events.Stopping: logging.INFO,
    events.Stopped: logging.INFO,
    ConnectionUp: logging.INFO,
    ConnectionUnblocked: logging.INFO,
    StoreUp: logging.INFO,
    events.RelayParked: logging.ERROR,
    events.DeadLettered: logging.ERROR,
    events.HandlerStuck: logging.ERROR,
}
_FACTS = (
    "attempt",
    "crashes",
    "classification",
    "error_type",
    "delay_ms",
    "reason",
    "duration_ms",
    "result",
    "retry_in_ms",
    "seq",
    "failures",
    "count",
    "database",
)


class LoggingObserver:
    """Logs every event to the logger ``carom``. Attach handlers and set levels as with any logger."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        """Log to the given logger instead, if one is given."""
        self._logger = logger or logging.getLogger(LOGGER)

    def __call__(self, event: object) -> None:
        """Log one event; costs a comparison when its level is off."""
        level = _LEVELS.get(type(event), logging.WARNING)
        if self._logger.isEnabledFor(level):
            self._logger.log(level, sentence(event), extra=facts(event))


def facts(event: object) -> dict[str, Any]:
    """Return the fields of a log record for an event; none of them clashes with the record's own."""
    found: dict[str, Any] = {"event": type(event).__name__}
    message = getattr(event, "message", None)
    if message is not None:
        found |= {
            "message_id": message.id,
            "correlation_id": message.correlation_id,
            "routing_key": message.routing_key,
        }
    for name in ("queue", "app", *_FACTS):
        value = getattr(event, name, None)
        if value not in (None, ""):
            found[name] = value
    return {name: one_line(value) if isinstance(value, str) else value for name, value in found.items()}


def one_line(said: str) -> str:
    """Return text that is one line whatever it was, and not a long one: what does not print is written out."""
    if len(said) > LONGEST:
        said = said[:LONGEST] + "…"
    if said.isprintable():
        return said
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode() for char in said
    )


def sentence(event: object) -> str:
    """Return an event as one line for people."""
    say = _SENTENCES.get(type(event))
    return type(event).__name__ if say is None else one_line(say(event))


_SENTENCES: dict[type, Callable[[Any], str]] = {
    events.Received: lambda e: f"{_who(e)} is handled, attempt {e.attempt}",
    events.Handled: lambda e: f"{_who(e)} is done after {e.duration_ms:.1f} ms",
    events.Retried: lambda e: (
        f"{_who(e)} failed at attempt {e.attempt} and comes back in {text(e.delay_ms)}: {_why(e)}"
    ),
    events.DeadLettered: lambda e: f"{_who(e)} is a dead letter ({e.reason}) after attempt {e.attempt}: {_why(e)}",
    events.Duplicate: lambda e: f"{_who(e)} is a duplicate at attempt {e.attempt}: nothing was done",
    events.Discarded: lambda e: f"{_who(e)} was discarded: {e.reason!r}",
    events.HandedBack: lambda e: f"{_who(e)} is handed back because the worker stops",
    events.Postponed: lambda e: f"{_who(e)} goes on waiting for {text(e.delay_ms)}",
    events.Dropped: lambda e: f"{_who(e)} is let go of: {e.why}",
    events.NotSettled: lambda e: (
        f"{_who(e)} is kept: its copy was not taken over ({e.result}); again in {e.retry_in_ms} ms"
    ),
    events.HandlerStuck: lambda e: f"{_who(e)} is stuck: its handler does not end after {text(e.timeout_ms)}",
    events.HandlerFreed: lambda e: f"{_who(e)} is not stuck any more: its handler has ended after all",
    events.Published: lambda e: f"{_what(e)} is confirmed",
    events.NotPublished: lambda e: f"{_what(e)} was not published: {e.result}",
    events.Relayed: lambda e: f"{e.count} messages of the outbox are confirmed after {e.duration_ms:.1f} ms",
    events.RelayRetried: lambda e: (
        f"{_what(e)} was not taken over, failure {e.failures}, and goes out again in {text(e.delay_ms)}: {e.reason}"
    ),
    events.RelayParked: lambda e: f"{_what(e)} is parked in the outbox, row {e.seq}: {e.reason}",
    events.RelayPaused: lambda e: f"{e.app} relays nothing: {e.reason}; again in {e.retry_in_ms} ms",
    events.Leading: lambda e: f"{e.app} relays the outbox",
    events.StandingBy: lambda e: f"{e.app} stands by: another process may relay the outbox",
    StoreDown: lambda e: f"lost {e.database}: {e.reason}; again in {e.retry_in_ms} ms",
    StoreUp: lambda e: f"{e.database} answers again",
    events.Started: lambda e: f"{e.app} listens to {', '.join(e.queues) or 'nothing'}",
    events.Stopping: lambda e: f"{e.app} is stopping, {e.running} handlers run",
    events.Stopped: lambda e: f"{e.app} has stopped, {e.abandoned} handlers did not end",
    ConnectionUp: lambda e: f"connected to {e.broker}",
    ConnectionDown: lambda e: f"lost {e.broker}: {e.reason}; again in {e.retry_in_ms} ms",
    ConnectionBlocked: lambda e: f"{e.broker} takes no messages: {e.reason}",
    ConnectionUnblocked: lambda e: f"{e.broker} takes messages again",
    ConsumerEnded: lambda e: f"the broker ended the consumer of {e.queue}: {e.reason}",
}


def _who(event: events.Delivered) -> str:
    return f"message {event.message.id!r} of {event.queue}"


def _what(event: events.Published | events.NotPublished | events.RelayFailure) -> str:
    return f"message {event.message.id!r} to {event.message.routing_key!r}"


def _why(event: events.Failure) -> str:
    return f"{event.error_type or event.classification} {event.error[:300]!r}"
