"""What a queue's arguments mean to the engine, and which it refuses.

Rule: an argument is interpreted exactly or refused by name. Nothing is accepted and ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from carom.core.durations import LONGEST_MS
from carom.core.topology import DEFAULT_EXCHANGE, Binding, Exchange, Queue, Topology
from carom.errors import Unsupported

EXCHANGE_KINDS = ("direct", "topic", "fanout", "headers")
_NAME_LIMIT = 255
_COUNTS = {"x-message-ttl": LONGEST_MS, "x-max-length": 2**63 - 1, "x-max-length-bytes": 2**63 - 1}
_TEXTS = ("x-dead-letter-exchange", "x-dead-letter-routing-key")
_QUORUM_ONLY = ("x-delivery-limit", "x-dead-letter-strategy")
_CHOICES: dict[str, dict[str, tuple[str, ...]]] = {
    "classic": {"x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx")},
    "quorum": {
        "x-overflow": ("drop-head", "reject-publish"),
        "x-dead-letter-strategy": ("at-most-once", "at-least-once"),
    },
}


@dataclass(frozen=True, slots=True)
class Settings:
    """A queue's arguments, understood."""

    quorum: bool
    ttl_ms: int | None
    dead_letter_exchange: str | None
    dead_letter_key: str | None
    at_least_once: bool
    delivery_limit: int | None
    max_length: int | None
    max_bytes: int | None
    overflow: str

    @property
    def limited(self) -> bool:
        """Tell whether there is a limit to what may wait in the queue."""
        return self.max_length is not None or self.max_bytes is not None

    @property
    def rejects(self) -> bool:
        """Tell whether a full queue refuses new messages; otherwise it drops its oldest."""
        return self.limited and self.overflow != "drop-head"


def settings(queue: Queue) -> Settings:
    """Read the arguments of a queue that `refusals` had nothing against.

    As in RabbitMQ, at-least-once dead-lettering without ``reject-publish`` is at-most-once.
    """
    values = dict(queue.arguments)
    overflow = str(values.get("x-overflow", "drop-head"))
    strategy = values.get("x-dead-letter-strategy")
    limit = _count(values.get("x-delivery-limit"))
    return Settings(
        quorum=queue.kind == "quorum",
        ttl_ms=_count(values.get("x-message-ttl")),
        dead_letter_exchange=queue.dead_letter_exchange,
        dead_letter_key=queue.dead_letter_key,
        at_least_once=strategy == "at-least-once" and overflow == "reject-publish",
        delivery_limit=limit,
        max_length=_count(values.get("x-max-length")),
        max_bytes=_count(values.get("x-max-length-bytes")),
        overflow=overflow,
    )


def refuse(topology: Topology) -> None:
    """Raise Unsupported with everything in a topology that the engine does not do, or that no broker accepts."""
    reasons = [*_exchanges(topology.exchanges), *_queues(topology.queues), *_bindings(topology.bindings)]
    if reasons:
        raise Unsupported("the embedded broker refuses: " + "; ".join(reasons))


def _exchanges(exchanges: tuple[Exchange, ...]) -> Iterator[str]:
    for exchange in exchanges:
        label = f"exchange {exchange.name!r}"
        yield from _names(label, exchange.name)
        if exchange.kind not in EXCHANGE_KINDS:
            yield f"{label}: its kind {exchange.kind!r} is not one of {', '.join(EXCHANGE_KINDS)}"


def _queues(queues: tuple[Queue, ...]) -> Iterator[str]:
    for queue in queues:
        label = f"queue {queue.name!r}"
        yield from _names(label, queue.name)
        if queue.kind not in _CHOICES:
            yield f"{label}: x-queue-type = {queue.kind!r}; it has 'quorum' and 'classic'"
            continue
        if queue.kind == "quorum" and not queue.durable:
            yield f"{label}: a quorum queue is always durable"
        values = dict(queue.arguments)
        for name, value in values.items():
            if reason := _argument(queue.kind, name, value):
                yield f"{label}: {name} = {value!r}{reason}"
        if "x-dead-letter-routing-key" in values and "x-dead-letter-exchange" not in values:
            yield f"{label}: x-dead-letter-routing-key means nothing without x-dead-letter-exchange"


def _bindings(bindings: tuple[Binding, ...]) -> Iterator[str]:
    for binding in bindings:
        label = f"binding from {binding.source!r} to {binding.to} {binding.target!r}"
        if binding.source == DEFAULT_EXCHANGE or (binding.to == "exchange" and binding.target == DEFAULT_EXCHANGE):
            yield f"{label}: nothing can be bound to the default exchange"
        if binding.to not in ("queue", "exchange"):
            yield f"{label}: a binding leads to a queue or an exchange"
        if len(binding.key.encode(errors="replace")) > _NAME_LIMIT:
            yield f"{label}: its key is longer than {_NAME_LIMIT} bytes"


def _names(label: str, name: str) -> Iterator[str]:
    if not name:
        yield f"{label}: it needs a name"
    if name.startswith("amq."):
        yield f"{label}: names that start with 'amq.' are the broker's"
    if len(name.encode(errors="replace")) > _NAME_LIMIT:
        yield f"{label}: its name is longer than {_NAME_LIMIT} bytes"


_NO_LIMIT = (
    ", which has to be an integer from 0: below that, brokers since 4.0 see no limit, and those before drop a message "
    "that comes back once"
)


def _argument(kind: str, name: str, value: object) -> str:
    """Return what is wrong with an argument, as the end of a sentence; empty when it is understood."""
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    if name in _QUORUM_ONLY and kind != "quorum":
        return ", which only a quorum queue has"
    wrong = ", an argument it does not interpret"
    if name in _COUNTS:
        within = number is not None and 0 <= number <= _COUNTS[name]
        wrong = "" if within else f", which has to be an integer from 0 to {_COUNTS[name]}"
    elif choices := _CHOICES[kind].get(name):
        wrong = "" if value in choices else f", which for a {kind} queue is one of {', '.join(choices)}"
    elif name == "x-delivery-limit":
        wrong = _NO_LIMIT if number is None or number < 0 else ""
    elif name in _TEXTS:
        wrong = "" if isinstance(value, str) else ", which has to be text"
    elif name == "x-queue-type":
        wrong = ""
    return wrong


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None
