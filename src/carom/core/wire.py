"""Wires: what a delivery says of itself, and the messages that follow from it. The functions here are Carom's own wire.

Rule: a copy keeps body, ids, properties and foreign headers; the broker's history, an expiration and a user id
stay behind; Carom's headers are written anew, never copied, so that nothing forged travels on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from carom.core import message as wire
from carom.core.durations import LONGEST_MS
from carom.core.message import Headers, Message
from carom.core.retry import ATTEMPTS_LIMIT, RetryPolicy

if TYPE_CHECKING:
    from carom.core.effects import Settling

SUSPECT_CRASHES = 2
"""From this many crashes on a message is a suspect, and waits to be handled alone."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a message is published to; ``expires_ms`` is how long it waits there when the message itself has to say."""

    exchange: str
    routing_key: str
    expires_ms: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A delivery, read: the message as it is on the wire, and what its headers may be believed to say.

    ``attempt`` counts for this queue only. ``exchange`` and ``routing_key`` are those of the first publish.
    ``returned`` says that it came back unsettled since it was last published. ``wait_ms`` is what remains of a delay
    too long for one queue. ``uncounted`` says that the broker brought the message back without counting how often, so
    that Carom has to. ``alone`` says that it comes from the queue of the suspects, where a worker takes one at a time.
    ``deaths`` counts how often it was a dead letter that somebody put back.
    ``retry`` is the policy that the message brought with it, where a wire lets it.
    """

    message: Message
    queue: str
    attempt: int = 1
    crashes: int = 0
    exchange: str = ""
    routing_key: str = ""
    returned: bool = False
    wait_ms: int = 0
    first_failed_at: int = 0
    uncounted: bool = False
    alone: bool = False
    deaths: int = 0
    retry: RetryPolicy | None = None

    @property
    def ordinal(self) -> int:
        """Return a number for this attempt that no other attempt at this message has, also not after a death."""
        return self.deaths * (ATTEMPTS_LIMIT + 1) + min(self.attempt, ATTEMPTS_LIMIT + 1)


@dataclass(frozen=True, slots=True)
class Note:
    """What is written down about a failure: when, where, and what was raised."""

    now_ms: int
    host: str = ""
    reason: str = ""
    error_type: str = ""
    error: str = ""
    trace: str = ""


class Wire(Protocol):
    """How one system writes on its messages. No message that came makes any of these raise."""

    def read(
        self, message: Message, queue: str, *, redelivered: bool = False, counts: bool = True, alone: bool = False
    ) -> Arrival:
        """Read a delivery to a queue's handler, whatever its headers and body hold."""

    def seen(self, arrival: Arrival) -> Message:
        """Return the message as its handler sees it: where it was first published, out of its envelope."""

    def outgoing(self, message: Message) -> Message:
        """Return a new message in this system's envelope and with its headers; ConfigurationError if it has no form."""

    def returned(self, arrival: Arrival, delay_ms: int) -> Settling | None:
        """Return how the broker itself makes a failed delivery wait so long; None when a copy is published."""

    def retried(self, arrival: Arrival, to: Address, note: Note, wait_ms: int = 0) -> Message | None:
        """Return the copy that is the next attempt, or None when its headers could not travel."""

    def held(self, arrival: Arrival, to: Address, wait_ms: int = 0) -> Message | None:
        """Return the copy that goes on waiting: nothing happened, no attempt is counted."""

    def recounted(self, arrival: Arrival, to: Address) -> Message | None:
        """Return the copy that carries its crash count."""

    def dead(self, arrival: Arrival, to: Address, note: Note) -> Message | None:
        """Return the dead letter, with its reason; None only where the broker itself makes dead letters."""


