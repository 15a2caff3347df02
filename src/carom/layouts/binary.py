"""Any delay from a second to eight and a half years with 28 queues: a delay is a number, and each of its bits a queue.

    carom.level.27 (2^27 s) ─▶ carom.level.26 ─▶ … ─▶ carom.level.00 (1 s) ─▶ carom.due ──▶ orders
      bit set: wait in the queue of this level; bit not set: pass on to the next   └─ nobody ─▶ carom.lost

A delayed message is published to the level of its highest bit with the key ``0.0.….1.0.1.0.orders``: 28 bits, then the
queue to return to as one word. Every queue has one TTL, so nothing stands behind anything longer. Each bit that is set
is a queue to wait in, written and confirmed again; so a delay is rounded up, by at most ``spread`` of itself, to a
number with fewer bits: ten hours are three queues exactly, and one with a tenth more.

The design is NServiceBus's, with what its users suffer from mended: levels have a prefix, what nobody is bound for
goes to ``carom.lost`` instead of blocking a level for everybody, and queues are bound by their whole name and not by
its end, so that ``orders`` never gets what is for ``eu.orders``.

Rule: nothing comes early; every key that is published has exactly 28 bits and one word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from carom.core import wire
from carom.core.settlement import Plan
from carom.core.topology import Binding, Exchange, Queue, Topology, at_least_once, quorum, validate
from carom.core.wire import Address, Wire
from carom.errors import ConfigurationError
from carom.layouts.shared import DELIVERY_LIMIT, UNLIMITED

LEVELS = 28
LONGEST_S = (1 << LEVELS) - 1
"""The longest delay in one go, in seconds; a longer one takes several turns."""
_SPECIAL = {"%": "%25", ".": "%2E", "*": "%2A", "#": "%23"}


@dataclass(frozen=True, slots=True)
class Binary:
    """The layout of one namespace and exchange for some queues. A value; its topology is validated at once.

    ``spread`` is by how much of itself a delay may be rounded up to save hops; 0 keeps it to the second.
    """

    namespace: str = "carom"
    exchange: str = "events"
    plans: tuple[Plan, ...] = ()
    app: str = "app"
    spread: float = 0.1
    topology: Topology = field(init=False)

    def __post_init__(self) -> None:
        """Work out the topology once."""
        if isinstance(self.spread, bool) or not 0 <= self.spread <= 1:
            raise ConfigurationError(f"spread={self.spread!r} cannot be: say a number from 0 to 1")
        object.__setattr__(self, "topology", validate(self._topology()))

    @property
    def wire(self) -> Wire:
        """Return Carom's own."""
        return wire

    def delays(self, queue: str) -> Sequence[int]:  # noqa: ARG002 - every queue has them all
        """Return every whole second up to the longest."""
        return range(1_000, LONGEST_S * 1_000 + 1, 1_000)

    def delay_address(self, queue: str, delay_ms: int) -> Address:
        """Return the level of the highest bit; the key has the others and the way back."""
        seconds = rounded(-(-delay_ms // 1_000), self.spread)
        bits = ".".join(f"{seconds:0{LEVELS}b}")
        return Address(self._level(seconds.bit_length() - 1), f"{bits}.{word(queue)}")

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

    def _level(self, level: int) -> str:
        return f"{self.namespace}.level.{level:02}"

    def _topology(self) -> Topology:
        events = Exchange(self.exchange, "topic", public=True)
        if not self.plans:
            return Topology(exchanges=(events,))
        names = [plan.queue for plan in self.plans]
        dead, back, due, lost = (f"{self.namespace}.{role}" for role in ("dead", "return", "due", "lost"))
        levels, waits, ways = self._fabric(due)
        return Topology(
            exchanges=(
                events,
                *(Exchange(name, "direct", alternate=lost) for name in (dead, back)),
                Exchange(due, "topic", alternate=lost),
                *(Exchange(name, "fanout") for name in (lost, self.suspects)),
                *levels,
            ),
            queues=(
                *(quorum(name, delivery_limit=DELIVERY_LIMIT, **at_least_once(dead, name)) for name in names),
                *(quorum(f"{name}.dlq", delivery_limit=UNLIMITED) for name in names),
                quorum(self.suspects, delivery_limit=DELIVERY_LIMIT, **at_least_once(dead)),
                quorum(lost, delivery_limit=UNLIMITED),
                *waits,
            ),
            bindings=(
                *(Binding(self.exchange, plan.queue, key) for plan in self.plans for key in plan.keys),
                *(Binding(back, name, name) for name in names),
                *(Binding(dead, f"{name}.dlq", name) for name in names),
                *(Binding(due, name, "*." * LEVELS + word(name)) for name in names),
                *(Binding(name, name) for name in (lost, self.suspects)),
                *ways,
            ),
        )

    def _fabric(self, due: str) -> tuple[list[Exchange], list[Queue], list[Binding]]:
        """Return the levels: an exchange and a queue each, and how they hang together."""
        levels = [self._level(level) for level in range(LEVELS)]
        waits, ways = [], []
        for level, name in enumerate(levels):
            onward = levels[level - 1] if level else due
            before = "*." * (LEVELS - 1 - level)
            waits.append(quorum(name, message_ttl=1_000 << level, **at_least_once(onward)))
            ways += [Binding(name, name, f"{before}1.#"), Binding(name, onward, f"{before}0.#", "exchange")]
        return [Exchange(name, "topic", alternate=f"{self.namespace}.lost") for name in levels], waits, ways


def rounded(seconds: int, spread: float) -> int:
    """Return the number with the fewest bits, and of these the least, from so many seconds to ``spread`` more."""
    most = min(LONGEST_S, seconds + int(seconds * Fraction(str(spread))))
    candidates = ((seconds + (1 << bit) - 1) >> bit << bit for bit in range(LEVELS))
    return min((one for one in candidates if one <= most), key=lambda one: (one.bit_count(), one))


def word(queue: str) -> str:
    """Return a queue's name as one word of a topic key, with nothing in it that a binding reads otherwise."""
    return "".join(_SPECIAL.get(char, char) for char in queue)
