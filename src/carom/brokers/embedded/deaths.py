"""Dead-lettering: what is written on a message when it dies, and which targets it may not reach again.

Rule: `x-death` is what RabbitMQ 3.10 to 3.12 write, field by field: one entry for each queue and reason, the newest
first, counted; and a message never goes round by itself: only a rejection opens a cycle.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from carom.core.message import Headers, Message

Reason: TypeAlias = Literal["rejected", "expired", "maxlen", "delivery_limit"]
Events: TypeAlias = list[dict[str, object]]


def keys(message: Message) -> tuple[str, ...]:
    """Return the keys a message is routed by: its own and those of its CC header."""
    copies = message.headers.get("CC") if message.headers else None
    if not isinstance(copies, list | tuple):
        return (message.routing_key,)
    return (message.routing_key, *(copy for copy in copies if isinstance(copy, str)))


def dead(
    message: Message, queue: str, reason: Reason, now_ms: int, *, exchange: str, key: str | None
) -> tuple[Message, tuple[str, ...]]:
    """Return a message as it leaves a queue dead, and the keys it is routed by.

    Body, properties and headers stay, but for `expiration` (it would expire again) and, when the queue gives a
    key of its own, the CC header.
    """
    known = "x-death" in message.headers
    headers = dict(message.headers)
    headers["x-death"] = _with(events(message.headers), _event(message, queue, reason, now_ms))
    if not known:
        headers.setdefault("x-first-death-exchange", message.exchange)
        headers.setdefault("x-first-death-queue", queue)
        headers.setdefault("x-first-death-reason", reason)
    if key is not None:
        headers.pop("CC", None)
    letter = replace(
        message,
        exchange=exchange,
        routing_key=message.routing_key if key is None else key,
        expiration="",
        headers=headers,
    )
    return letter, keys(letter)


def events(headers: Headers) -> Events:
    """Read a message's deaths, newest first. What a publisher forged and cannot be read is left out."""
    value = headers.get("x-death")
    if not isinstance(value, list | tuple):
        return []
    return [
        event
        for event in value
        if isinstance(event, dict) and isinstance(event.get("queue"), str) and isinstance(event.get("reason"), str)
    ]


def is_cycle(letter: Message, target: str) -> bool:
    """Tell whether a dead letter has been in a queue before and nothing but automatic deaths brought it back."""
    for event in events(letter.headers):
        if event["reason"] == "rejected":
            return False
        if event["queue"] == target:
            return True
    return False


def _event(message: Message, queue: str, reason: Reason, now_ms: int) -> dict[str, object]:
    event: dict[str, object] = {
        "count": 1,
        "reason": reason,
        "queue": queue,
        "time": datetime.fromtimestamp(now_ms // 1000, UTC),
        "exchange": message.exchange,
        "routing-keys": list(keys(message)),
    }
    if message.expiration:
        event["original-expiration"] = message.expiration
    return event


def _with(past: Events, event: dict[str, object]) -> Events:
    """Put a death in front; one of the same queue and reason is counted, and keeps what it says of the first."""
    for index, old in enumerate(past):
        if old["queue"] == event["queue"] and old["reason"] == event["reason"]:
            count = old.get("count")
            again = {**old, "count": count + 1 if isinstance(count, int) else 1}
            return [again, *past[:index], *past[index + 1 :]]
    return [event, *past]
