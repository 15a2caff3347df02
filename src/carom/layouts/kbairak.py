"""kbairak/outbox, as its code at head does it: an exchange's delays are shared by every queue and service on it.

    outbox ──key──▶ orders ──(rejected, expired)──▶ outbox.dlx ──▶ orders.dlq
                      ▲                                 ▲
                      │ default exchange                └── published by Carom, with the reason
      outbox.delay_2s ◀── published by any worker, key = the queue to return to

On a message: ``x-outbox-tracking-ids`` (a JSON array in text: its ancestors and, last, its own identity),
``x-delivery-count`` (the attempt, as text) and ``x-original-routing-key``, from the first retry on.

A quorum queue overwrites ``x-delivery-count`` with a count of its own when a message comes back. Carom therefore
writes its own count beside it and believes the text of theirs while it is text. An instant retry is a copy too.

Rule: everything is declared as that system declares it, delay queues at-most-once and without limits included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from carom.core import message as names
from carom.core.durations import text
from carom.core.foreign import Foreign
from carom.core.message import Headers, Message
from carom.core.settlement import Plan
from carom.core.topology import DEFAULT_EXCHANGE, Binding, Exchange, Topology, quorum, validate
from carom.core.wire import Address, Arrival, Wire
from carom.layouts.beside import Beside
from carom.layouts.shared import distinct_delays

TRACKING = "x-outbox-tracking-ids"
TRACKING_BEFORE = "x-outbox-track-ids"
"""What older workers call it."""
COUNT = "x-delivery-count"
ORIGINAL_KEY = "x-original-routing-key"


@dataclass(frozen=True, slots=True)
class KbairakWire(Foreign):
    """How its relay and its workers write on messages of one exchange."""

    exchange: str

    def attempt(self, message: Message) -> int:
        """Return the count that is text; where the broker has written over it, the one Carom wrote beside it."""
        written = message.headers.get(COUNT)
        if isinstance(written, str) and written.isascii() and written.isdigit():
            return names.count(int(written[:9]), least=1)
        return names.count(message.headers.get(names.ATTEMPT), least=1)

    def origin(self, message: Message, queue: str) -> tuple[str, str]:  # noqa: ARG002 - it is on the message
        """Return the exchange, which has everything, and the first key."""
        return self.exchange, names.name(message.headers.get(ORIGINAL_KEY)) or message.routing_key

    def theirs(self, arrival: Arrival, attempt: int) -> Mapping[str, object]:
        """Return the count as text and the first key."""
        return {COUNT: str(attempt), ORIGINAL_KEY: arrival.routing_key}

    def written(
        self, arrival: Arrival, to: Address, attempt: int, notes: Mapping[str, object], *, trim: bool = False
    ) -> Message | None:
        """Return a copy with a count beside theirs that the broker leaves alone."""
        return Foreign.written(self, arrival, to, attempt, {names.ATTEMPT: attempt, **notes}, trim=trim)

    def identity(self, message: Message) -> str:
        """Return the last tracking id; a message id of theirs is invented anew for every copy."""
        tracked = _tracking(message.headers)
        return tracked[-1] if tracked else message.id

    def seen(self, arrival: Arrival) -> Message:
        """Return the message with its other tracking ids as its ancestors."""
        message = Foreign.seen(self, arrival)
        tracked = _tracking(message.headers)
        if not tracked:
            return message
        headers = {**message.headers, names.TRAIL: tracked[:-1]}
        return replace(message, correlation_id=message.correlation_id or tracked[0], headers=headers)

    def outgoing(self, message: Message) -> Message:
        """Return a message with its tracking ids, declared as JSON, as everything there is."""
        headers = {name: value for name, value in message.headers.items() if name not in {names.TRAIL, TRACKING}}
        headers[TRACKING] = json.dumps([*message.trail, message.id])
        return replace(message, content_type="application/json", headers=headers)


@dataclass(frozen=True, slots=True)
class Kbairak(Beside):
    """The layout of some queues on one exchange. A value; its topology is validated at once."""

    namespace: str = "carom"
    exchange: str = "outbox"
    plans: tuple[Plan, ...] = ()
    app: str = "app"
    topology: Topology = field(init=False)
    _delays: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Work out the delays and the topology once."""
        object.__setattr__(self, "_delays", distinct_delays(self.plans))
        object.__setattr__(self, "topology", validate(self._topology()))

    @property
    def wire(self) -> Wire:
        """Return its headers."""
        return KbairakWire(self.exchange)

    def delays(self, queue: str) -> tuple[int, ...]:  # noqa: ARG002 - every queue of the exchange shares them
        """Return the delays that exist, ascending."""
        return self._delays

    def delay_address(self, queue: str, delay_ms: int) -> Address:
        """Return the fanout of that delay; the routing key is the way back."""
        return Address(self._delay(delay_ms), queue)

    def dead_address(self, queue: str) -> Address:
        """Return the exchange of dead letters."""
        return Address(f"{self.exchange}.dlx", queue)

    def _delay(self, delay_ms: int) -> str:
        return f"{self.exchange}.delay_{text(delay_ms)}"

    def _topology(self) -> Topology:
        events = Exchange(self.exchange, "topic", public=True)
        if not self.plans:
            return Topology(exchanges=(events,))
        dead = f"{self.exchange}.dlx"
        queues = [plan.queue for plan in self.plans]
        delays = {self._delay(delay): delay for delay in self._delays}
        return Topology(
            exchanges=(events, Exchange(dead, "direct"), *(Exchange(name, "fanout") for name in delays)),
            queues=(
                *(quorum(name, dead_letter_exchange=dead, dead_letter_routing_key=name) for name in queues),
                *(quorum(f"{name}.dlq") for name in queues),
                *(
                    quorum(name, message_ttl=delay, dead_letter_exchange=DEFAULT_EXCHANGE)
                    for name, delay in delays.items()
                ),
                *self.suspect_queues(self.plans),
            ),
            bindings=(
                *(Binding(self.exchange, plan.queue, key) for plan in self.plans for key in plan.keys),
                *(Binding(dead, f"{name}.dlq", name) for name in queues),
                *(Binding(name, name) for name in delays),
            ),
        )


def _tracking(headers: Headers) -> list[str]:
    """Read the tracking ids; what is not an id is left out, what is not a list of them is none."""
    written = headers.get(TRACKING, headers.get(TRACKING_BEFORE))
    if not isinstance(written, str) or len(written) > names.OURS_LIMIT:
        return []
    try:
        found = json.loads(written)
    except (ValueError, RecursionError):
        return []
    ids = found if isinstance(found, list) else []
    return [one for one in ids if isinstance(one, str) and one and names.name(one)][-names.TRAIL_LIMIT :]
