"""Foreign: what the wires of other systems have in common, with Carom's own notes beside their headers.

What another system has a header for is written there, as that system writes it. Carom's notes are what it has none
for: how often a message crashed a worker, what remains of a long delay, and on a dead letter what happened. Systems
that do not know them carry them along or leave them out; either is well.

Rule: every copy of a foreign message can travel or becomes a dead letter that can: their queues may have no dead
letter exchange, and then the broker itself would throw away what is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from carom.core import message as names
from carom.core.durations import LONGEST_MS
from carom.core.effects import Settling
from carom.core.message import Message
from carom.core.retry import RetryPolicy
from carom.core.wire import Address, Arrival, Note, blamed, copy, failure, kept, span


class Foreign:
    """A `Wire` that is complete but for where the other system writes attempt and origin."""

    __slots__ = ()

    def attempt(self, message: Message) -> int:
        """Return which attempt a delivery is, as this system counts."""
        raise NotImplementedError

    def origin(self, message: Message, queue: str) -> tuple[str, str]:
        """Return the exchange and the key that a delivery was first published with."""
        raise NotImplementedError

    def theirs(self, arrival: Arrival, attempt: int) -> Mapping[str, object]:
        """Return the headers this system writes on a copy that is that attempt."""
        raise NotImplementedError

    def identity(self, message: Message) -> str:
        """Return what this system knows a message by; it becomes its id."""
        return message.id

    def policy(self, message: Message) -> RetryPolicy | None:  # noqa: ARG002 - for a wire that carries one
        """Return the policy that a message brings with it."""
        return None

    def outgoing(self, message: Message) -> Message:
        """Return a new message as this system writes it."""
        raise NotImplementedError

    def returned(self, arrival: Arrival, delay_ms: int) -> Settling | None:  # noqa: ARG002 - for a wire that does
        """Return nothing: every attempt is a copy."""
        return None

    def read(
        self, message: Message, queue: str, *, redelivered: bool = False, counts: bool = True, alone: bool = False
    ) -> Arrival:
        """Read a delivery. Carom's notes are believed for this queue alone; a dead letter put back starts anew."""
        headers = message.headers
        anew = names.REASON in headers
        noted = not anew and headers.get(names.QUEUE) == queue
        written = names.count(headers.get(names.CRASHES))
        returns = names.crashes(headers, redelivered=redelivered, counts=counts) - written
        exchange, key = self.origin(message, queue)
        identity = self.identity(message)
        if identity != message.id:
            message = replace(message, id=identity)
        return Arrival(
            message,
            queue,
            attempt=1 if anew else self.attempt(message),
            crashes=blamed(written if noted else 0, returns, alone=alone),
            exchange=exchange,
            routing_key=key,
            returned=returns > 0,
            wait_ms=min(span(headers.get(names.WAIT)), LONGEST_MS) if noted else 0,
            first_failed_at=span(headers.get(names.FIRST_FAILED_AT)) if noted else 0,
            uncounted=redelivered and not (counts and names.counted_by_broker(headers)),
            alone=alone,
            retry=self.policy(message),
            deaths=names.count(headers.get(names.DEATHS), least=int(anew)),
        )

    def seen(self, arrival: Arrival) -> Message:
        """Return the message from where it was first published, at its true attempt."""
        headers = {**arrival.message.headers, names.ATTEMPT: arrival.attempt}
        return replace(arrival.message, exchange=arrival.exchange, routing_key=arrival.routing_key, headers=headers)

    def retried(self, arrival: Arrival, to: Address, note: Note, wait_ms: int = 0) -> Message | None:
        """Return the copy that is the next attempt."""
        times = {names.FIRST_FAILED_AT: arrival.first_failed_at or note.now_ms}
        return self.written(arrival, to, arrival.attempt + 1, {**times, **_waiting(wait_ms)})

    def held(self, arrival: Arrival, to: Address, wait_ms: int = 0) -> Message | None:
        """Return the copy that goes on waiting."""
        return self.written(arrival, to, arrival.attempt, {**kept(arrival.message.headers), **_waiting(wait_ms)})

    def recounted(self, arrival: Arrival, to: Address) -> Message | None:
        """Return the copy that carries its crash count."""
        notes = {**kept(arrival.message.headers), names.CRASHES: arrival.crashes}
        return self.written(arrival, to, arrival.attempt, notes)

    def dead(self, arrival: Arrival, to: Address, note: Note) -> Message | None:
        """Return the dead letter, with what happened and where it came from."""
        origin = {names.EXCHANGE: arrival.exchange, names.KEY: arrival.routing_key}
        notes = {**origin, names.ATTEMPT: arrival.attempt, **failure(arrival, note)}
        notes |= {names.REASON: names.clip(note.reason, names.NAME_LIMIT), names.DEATHS: arrival.deaths + 1}
        if arrival.crashes:
            notes[names.CRASHES] = arrival.crashes
        return self.written(arrival, to, arrival.attempt, notes, trim=True)

    def written(
        self, arrival: Arrival, to: Address, attempt: int, notes: Mapping[str, object], *, trim: bool = False
    ) -> Message | None:
        """Return a copy with this system's headers and these notes; one with ``trim`` always can travel."""
        deaths = {names.DEATHS: arrival.deaths} if arrival.deaths else {}
        ours = {names.QUEUE: arrival.queue, **deaths, **notes}
        return copy(arrival, to, ours, self.theirs(arrival, attempt), trim=trim)


def _waiting(wait_ms: int) -> dict[str, object]:
    return {names.WAIT: wait_ms} if wait_ms > 0 else {}
