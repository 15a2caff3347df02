"""RabbitMQ from 4.3 on delays by itself: a failed message goes back to its queue, which holds it and counts.

    events ──key──▶ billing.charge   x-delayed-retry-type=failed, -min=1000, -max=60000
                      ▲        │
                      └────────┘ a failed attempt: basic.reject with requeue; waits min for each, at most max

This is the layout `shared`, whose delay queues are used only for what a queue cannot do by itself. It waits in equal
steps, up to a limit: a policy that is `RetryPolicy.fixed` or `RetryPolicy.linear` fits. Any other policy, a wait a
handler asks for, and a suspect that failed are copies that go through delay queues as ever. Nothing can be written on
a message that goes back; the last failure is published with all that is known of it.

The broker counts what failed and what was lost alike. What comes back more often than there are attempts was in the
hands of workers that were lost: it is a suspect.

Rule: the queue says how it waits and the wire decides whether that is the wait that is meant; nothing comes early.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from carom.core import message as names
from carom.core import wire as carom
from carom.core.effects import Fail, Settling
from carom.core.message import Message
from carom.core.settlement import Plan
from carom.core.topology import Argument, Queue, Topology, arguments, validate
from carom.core.wire import SUSPECT_CRASHES, Address, Arrival, Note, Wire
from carom.layouts.beside import attempts
from carom.layouts.shared import DELIVERY_LIMIT, Shared, distinct_delays

COUNTED = "x-delivery-count"
Ladder: TypeAlias = tuple[int, int]
"""The first wait of a queue, by which it grows, and the longest."""


@dataclass(frozen=True, slots=True)
class NativeWire:
    """Carom's own wire, on queues that delay: what the broker counted as failed are attempts.

    ``ladders`` are those of the queues that delay by themselves, ``most`` how many attempts their policies allow.
    """

    ladders: Mapping[str, Ladder]
    most: Mapping[str, int]

    def read(
        self, message: Message, queue: str, *, redelivered: bool = False, counts: bool = True, alone: bool = False
    ) -> Arrival:
        """Read a delivery; of a queue that delays, every return it counted is an attempt, as far as there are any."""
        if alone or queue not in self.ladders:
            return carom.read(message, queue, redelivered=redelivered, counts=counts, alone=alone)
        if not redelivered and COUNTED in message.headers:  # somebody wrote it who is not the broker
            message = replace(message, headers={**message.headers, COUNTED: 0})
        arrival = carom.read(message, queue)
        if not redelivered:
            return arrival
        attempt = arrival.attempt + names.count(message.headers.get(COUNTED))
        most = max(arrival.attempt, self.most[queue])
        if attempt <= most:
            return replace(arrival, attempt=attempt)
        return replace(arrival, attempt=most, crashes=max(arrival.crashes, SUSPECT_CRASHES), returned=True)

    def seen(self, arrival: Arrival) -> Message:
        """Return the message as its handler sees it."""
        return carom.seen(arrival)

    def outgoing(self, message: Message) -> Message:
        """Return a new message: as it is."""
        return message

    def returned(self, arrival: Arrival, delay_ms: int) -> Settling | None:
        """Return the failure itself, where the queue's own wait after it is the one that is meant."""
        ladder = self.ladders.get(arrival.queue)
        if ladder is None or arrival.alone:
            return None
        counted = names.count(arrival.message.headers.get(COUNTED))
        waits = min(ladder[0] * (counted + 1), ladder[1])
        return Fail() if 0 < delay_ms <= waits else None

    def retried(self, arrival: Arrival, to: Address, note: Note, wait_ms: int = 0) -> Message | None:
        """Return the copy that is the next attempt."""
        return carom.retried(arrival, to, note, wait_ms)

    def held(self, arrival: Arrival, to: Address, wait_ms: int = 0) -> Message | None:
        """Return the copy that goes on waiting."""
        return carom.held(arrival, to, wait_ms)

    def recounted(self, arrival: Arrival, to: Address) -> Message | None:
        """Return the copy that carries its crash count."""
        return carom.recounted(arrival, to)

    def dead(self, arrival: Arrival, to: Address, note: Note) -> Message | None:
        """Return the dead letter, with its reason."""
        return carom.dead(arrival, to, note)


