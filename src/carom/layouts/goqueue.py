"""bxcodec/goqueue on RabbitMQ: a retry queue for each attempt, and the wait written on the message.

    shop ──action──▶ orders ◀── orders__retry_dlx (fanout) ◀──(expired)── orders__retry.1, orders__retry.2 …
                                                                             ▲
                       orders__retry_exchange (topic), key orders__retry.1 ──┘ ◀── published by any consumer
    orders.dlq ◀── published by Carom, with the reason

Theirs has no dead letter queue: what is exhausted goes to ``orders__retry.{max + 1}``, which does not exist, and what
is refused goes nowhere. Carom's dead letters go to a queue of its own. The wait is the message's own expiration, so in
one retry queue a short wait stands behind a long one; a policy without overrides and jitter has one wait a queue.

On a message: a JSON envelope (id, action, topic, data, timestamp) and ``goqueue-…`` headers; the count is a 32-bit
integer as published and a 64-bit one on a retry. ``tenfold`` waits ten times as long as is said, as theirs does.

Rule: whatever a message's headers and envelope hold, the next attempt goes to a retry queue that exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from carom.core import message as names
from carom.core.durations import LONGEST_MS
from carom.core.foreign import Foreign
from carom.core.message import Int64, Message
from carom.core.settlement import Plan
from carom.core.topology import DEFAULT_EXCHANGE, Binding, Exchange, Queue, Topology, arguments, quorum, validate
from carom.core.wire import Address, Arrival, Wire
from carom.layouts.beside import Beside, attempts, kept
from carom.layouts.envelopes import opened, payload, sealed

APP_ID = "goqueue-app-id"
MESSAGE_ID = "goqueue-message-id"
PUBLISHED = "goqueue-published-timestamp"
COUNT = "goqueue-retry-count"
CONTENT_TYPE = "goqueue-content-type"
AGENT = "goqueue-queue-service-agent"
SCHEMA = "goqueue-schema-version"
ORIGINAL_TOPIC = "goqueue-original-topic-name"
ORIGINAL_ACTION = "goqueue-original-action-name"
TENFOLD = 10
"""What theirs multiplies every delay by, beyond what it says: 10,000 milliseconds to a second."""
_LAST_SECOND = 253_402_300_799


@dataclass(frozen=True, slots=True)
class GoQueueWire(Foreign):
    """How its publisher and its consumers write; ``levels`` is how many retry queues each queue has."""

    levels: Mapping[str, int]

    def attempt(self, message: Message) -> int:
        """Return one more than the retries that are counted, be it as a number or as text."""
        written = message.headers.get(COUNT)
        if isinstance(written, str) and written.isascii() and written.isdigit():
            written = int(written[:9])
        return min(names.count(written) + 1, names.COUNT_LIMIT)

    def identity(self, message: Message) -> str:
        """Return the id in the headers, or in the envelope."""
        identity = names.name(message.headers.get(MESSAGE_ID))
        if not identity and not message.id:
            identity = names.name((opened(message.body) or {}).get("id"))
        return identity or message.id

    def origin(self, message: Message, queue: str) -> tuple[str, str]:  # noqa: ARG002 - it is on the message
        """Return topic and action as the first retry wrote them down."""
        headers = message.headers
        topic, action = names.name(headers.get(ORIGINAL_TOPIC)), names.name(headers.get(ORIGINAL_ACTION))
        return (topic or message.exchange, action or message.routing_key)

    def theirs(self, arrival: Arrival, attempt: int) -> Mapping[str, object]:
        """Return topic, action and the count, of 64 bits as on every retry."""
        return {
            ORIGINAL_TOPIC: arrival.exchange,
            ORIGINAL_ACTION: arrival.routing_key,
            COUNT: Int64(attempt - 1),
        }

    def written(
        self, arrival: Arrival, to: Address, attempt: int, notes: Mapping[str, object], *, trim: bool = False
    ) -> Message | None:
        """Return a copy; one that waits does so in the queue of its attempt, or the last there is."""
        if to.expires_ms:
            level = max(1, min(attempt - 1, self.levels.get(arrival.queue, 1)))
            to = replace(to, routing_key=f"{arrival.queue}__retry.{level}")
        return Foreign.written(self, arrival, to, attempt, notes, trim=trim)

    def seen(self, arrival: Arrival) -> Message:
        """Return the message with what is in its envelope as its body."""
        message = Foreign.seen(self, arrival)
        envelope = opened(message.body)
        data = sealed(envelope["data"]) if envelope is not None and "data" in envelope else None
        return message if data is None else replace(message, body=data, content_type="application/json")

    def outgoing(self, message: Message) -> Message:
        """Return a message in its envelope and with its headers, which the user's own override."""
        moment = datetime.fromtimestamp(min(message.timestamp or 0, _LAST_SECOND), UTC)
        stamp = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        envelope = {"id": message.id, "action": message.routing_key, "topic": message.exchange}
        body = sealed({**envelope, "data": payload(message.body), "timestamp": stamp})
        headers = {
            APP_ID: message.app_id,
            MESSAGE_ID: message.id,
            PUBLISHED: stamp,
            COUNT: 0,
            CONTENT_TYPE: "application/json",
            AGENT: "goqueue/rabbitmq",
            SCHEMA: "1.0.0",
            **message.headers,
        }
        return replace(message, body=body or message.body, content_type="application/json", headers=headers)


