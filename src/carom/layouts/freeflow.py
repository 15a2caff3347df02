"""FreeFlow (NestJS): three tiers of delay for each domain, and one dead letter queue for all of them.

    freeflow.events ──user.*, auth.*──▶ freeflow.users.queue ──(rejected)──▶ freeflow.events.dlx ──▶ freeflow.events.dlq
      ▲ user.retry                                                             ▲
      │                                                                        └── published by Carom, key = the queue,
      freeflow.user.retry.30s ◀── freeflow.events.retry, key user.30s              and to <queue>.dlq, which keeps it

On this wire a retry comes back through the topic exchange: *every* queue that is bound by ``user.*`` or ``#`` gets it
again. That is kept, so that both sides see each other's retries; ``return_to="queue"`` sends a retry by Carom to the
queue that failed and to no other, through delay queues of its own. A queue bound by exact keys alone would never see
its retries; it is bound by ``user.retry`` as well.

On a message: ``eventId``, ``correlationId``, and on a retry ``x-retry-count`` (a number), ``x-original-routing-key``,
``x-original-exchange``. ``nest`` puts payloads into Nest's ``{"pattern": …, "data": …}`` and takes them out.

Rule: their retry queues drop the oldest to its queue at 10,000 messages, and their dead letters vanish after seven
days: that is how they are declared. What Carom publishes as dead is kept in a queue beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from carom.core import message as names
from carom.core.foreign import Foreign
from carom.core.message import Message
from carom.core.routing import matches
from carom.core.settlement import Plan
from carom.core.topology import (
    DEFAULT_EXCHANGE,
    Binding,
    Exchange,
    Queue,
    Topology,
    arguments,
    at_least_once,
    quorum,
    validate,
)
from carom.core.wire import Address, Arrival, Wire
from carom.layouts.beside import Beside, kept
from carom.layouts.envelopes import opened, payload, sealed

EVENT_ID = "eventId"
CORRELATION_ID = "correlationId"
COUNT = "x-retry-count"
ORIGINAL_KEY = "x-original-routing-key"
ORIGINAL_EXCHANGE = "x-original-exchange"
TIERS: tuple[tuple[str, int], ...] = (("30s", 30_000), ("5m", 300_000), ("30m", 1_800_000))
KEPT_MS = 604_800_000
KEPT_LENGTH = 100_000
WAITING_LENGTH = 10_000
ReturnTo: TypeAlias = Literal["domain", "queue"]


@dataclass(frozen=True, slots=True)
class FreeFlowWire(Foreign):
    """How its services write; ``domains`` names those of each queue, the first for what belongs to none of them."""

    exchange: str
    domains: Mapping[str, tuple[str, ...]]
    nest: bool

    def attempt(self, message: Message) -> int:
        """Return one more than the retries that are counted."""
        return min(names.count(message.headers.get(COUNT)) + 1, names.COUNT_LIMIT)

    def identity(self, message: Message) -> str:
        """Return the event's id."""
        return names.name(message.headers.get(EVENT_ID)) or message.id

    def origin(self, message: Message, queue: str) -> tuple[str, str]:  # noqa: ARG002 - it is on the message
        """Return exchange and key as the first retry wrote them down."""
        headers = message.headers
        exchange, key = names.name(headers.get(ORIGINAL_EXCHANGE)), names.name(headers.get(ORIGINAL_KEY))
        return (exchange or message.exchange, key or message.routing_key)

    def theirs(self, arrival: Arrival, attempt: int) -> Mapping[str, object]:
        """Return the count as a number, and where the message was first published."""
        return {COUNT: attempt - 1, ORIGINAL_KEY: arrival.routing_key, ORIGINAL_EXCHANGE: arrival.exchange}

    def written(
        self, arrival: Arrival, to: Address, attempt: int, notes: Mapping[str, object], *, trim: bool = False
    ) -> Message | None:
        """Return a copy; one that waits, and comes back through the topic, waits in the domain of its own key."""
        if to.exchange == f"{self.exchange}.retry":
            known = self.domains.get(arrival.queue, ())
            domain, tier = arrival.routing_key.partition(".")[0], to.routing_key.rpartition(".")[2]
            to = replace(to, routing_key=f"{domain}.{tier}") if domain in known else to
        return Foreign.written(self, arrival, to, attempt, notes, trim=trim)

    def seen(self, arrival: Arrival) -> Message:
        """Return the message out of Nest's envelope, if it is in one."""
        message = Foreign.seen(self, arrival)
        correlation = message.correlation_id or names.name(message.headers.get(CORRELATION_ID))
        envelope = opened(message.body) if self.nest else None
        inside = envelope is not None and "pattern" in envelope and "data" in envelope
        body = sealed(envelope["data"]) if envelope is not None and inside else None
        return replace(message, body=message.body if body is None else body, correlation_id=correlation)

    def outgoing(self, message: Message) -> Message:
        """Return a message with its ids in the headers, all of which are text, and in Nest's envelope if that is on."""
        headers = {
            name: value if name.startswith(names.OURS) else _text(value) for name, value in message.headers.items()
        }
        headers = {EVENT_ID: message.id, CORRELATION_ID: message.correlation_id, **headers}
        body = sealed({"pattern": message.routing_key, "data": payload(message.body)}) if self.nest else None
        return replace(message, body=body or message.body, content_type="application/json", headers=headers)