def read(
    message: Message, queue: str, *, redelivered: bool = False, counts: bool = True, alone: bool = False
) -> Arrival:
    """Read a delivery to a queue's handler. Total: whatever the headers hold, the answer is a sane arrival.

    What another queue counted is not believed here, and a dead letter that somebody put back starts anew.
    ``counts`` says that it was taken from a queue that counts what comes back, as a quorum queue does and a classic
    one does not; ``alone``, that it was taken from the queue of the suspects.
    """
    headers = message.headers
    if not headers and not redelivered and not alone:
        return Arrival(message, queue, 1, 0, message.exchange, message.routing_key)
    ours = headers.get(wire.QUEUE) == queue
    anew = not ours or wire.REASON in headers
    written = wire.count(headers.get(wire.CRASHES))
    returns = wire.crashes(headers, redelivered=redelivered, counts=counts) - written
    crashes = blamed(0 if anew else written, returns, alone=alone)
    uncounted = redelivered and not (counts and wire.counted_by_broker(headers))
    if not ours:
        return Arrival(
            message,
            queue,
            crashes=crashes,
            exchange=message.exchange,
            routing_key=message.routing_key,
            returned=returns > 0,
            uncounted=uncounted,
            alone=alone,
        )
    return Arrival(
        message,
        queue,
        attempt=1 if anew else wire.count(headers.get(wire.ATTEMPT), least=1),
        crashes=crashes,
        exchange=wire.name(headers.get(wire.EXCHANGE)),
        routing_key=wire.name(headers.get(wire.KEY)),
        returned=returns > 0,
        wait_ms=min(span(headers.get(wire.WAIT)), LONGEST_MS),
        first_failed_at=span(headers.get(wire.FIRST_FAILED_AT)),
        uncounted=uncounted,
        alone=alone,
        deaths=wire.count(headers.get(wire.DEATHS), least=int(anew)),
    )


def blamed(written: int, returns: int, *, alone: bool) -> int:
    """Return how many crashes a message is blamed for, from what is written on it and how often it came back since.

    The broker counts a return for everything a dead worker held, and up to 4.2 for what is handed back as well. In
    company a message is therefore blamed for no more than makes it a suspect; alone, for everything.
    """
    if alone:
        return written + returns
    return max(written, min(written + returns, SUSPECT_CRASHES))


def seen(arrival: Arrival) -> Message:
    """Return the message as its handler sees it: from where it was first published, at its true attempt."""
    message = arrival.message
    at_home = message.routing_key == arrival.routing_key and message.exchange == arrival.exchange
    if at_home and message.headers.get(wire.ATTEMPT, 1) == arrival.attempt:
        return message
    headers = {**message.headers, wire.ATTEMPT: arrival.attempt}
    return replace(message, exchange=arrival.exchange, routing_key=arrival.routing_key, headers=headers)


def outgoing(message: Message) -> Message:
    """Return a new message: as it is."""
    return message


def returned(arrival: Arrival, delay_ms: int) -> Settling | None:  # noqa: ARG001 - another wire decides by them
    """Return nothing: on this wire every attempt is a copy, published and confirmed."""
    return None


def retried(arrival: Arrival, to: Address, note: Note, wait_ms: int = 0) -> Message | None:
    """Return the copy that is the next attempt, or None when its headers could not travel."""
    ours = {**_origin(arrival), wire.ATTEMPT: arrival.attempt + 1, **failure(arrival, note)}
    return copy(arrival, to, _waiting(ours, wait_ms))


def held(arrival: Arrival, to: Address, wait_ms: int = 0) -> Message | None:
    """Return the copy that goes on waiting: nothing happened, no attempt is counted."""
    ours = {**_origin(arrival), wire.ATTEMPT: arrival.attempt, **kept(arrival.message.headers)}
    return copy(arrival, to, _waiting(ours, wait_ms))


def recounted(arrival: Arrival, to: Address) -> Message | None:
    """Return the copy that carries its crash count, where the broker does not count for itself."""
    ours = {**_origin(arrival), wire.ATTEMPT: arrival.attempt, **kept(arrival.message.headers)}
    return copy(arrival, to, {**ours, wire.CRASHES: arrival.crashes})