@dataclass(frozen=True, slots=True)
class GoQueue(Beside):
    """The layout of some queues on one topic.

    ``tenfold`` makes every wait ten times as long as the policy says, for a service whose consumers of both kinds are
    to wait alike. ``quorum_queues`` is for a service that configured its queues so; by default they are classic.
    """

    namespace: str = "carom"
    exchange: str = "events"
    plans: tuple[Plan, ...] = ()
    app: str = "app"
    tenfold: bool = False
    quorum_queues: bool = False
    topology: Topology = field(init=False)

    def __post_init__(self) -> None:
        """Work out the topology once."""
        object.__setattr__(self, "topology", validate(self._topology()))

    @property
    def wire(self) -> Wire:
        """Return its envelope and its headers."""
        return GoQueueWire({plan.queue: _levels(plan) for plan in self.plans})

    def delays(self, queue: str) -> Sequence[int]:  # noqa: ARG002 - a message says itself how long it waits
        """Return every delay there is: a message says itself how long it waits."""
        return range(1, LONGEST_MS // self._factor + 1)

    def delay_address(self, queue: str, delay_ms: int) -> Address:
        """Return the first retry queue; the wire knows which of them an attempt waits in."""
        return Address(f"{queue}__retry_exchange", f"{queue}__retry.1", delay_ms * self._factor)

    def dead_address(self, queue: str) -> Address:
        """Return the dead letter queue, which is Carom's own."""
        return Address(DEFAULT_EXCHANGE, f"{queue}.dlq")

    @property
    def _factor(self) -> int:
        return TENFOLD if self.tenfold else 1

    def _topology(self) -> Topology:
        exchanges = [Exchange(self.exchange, "topic", public=True)]
        queues: list[Queue] = []
        bindings: list[Binding] = []
        for plan in self.plans:
            name, retry, back = plan.queue, f"{plan.queue}__retry_exchange", f"{plan.queue}__retry_dlx"
            levels = [f"{name}__retry.{level}" for level in range(1, _levels(plan) + 1)]
            exchanges += [Exchange(retry, "topic", public=True), Exchange(back, "fanout")]
            waits = arguments({"x-dead-letter-exchange": back})
            queues += [quorum(name) if self.quorum_queues else Queue(name), kept(f"{name}.dlq")]
            queues += [Queue(level, arguments=waits) for level in levels]
            bindings += [Binding(self.exchange, name, key) for key in plan.keys]
            bindings += [Binding(back, name), *(Binding(retry, level, level) for level in levels)]
        queues += self.suspect_queues(self.plans)
        return Topology(tuple(exchanges), tuple(queues), tuple(bindings))


def _levels(plan: Plan) -> int:
    return attempts(plan.retry) - 1
