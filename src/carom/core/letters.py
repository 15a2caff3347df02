"""Letters: where dead letters are, what one of them says of itself, and what is published to try it again.

Rule: a dead letter goes back to the queue it died for and to no other; where nobody can say which that was, it stays.
Rule: who replays starts a new life: attempts and crashes are counted anew, whoever counted them, and the broker's
history stays behind. What the last failure was is carried along, and how often the message has died.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from carom.core import message as names
from carom.core.message import Headers, Message
from carom.core.routing import NO_HEADERS, router
from carom.core.settlement import Layout
from carom.core.topology import DEFAULT_EXCHANGE
from carom.core.wire import Address, Arrival, span
from carom.errors import ConfigurationError

RETURNS = "x-delivery-count"
LIMIT = "x-delivery-limit"
SAFE_RETURNS = 15
"""From so many returns on a message is not given back to a queue that says no limit: RabbitMQ's own is 20 since 4.0."""
_PUT_BACK = "put back"


@dataclass(frozen=True, slots=True)
class DeadQueue:
    """A queue of dead letters, the queues they may have died for, and whether it says how often one may come back."""

    name: str
    homes: tuple[str, ...]
    says_limit: bool


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as people look at it. Times are in milliseconds since 1970; 0 and "" stand for what nobody wrote.

    ``queue`` is what it died for, ``returns`` how often it was looked at and given back, where the broker counts.
    """

    id: str
    queue: str
    exchange: str
    routing_key: str
    reason: str
    attempts: int
    error_type: str = ""
    error: str = ""
    first_failed_at: int = 0
    failed_at: int = 0
    host: str = ""
    deaths: int = 1
    returns: int = 0
    bytes: int = 0


def dead_queue(layout: Layout, queues: Iterable[str], asked: str) -> DeadQueue:
    """Return the queue of dead letters that is meant: by its own name, or by that of a queue that is listened to.

    Raises ConfigurationError when it is neither.
    """
    find = router(layout.topology)
    holds: dict[str, list[str]] = {}
    listened = tuple(queues)
    for queue in listened:
        to = layout.dead_address(queue)
        for name in sorted(find(to.exchange, to.routing_key, NO_HEADERS)):
            holds.setdefault(name, []).append(queue)
    if layout.topology.queue(f"{layout.suspects}.dlq") is not None:
        holds.setdefault(f"{layout.suspects}.dlq", list(listened))
    known = [asked] if asked in holds else [name for name, homes in holds.items() if asked in homes]
    if not known:
        all_known = ", ".join(repr(name) for name in (*listened, *holds)) or "no queue at all"
        raise ConfigurationError(f"{asked!r} has no dead letters in this app; it knows those of {all_known}")
    name = f"{asked}.dlq" if f"{asked}.dlq" in known else known[0]
    declared = layout.topology.queue(name)
    says_limit = declared is not None and any(argument == LIMIT for argument, _ in declared.arguments)
    return DeadQueue(name, (asked,) if asked in listened else tuple(holds[asked]), says_limit)


def home(message: Message, homes: tuple[str, ...]) -> str:
    """Return which of these queues a message died for; empty when nothing says so."""
    died = [one.get("queue") for one in _deaths(message.headers)]
    for queue in (message.headers.get(names.QUEUE), *died):
        if queue in homes:
            return str(queue)
    return homes[0] if len(homes) == 1 else ""


def letter(layout: Layout, message: Message, queue: str) -> Letter:
    """Read a dead letter, whatever its headers hold; ``queue`` is what it died for, or empty."""
    headers = message.headers
    arrival = _read(layout, message, queue)
    deaths = _deaths(headers)
    reason = names.name(headers.get(names.REASON)) or names.name(deaths[0].get("reason") if deaths else "")
    return Letter(
        id=arrival.message.id,
        queue=queue,
        exchange=arrival.exchange,
        routing_key=arrival.routing_key,
        reason=reason or "unknown",
        attempts=names.count(headers.get(names.ATTEMPT), least=arrival.attempt),
        error_type=_text(headers, names.ERROR_TYPE, names.ERROR_TYPE_LIMIT),
        error=_text(headers, names.ERROR, names.ERROR_LIMIT),
        first_failed_at=span(headers.get(names.FIRST_FAILED_AT)),
        failed_at=span(headers.get(names.FAILED_AT)),
        host=_text(headers, names.HOST, names.NAME_LIMIT),
        deaths=names.count(headers.get(names.DEATHS), least=1),
        returns=returns(message),
        bytes=len(message.body),
    )


def replayed(layout: Layout, message: Message, queue: str) -> Message | None:
    """Return the copy that comes to its queue for a new life; None when its headers could not travel.

    As its id stays the same, whoever remembers what was handled knows one that was.
    """
    found = _read(layout, message, queue)
    origin = {names.QUEUE: queue, names.EXCHANGE: found.exchange, names.KEY: found.routing_key}
    headers: Headers = {names.REASON: _PUT_BACK, **message.headers, **origin}
    arrival = _read(layout, replace(message, headers=headers), queue)
    if arrival.message.id:
        headers = {**arrival.message.headers, names.REPLAY_OF: arrival.message.id}
        arrival = replace(arrival, message=replace(arrival.message, headers=headers))
    return layout.wire.held(arrival, layout.queue_address(queue))


def drained(layout: Layout, message: Message, to: str, queues: Iterable[str]) -> Message | None:
    """Return the copy that comes to another queue at once, at the attempt it is at; None when it could not travel.

    To a queue that is listened to it goes as this layout goes there; to any other by its name, as it is, with a note
    of where it was first published. It waits no longer, whatever it was to wait.
    """
    if to in queues:
        return layout.wire.held(_read(layout, message, to), layout.queue_address(to))
    headers = names.without_history(message.headers)
    if names.QUEUE not in headers and message.exchange:
        headers |= {names.QUEUE: to, names.EXCHANGE: message.exchange, names.KEY: message.routing_key}
    return readdressed(replace(message, headers=headers), to)


def readdressed(message: Message, queue: str) -> Message:
    """Return a message addressed to a queue by its name, to stay there."""
    return replace(message, exchange=DEFAULT_EXCHANGE, routing_key=queue, expiration="", user_id="", delivery_mode=2)


def renewed(message: Message, queue: DeadQueue) -> Message | None:
    """Return the copy that takes the place of a dead letter that one more return might use up; None for any other."""
    if queue.says_limit or returns(message) < SAFE_RETURNS:
        return None
    headers = {name: value for name, value in message.headers.items() if name != RETURNS}
    return readdressed(replace(message, headers=headers), queue.name)


def returns(message: Message) -> int:
    """Return how often the broker has taken a message back, where it counts."""
    return names.count(message.headers.get(RETURNS))


def _read(layout: Layout, message: Message, queue: str) -> Arrival:
    """Read what came, or comes, to a queue; one that the broker let die is where its oldest death found it."""
    oldest = next((one for one in reversed(_deaths(message.headers)) if one.get("queue") == queue), None)
    keys = oldest.get("routing-keys") if oldest else None
    if oldest and isinstance(keys, list | tuple) and keys:
        was = Address(names.name(oldest.get("exchange")), names.name(keys[0]))
        message = replace(message, exchange=was.exchange, routing_key=was.routing_key)
    return layout.wire.read(message, queue)


def _deaths(headers: Headers) -> list[Mapping[str, object]]:
    written = headers.get("x-death")
    return [one for one in written if isinstance(one, Mapping)] if isinstance(written, list | tuple) else []


def _text(headers: Headers, name: str, limit: int) -> str:
    value = headers.get(name)
    return names.clip(value, limit) if isinstance(value, str) else ""