def dead(arrival: Arrival, to: Address, note: Note) -> Message | None:
    """Return the dead letter, with its reason, or None when its headers could not travel."""
    ours = {**_origin(arrival), wire.ATTEMPT: arrival.attempt, **failure(arrival, note)}
    ours[wire.REASON] = wire.clip(note.reason, wire.NAME_LIMIT)
    ours[wire.DEATHS] = arrival.deaths + 1
    if arrival.crashes:
        ours[wire.CRASHES] = arrival.crashes
    return copy(arrival, to, ours)


def _origin(arrival: Arrival) -> dict[str, object]:
    origin: dict[str, object] = {
        wire.QUEUE: arrival.queue,
        wire.EXCHANGE: arrival.exchange,
        wire.KEY: arrival.routing_key,
    }
    if arrival.deaths:
        origin[wire.DEATHS] = arrival.deaths
    return origin


def failure(arrival: Arrival, note: Note) -> dict[str, object]:
    """Return what is written down about a failure, each part within its limit."""
    written = {
        wire.FIRST_FAILED_AT: arrival.first_failed_at or note.now_ms,
        wire.FAILED_AT: note.now_ms,
        wire.HOST: wire.clip(note.host, wire.NAME_LIMIT),
        wire.ERROR_TYPE: wire.clip(note.error_type, wire.ERROR_TYPE_LIMIT),
        wire.ERROR: wire.clip(note.error, wire.ERROR_LIMIT),
        wire.ERROR_TRACE: wire.clip(note.trace, wire.TRACE_LIMIT),
    }
    return {key: value for key, value in written.items() if value != ""}


def kept(headers: Headers) -> dict[str, object]:
    """Return what an earlier failure wrote, read with the same caution and caps as when it was written."""
    times = {key: span(headers.get(key)) for key in (wire.FIRST_FAILED_AT, wire.FAILED_AT)}
    limits = {
        wire.HOST: wire.NAME_LIMIT,
        wire.ERROR_TYPE: wire.ERROR_TYPE_LIMIT,
        wire.ERROR: wire.ERROR_LIMIT,
        wire.ERROR_TRACE: wire.TRACE_LIMIT,
    }
    texts = {key: headers.get(key) for key in limits}
    clipped = {key: wire.clip(value, limits[key]) for key, value in texts.items() if isinstance(value, str)}
    return {key: value for key, value in {**times, **clipped}.items() if value}


def _waiting(ours: dict[str, object], wait_ms: int) -> dict[str, object]:
    return {**ours, wire.WAIT: wait_ms} if wait_ms > 0 else ours


def copy(
    arrival: Arrival, to: Address, ours: dict[str, object], theirs: Headers | None = None, *, trim: bool = False
) -> Message | None:
    """Return a copy with Carom's headers, and those of another system, written anew; None when they could not travel.

    With ``trim`` there is always one: the heaviest of the user's headers stay behind.
    """
    message = arrival.message
    foreign = wire.foreign(message.headers)
    if theirs:
        foreign.update(theirs)
    ancestors = wire.trail(message.headers)
    if ancestors:
        ours[wire.TRAIL] = list(ancestors)
    replay_of = wire.name(message.headers.get(wire.REPLAY_OF))
    if replay_of:
        ours[wire.REPLAY_OF] = replay_of
    heaviest = sorted(foreign, key=lambda name: -wire.weight(foreign[name])) if trim else ()
    for expendable in (None, wire.ERROR_TRACE, wire.ERROR, wire.TRAIL, *heaviest):
        if expendable is not None:
            ours.pop(expendable, None)
            foreign.pop(expendable, None)
        headers = {**foreign, **ours}
        if wire.weight(headers) <= wire.HEADERS_LIMIT:
            return replace(
                message,
                exchange=to.exchange,
                routing_key=to.routing_key,
                expiration=str(to.expires_ms) if to.expires_ms else "",
                user_id="",
                delivery_mode=2,
                headers=headers,
            )
    return None


def span(value: object) -> int:
    """Read a time or a span in milliseconds defensively."""
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return min(max(value, 0), _LATEST)


_LATEST = 253_402_300_799_000
"""The end of the year 9999 in milliseconds: no time or span is believed beyond it."""
