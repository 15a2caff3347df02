"""Every queue with delay queues of its own: ``orders``, ``orders.delay_2s``, ``orders.delay_5s``, ``orders.dlq``.

    orders ──(broker-made deaths)──▶ orders.dlq
      ▲                                  ▲
      └── orders.delay_2s                └── published by Carom, with the reason
            ▲
            └── published by Carom

Everything goes by queue name through the default exchange, so nothing but queues has to be declared and a full
or broken delay queue concerns nobody else. The price: a queue per listener and delay, and no alternate exchange,
so the retries of a queue that was deleted stay in its delay queues instead of becoming visible as lost.

Rule: names and the way back are drawn as in the classic TTL design; retries and dead letters are published.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from carom.core import wire
from carom.core.durations import text
from carom.core.settlement import Plan
from carom.core.topology import DEFAULT_EXCHANGE, Binding, Exchange, Queue, Topology, at_least_once, quorum, validate
from carom.core.wire import Address, Wire
from carom.layouts.shared import DELIVERY_LIMIT, UNLIMITED, distinct_delays


@dataclass(frozen=True, slots=True)
class PerQueue:
    """The layout of some queues on one exchange. A value; its topology is validated at once."""

    namespace: str = "carom"
    exchange: str = "events"
    plans: tuple[Plan, ...] = ()
    app: str = "app"
    topology: Topology = field(init=False)
    _delays: dict[str, tuple[int, ...]] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Work out the delays and the topology once."""
        object.__setattr__(self, "_delays", {plan.queue: distinct_delays((plan,)) for plan in self.plans})
        object.__setattr__(self, "topology", validate(self._topology()))

    @property
    def wire(self) -> Wire:
        """Return Carom's own."""
        return wire

    def delays(self, queue: str) -> tuple[int, ...]:
        """Return the delays of this queue, ascending."""
        return self._delays[queue]

    def delay_address(self, queue: str, delay_ms: int) -> Address:
        """Return the queue's own delay queue."""
        return Address(DEFAULT_EXCHANGE, self._delay(queue, delay_ms))

    def queue_address(self, queue: str) -> Address:
        """Return the queue by its name."""
        return Address(DEFAULT_EXCHANGE, queue)

    def dead_address(self, queue: str) -> Address:
        """Return the queue's dead letter queue by its name."""
        return Address(DEFAULT_EXCHANGE, f"{queue}.dlq")

    @property
    def suspects(self) -> str:
        """Return the app's queue of suspects."""
        return f"{self.namespace}.suspects.{self.app}"

    def suspect_address(self, queue: str) -> Address:  # noqa: ARG002 - the message says which queue it is for
        """Return the queue of the suspects by its name."""
        return Address(DEFAULT_EXCHANGE, self.suspects)

    def _delay(self, queue: str, delay_ms: int) -> str:
        return f"{queue}.delay_{text(delay_ms)}"

    def _topology(self) -> Topology:
        return Topology(
            exchanges=(Exchange(self.exchange, "topic", public=True),),
            queues=(
                *(queue for plan in self.plans for queue in self._queues(plan.queue)),
                *(self._kept(self.suspects) if self.plans else ()),
            ),
            bindings=tuple(Binding(self.exchange, plan.queue, key) for plan in self.plans for key in plan.keys),
        )

    def _queues(self, name: str) -> tuple[Queue, ...]:
        back = at_least_once(DEFAULT_EXCHANGE, name)
        delays = (quorum(self._delay(name, delay), message_ttl=delay, **back) for delay in self._delays[name])
        return (*self._kept(name), *delays)

    def _kept(self, name: str) -> tuple[Queue, ...]:
        """Return a queue and that of its dead letters."""
        return (
            quorum(name, delivery_limit=DELIVERY_LIMIT, **at_least_once(DEFAULT_EXCHANGE, f"{name}.dlq")),
            quorum(f"{name}.dlq", delivery_limit=UNLIMITED),
        )