@dataclass(frozen=True, slots=True)
class FreeFlow(Beside):
    """The layout of some queues of its domains.

    ``return_to`` is where a retry by Carom comes back: to every queue of the ``domain``, as theirs does, or to the
    ``queue`` that failed. ``nest`` is whether payloads travel in Nest's envelope. ``tiers`` are its three delays.
    """

    namespace: str = "carom"
    exchange: str = "freeflow.events"
    plans: tuple[Plan, ...] = ()
    app: str = "app"
    return_to: ReturnTo = "domain"
    nest: bool = False
    tiers: tuple[tuple[str, int], ...] = TIERS
    topology: Topology = field(init=False)

    def __post_init__(self) -> None:
        """Work out the topology once."""
        object.__setattr__(self, "topology", validate(self._topology()))

    @property
    def wire(self) -> Wire:
        """Return its headers, and Nest's envelope if that is on."""
        return FreeFlowWire(self.exchange, {plan.queue: _domains(plan) for plan in self.plans}, self.nest)

    def delays(self, queue: str) -> tuple[int, ...]:  # noqa: ARG002 - every domain has the same
        """Return the tiers, ascending."""
        return tuple(sorted(delay for _, delay in self.tiers))

    def delay_address(self, queue: str, delay_ms: int) -> Address:
        """Return the retry queue of the queue's first domain, or one of Carom's own that leads back to the queue."""
        tier = next(name for name, delay in self.tiers if delay == delay_ms)
        if self.return_to == "queue":
            return Address(DEFAULT_EXCHANGE, f"{queue}.retry.{tier}")
        plan = next(plan for plan in self.plans if plan.queue == queue)
        return Address(f"{self.exchange}.retry", f"{_domains(plan)[0]}.{tier}")

    def dead_address(self, queue: str) -> Address:
        """Return their exchange of dead letters, with a key by which Carom's queue gets it too, and keeps it."""
        return Address(f"{self.exchange}.dlx", queue)

    def _topology(self) -> Topology:
        events = Exchange(self.exchange, "topic", public=True)
        if not self.plans:
            return Topology(exchanges=(events,))
        dead, retry, dlq = (f"{self.exchange}.{name}" for name in ("dlx", "retry", "dlq"))
        mains = [_classic(plan.queue, dead_letter_exchange=dead, dead_letter_routing_key="dlq") for plan in self.plans]
        queues = [*mains, *(kept(f"{plan.queue}.dlq") for plan in self.plans)]
        queues.append(_classic(dlq, message_ttl=KEPT_MS, max_length=KEPT_LENGTH))
        bindings = [Binding(self.exchange, plan.queue, key) for plan in self.plans for key in plan.keys]
        bindings.append(Binding(dead, dlq, "dlq"))
        for plan in self.plans:
            bindings += [Binding(dead, f"{plan.queue}.dlq", plan.queue), Binding(dead, dlq, plan.queue)]
            if self.return_to == "queue":
                back = at_least_once(DEFAULT_EXCHANGE, plan.queue)
                queues += [quorum(f"{plan.queue}.retry.{tier}", message_ttl=ms, **back) for tier, ms in self.tiers]
            else:
                bindings += _ways_back(self.exchange, plan)
        if self.return_to == "domain":
            prefix = self.exchange.removesuffix(".events")
            for domain in dict.fromkeys(domain for plan in self.plans for domain in _domains(plan)):
                for tier, ms in self.tiers:
                    name = f"{prefix}.{domain}.retry.{tier}"
                    to = {"dead_letter_exchange": self.exchange, "dead_letter_routing_key": f"{domain}.retry"}
                    queues.append(_classic(name, message_ttl=ms, max_length=WAITING_LENGTH, **to))
                    bindings.append(Binding(retry, name, f"{domain}.{tier}"))
        exchanges = (events, Exchange(retry, "direct", public=True), Exchange(dead, "direct"))
        return Topology(exchanges, (*queues, *self.suspect_queues(self.plans)), tuple(dict.fromkeys(bindings)))


def _classic(name: str, **options: str | int) -> Queue:
    named = {"x-" + option.replace("_", "-"): value for option, value in options.items()}
    return Queue(name, arguments=arguments({"x-queue-type": "classic", **named}))


def _domains(plan: Plan) -> tuple[str, ...]:
    """Return the domains of a queue: the first words of its keys; audit for one that takes everything."""
    words = [key.partition(".")[0] for key in plan.keys]
    known = ["audit" if word in {"#", "*"} else word for word in words]
    return tuple(dict.fromkeys(known)) or (plan.queue,)


def _ways_back(exchange: str, plan: Plan) -> list[Binding]:
    """Return bindings for retries that the queue's own keys do not let in."""
    backs = [f"{domain}.retry" for domain in _domains(plan)]
    return [
        Binding(exchange, plan.queue, back)
        for back in backs
        if not any(matches("topic", key, back) for key in plan.keys)
    ]


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    written = sealed(value)
    return str(value) if written is None else written.decode()
