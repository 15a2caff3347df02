"""The wait queue: a failed message is refused, waits in its queue's retry queue, and comes back; nobody copies it.

    events ──key──▶ orders ──(refused)──▶ orders.retry ──(its time is over)──▶ orders
                      │                       ▲
                      │                       └── published by Carom: what waits longer, and suspects that failed
                      └─ the last failure: published by Carom to orders.dlq, with the reason

The broker counts: `x-death` says how often the queue refused a message, and the attempt is one more. A refusal cannot
say why, cannot choose a delay and cannot write a header. So there is one delay a queue, and the last failure, whose
reason is to be kept, is published and confirmed before the original is acknowledged. ``copies`` publishes every attempt
that way and refuses none: "never acknowledge a failed message" then means "never before its copy is safe".

Only refusals leave the queue. It has no TTL, no length limit and a delivery limit nobody reaches, because a message
that the broker itself lets die would come back by itself, and the second time be dropped as a cycle.

Rule: a copy carries no `x-death`; what was counted before stands on it, so that every version of the broker counts on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from carom.core import message as names
from carom.core.durations import text
from carom.core.effects import Refuse, Settling
from carom.core.foreign import Foreign
from carom.core.message import Headers, Message
from carom.core.settlement import Plan
from carom.core.topology import DEFAULT_EXCHANGE, Binding, Exchange, Queue, Topology, at_least_once, quorum, validate
from carom.core.wire import Address, Arrival, Wire
from carom.errors import ConfigurationError
from carom.layouts.beside import Beside, kept
from carom.layouts.shared import UNLIMITED, distinct_delays

CORRELATION_ID = "correlation_id"
CAUSATION_ID = "causation_id"
MESSAGE_ID = "message_id"
COUNTED = "x-delivery-count"


@dataclass(frozen=True, slots=True)
class WaitQueueWire(Foreign):
    """What the broker writes on a refused message, and the ids that travel in headers; ``waits`` is each queue's."""

    waits: Mapping[str, int]
    copies: bool

    def attempt(self, message: Message) -> int:
        """Return what was counted before this copy was made."""
        return names.count(message.headers.get(names.ATTEMPT), least=1)

    def read(
        self, message: Message, queue: str, *, redelivered: bool = False, counts: bool = True, alone: bool = False
    ) -> Arrival:
        """Read a delivery; every refusal by this queue is an attempt.

        Since RabbitMQ 4.0 the broker's count of hand-outs goes with a message through its dead letter queues, so that
        a refused message comes back as if it had been returned so often. What is more than the refusals are returns.
        """
        refused = _refusals(message.headers, queue)
        counted = message.headers.get(COUNTED)
        if refused and isinstance(counted, int) and not alone:
            returns = names.count(counted - refused)
            redelivered = redelivered and returns > 0
            message = replace(message, headers={**message.headers, COUNTED: returns})
        arrival = Foreign.read(self, message, queue, redelivered=redelivered, counts=counts, alone=alone)
        refused = 0 if names.REASON in message.headers else refused
        return replace(arrival, attempt=min(arrival.attempt + refused, names.COUNT_LIMIT))

    def origin(self, message: Message, queue: str) -> tuple[str, str]:
        """Return what a copy says, or what the first death says, or how it comes now."""
        headers = message.headers
        if headers.get(names.QUEUE) == queue and names.KEY in headers:
            return names.name(headers.get(names.EXCHANGE)), names.name(headers.get(names.KEY))
        for death in _deaths(headers):
            keys = death.get("routing-keys")
            if death.get("queue") == queue and isinstance(keys, list | tuple) and keys:
                return names.name(death.get("exchange")), names.name(keys[0])
        return message.exchange, message.routing_key

    def theirs(self, arrival: Arrival, attempt: int) -> Mapping[str, object]:  # noqa: ARG002 - no header counts
        """Return nothing: ids are in place already, and nobody counts in a header."""
        return {}

    def written(
        self, arrival: Arrival, to: Address, attempt: int, notes: Mapping[str, object], *, trim: bool = False
    ) -> Message | None:
        """Return a copy that knows its attempt and where it came from."""
        known = {names.ATTEMPT: attempt, names.EXCHANGE: arrival.exchange, names.KEY: arrival.routing_key}
        return Foreign.written(self, arrival, to, attempt, {**known, **notes}, trim=trim)

    def returned(self, arrival: Arrival, delay_ms: int) -> Settling | None:
        """Return the refusal, where its queue's wait is long enough; a suspect is in another queue."""
        wait = self.waits.get(arrival.queue, 0)
        return Refuse() if 0 < delay_ms <= wait and not (self.copies or arrival.alone) else None

    def outgoing(self, message: Message) -> Message:
        """Return a message with its ids in headers too: its own, that of its flow, and that of its direct cause."""
        ids = {MESSAGE_ID: message.id, CORRELATION_ID: message.correlation_id}
        cause = {CAUSATION_ID: message.trail[-1]} if message.trail else {}
        return replace(message, headers={**ids, **cause, **message.headers})