@dataclass(frozen=True, slots=True)
class Native:
    """The layout of one namespace and exchange for some queues, on RabbitMQ from 4.3 on."""

    namespace: str = "carom"
    exchange: str = "events"
    plans: tuple[Plan, ...] = ()
    app: str = "app"
    topology: Topology = field(init=False)
    _shared: Shared = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Work out the topology once."""
        object.__setattr__(self, "_shared", Shared(self.namespace, self.exchange, self.plans, self.app))
        object.__setattr__(self, "topology", validate(self._topology()))

    @property
    def wire(self) -> Wire:
        """Return Carom's own, with what these queues count."""
        return NativeWire(self._ladders(), {plan.queue: attempts(plan.retry) for plan in self.plans})

    def delays(self, queue: str) -> tuple[int, ...]:  # noqa: ARG002 - every queue of the namespace shares them
        """Return the delays of copies: those of policies that do not fit, and the longest of each that does."""
        unfit = distinct_delays(tuple(plan for plan in self.plans if ladder(plan) is None))
        return tuple(sorted({*unfit, *(longest for _, longest in self._ladders().values())}))

    def delay_address(self, queue: str, delay_ms: int) -> Address:
        """Return the fanout of that delay, for a copy."""
        return self._shared.delay_address(queue, delay_ms)

    def queue_address(self, queue: str) -> Address:
        """Return the exchange that routes by queue name."""
        return self._shared.queue_address(queue)

    def dead_address(self, queue: str) -> Address:
        """Return the exchange of dead letters."""
        return self._shared.dead_address(queue)

    @property
    def suspects(self) -> str:
        """Return the app's queue of suspects."""
        return self._shared.suspects

    def suspect_address(self, queue: str) -> Address:
        """Return the fanout of the suspects."""
        return self._shared.suspect_address(queue)

    def _ladders(self) -> dict[str, Ladder]:
        return {plan.queue: found for plan in self.plans if (found := ladder(plan)) is not None}

    def _topology(self) -> Topology:
        """Return the shared topology without the delay queues nobody needs, and with queues that delay."""
        whole, ladders = self._shared.topology, self._ladders()
        every = {self._shared.delay_address("", delay).exchange for delay in self._shared.delays("")}
        spare = every - {self._shared.delay_address("", delay).exchange for delay in self.delays("")}
        return Topology(
            tuple(each for each in whole.exchanges if each.name not in spare),
            tuple(_delaying(each, ladders.get(each.name)) for each in whole.queues if each.name not in spare),
            tuple(each for each in whole.bindings if each.source not in spare),
        )


def ladder(plan: Plan) -> Ladder | None:
    """Return how a queue has to delay so that it waits as a policy says; None for a policy that it cannot follow."""
    policy = plan.retry
    if policy.open_ended or policy.overrides or policy.jitter or not policy.delays_ms or not policy.delays_ms[0]:
        return None
    if policy.attempts > DELIVERY_LIMIT:  # the broker's own bound, which here counts what failed
        return None
    first, longest = policy.delays_ms[0], policy.delays_ms[-1]
    steps = tuple(min(first * step, longest) for step in range(1, len(policy.delays_ms) + 1))
    return (first, longest) if steps == policy.delays_ms else None


def _delaying(queue: Queue, found: Ladder | None) -> Queue:
    if found is None:
        return queue
    waits: dict[str, Argument | None] = {
        "x-delayed-retry-type": "failed",
        "x-delayed-retry-min": found[0],
        "x-delayed-retry-max": found[1],
    }
    return replace(queue, arguments=arguments({**dict(queue.arguments), **waits}))
