"""The default layout: one delay queue per distinct delay, shared by every queue of a namespace.

    events ──key──▶ billing.charge ──(broker-made deaths)──▶ carom.dead ──▶ billing.charge.dlq
                       ▲                                         ▲   └─ nobody ─▶ carom.lost
      carom.return ────┘ key = the queue                         └── published by Carom, with the reason
        ▲     └─ nobody ─▶ carom.lost
        │
      carom.delay.2s ◀── published by Carom, key = the queue to return to

      carom.suspects.billing ◀── published by Carom, key = the queue whose handler is to see it alone

Rule: a queue's own dead letter exchange is terminal; what comes back was published, confirmed and waited for.
A retry reaches exactly the queue that failed, because the routing key carries its name through the delay.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from carom.core import wire
from carom.core.durations import text
from carom.core.settlement import Plan
from carom.core.topology import Binding, Exchange, Queue, Topology, at_least_once, quorum, validate
from carom.core.wire import Address, Wire

DELIVERY_LIMIT = 100
"""The broker's own bound on returns. Far above any `crash_limit`, because handing a message back on shutdown
counts as well up to RabbitMQ 4.2; it only speaks when no consumer of Carom looks at the queue."""

UNLIMITED = 1_000_000
"""Looking at a dead letter must never use it up: since 4.0 a broker drops it after 20 returns unless it is told
otherwise. A number instead of -1, which means something else before 4.0."""

LADDER_MS = (1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000)
"""The delays that exist for policies whose delays are computed by a function, and so cannot be known."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The layout of one namespace and exchange for some queues. A value; its topology is validated at once."""

    namespace: str = "carom"
    exchange: str = "events"
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
        """Return Carom's own."""
        return wire

    def delays(self, queue: str) -> tuple[int, ...]:  # noqa: ARG002 - every queue of the namespace shares them
        """Return the delays that exist, ascending."""
        return self._delays

    def delay_address(self, queue: str, delay_ms: int) -> Address:
        """Return the fanout of that delay; the routing key is the way back."""
        return Address(self._delay(delay_ms), queue)

    def queue_address(self, queue: str) -> Address:
        """Return the exchange that routes by queue name."""
        return Address(f"{self.namespace}.return", queue)

    def dead_address(self, queue: str) -> Address:
        """Return the exchange of dead letters."""
        return Address(f"{self.namespace}.dead", queue)

    @property
    def suspects(self) -> str:
        """Return the app's queue of suspects."""
        return f"{self.namespace}.suspects.{self.app}"

    def suspect_address(self, queue: str) -> Address:
        """Return the fanout of the suspects; the routing key is the queue they came from."""
        return Address(self.suspects, queue)

    def _delay(self, delay_ms: int) -> str:
        return f"{self.namespace}.delay.{text(delay_ms)}"

    def _topology(self) -> Topology:
        events = Exchange(self.exchange, "topic", public=True)
        if not self.plans:
            return Topology(exchanges=(events,))
        names = [plan.queue for plan in self.plans]
        delays = [self._delay(delay) for delay in self._delays]
        dead, back, lost = (f"{self.namespace}.{role}" for role in ("dead", "return", "lost"))
        return Topology(
            exchanges=(
                events,
                Exchange(dead, "direct", alternate=lost),
                Exchange(back, "direct", alternate=lost),
                *(Exchange(name, "fanout") for name in (lost, self.suspects, *delays)),
            ),
            queues=(
                *(self._main(name, dead) for name in names),
                *(quorum(f"{name}.dlq", delivery_limit=UNLIMITED) for name in names),
                *(quorum(self._delay(delay), message_ttl=delay, **at_least_once(back)) for delay in self._delays),
                quorum(self.suspects, delivery_limit=DELIVERY_LIMIT, **at_least_once(dead)),
                quorum(lost, delivery_limit=UNLIMITED),
            ),
            bindings=(
                *(Binding(self.exchange, plan.queue, key) for plan in self.plans for key in plan.keys),
                *(Binding(back, name, name) for name in names),
                *(Binding(dead, f"{name}.dlq", name) for name in names),
                *(Binding(name, name) for name in (lost, self.suspects, *delays)),
            ),
        )

    def _main(self, name: str, dead: str) -> Queue:
        return quorum(name, delivery_limit=DELIVERY_LIMIT, **at_least_once(dead, name))


def distinct_delays(plans: tuple[Plan, ...]) -> tuple[int, ...]:
    """Return every delay these plans can ask for, ascending; instant retries need none."""
    policies = [plan.retry for plan in plans]
    known = {delay for policy in policies for delay in policy.possible_delays() if delay > 0}
    asked_for = any(policy.attempts > 1 for policy in policies)
    if any(policy.open_ended for policy in policies) or (asked_for and not known):
        known.update(LADDER_MS)
    return tuple(sorted(known))
