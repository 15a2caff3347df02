"""How what is declared differs from what a broker has, in sentences with both values.

Rule: all differences at once, each naming the object; a default that is written out is not a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from carom.core.topology import Argument, Exchange, Queue, Topology


def compare(found: Topology, wanted: Topology, *, missing: bool) -> tuple[str, ...]:
    """Return what stands against declaring a topology; with ``missing`` also what is not there at all."""
    exchanges = {exchange.name: exchange for exchange in found.exchanges}
    queues = {queue.name: queue for queue in found.queues}
    bindings = set(found.bindings)
    lines: list[str] = []
    for exchange in wanted.exchanges:
        if missing and exchange.name not in exchanges:
            lines.append(f"exchange {exchange.name!r} does not exist")
        lines += _changed(
            f"exchange {exchange.name!r}", *map(_shape, (exchanges.get(exchange.name, exchange), exchange))
        )
        exchanges.setdefault(exchange.name, exchange)
    for queue in wanted.queues:
        if missing and queue.name not in queues:
            lines.append(f"queue {queue.name!r} does not exist")
        lines += _changed(f"queue {queue.name!r}", *map(_features, (queues.get(queue.name, queue), queue)))
        queues.setdefault(queue.name, queue)
    for binding in wanted.bindings:
        label = f"binding from {binding.source!r} to {binding.to} {binding.target!r} with key {binding.key!r}"
        targets: Iterable[str] = queues if binding.to == "queue" else exchanges
        if binding.source not in exchanges:
            lines.append(f"{label}: there is no exchange {binding.source!r}")
        elif binding.target not in targets:
            lines.append(f"{label}: there is no {binding.to} {binding.target!r}")
        elif missing and binding not in bindings:
            lines.append(f"{label} does not exist")
    return tuple(lines)


def _changed(label: str, found: Mapping[str, object], wanted: Mapping[str, object]) -> Iterator[str]:
    for name in sorted({*found, *wanted}):
        here, there = found.get(name), wanted.get(name)
        if here != there or isinstance(here, bool) != isinstance(there, bool):
            yield f"{label}: {name} is {_text(here)} on the broker and {_text(there)} in the declaration"


def _shape(exchange: Exchange) -> dict[str, object]:
    return {
        "kind": exchange.kind,
        "durable": exchange.durable,
        "internal": exchange.internal,
        "alternate-exchange": exchange.alternate,
    }


def _features(queue: Queue) -> dict[str, Argument]:
    return {"durable": queue.durable, **dict(queue.arguments), "x-queue-type": queue.kind}


def _text(value: object) -> str:
    return "not set" if value is None else repr(value)