@dataclass(frozen=True, slots=True)
class WaitQueue(Beside):
    """The layout of some queues on one exchange; every policy has one delay, and so its queue one wait."""

    namespace: str = "carom"
    exchange: str = "events"
    plans: tuple[Plan, ...] = ()
    app: str = "app"
    copies: bool = False
    topology: Topology = field(init=False)

    def __post_init__(self) -> None:
        """Work out the topology once. Raises ConfigurationError for a policy that has several delays."""
        for plan in self.plans:
            delays = distinct_delays((plan,))
            if len(delays) > 1:
                waits = ", ".join(text(delay) for delay in delays)
                raise ConfigurationError(
                    f"queue {plan.queue!r} is to wait {waits}, and in the layout wait_queue a queue has one wait: say "
                    "retry=RetryPolicy.fixed('30s', attempts=4), or use the layout per_queue"
                )
        object.__setattr__(self, "topology", validate(self._topology()))

    @property
    def wire(self) -> Wire:
        """Return how the broker's own history is read."""
        return WaitQueueWire({plan.queue: max(distinct_delays((plan,)), default=0) for plan in self.plans}, self.copies)

    def delays(self, queue: str) -> tuple[int, ...]:
        """Return the one delay of a queue, if it has any."""
        return distinct_delays(tuple(plan for plan in self.plans if plan.queue == queue))

    def delay_address(self, queue: str, delay_ms: int) -> Address:  # noqa: ARG002 - there is one
        """Return the queue's retry queue by its name."""
        return Address(DEFAULT_EXCHANGE, f"{queue}.retry")

    def dead_address(self, queue: str) -> Address:
        """Return the queue's dead letter queue by its name."""
        return Address(DEFAULT_EXCHANGE, f"{queue}.dlq")

    def _topology(self) -> Topology:
        return Topology(
            exchanges=(Exchange(self.exchange, "topic", public=True),),
            queues=(
                *(queue for plan in self.plans for queue in self._queues(plan)),
                *self.suspect_queues(self.plans),
            ),
            bindings=tuple(Binding(self.exchange, plan.queue, key) for plan in self.plans for key in plan.keys),
        )

    def _queues(self, plan: Plan) -> tuple[Queue, ...]:
        name, waits = plan.queue, self.delays(plan.queue)
        dead = kept(f"{name}.dlq")
        if not waits:
            return quorum(name, delivery_limit=UNLIMITED, **at_least_once(DEFAULT_EXCHANGE, dead.name)), dead
        retry = quorum(f"{name}.retry", message_ttl=waits[0], **at_least_once(DEFAULT_EXCHANGE, name))
        return quorum(name, delivery_limit=UNLIMITED, **at_least_once(DEFAULT_EXCHANGE, retry.name)), retry, dead


def _deaths(headers: Headers) -> list[Mapping[str, object]]:
    """Read the broker's history, the oldest death first."""
    history = headers.get("x-death")
    return [death for death in reversed(history) if isinstance(death, Mapping)] if isinstance(history, list) else []


def _refusals(headers: Headers, queue: str) -> int:
    """Return how often this queue refused a message since it was published."""
    deaths = (death for death in _deaths(headers) if death.get("queue") == queue and death.get("reason") == "rejected")
    return min(sum(names.count(death.get("count"), least=1) for death in deaths), names.COUNT_LIMIT)
