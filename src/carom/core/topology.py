"""Topology: exchanges, queues and bindings as one value that brokers declare, interpret, show and compare.

Rule: a topology that contradicts itself never reaches a broker; `validate` names everything wrong at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar

from carom.core import soundness
from carom.errors import TopologyError

Argument: TypeAlias = str | int | bool
Arguments: TypeAlias = tuple[tuple[str, Argument], ...]
ExchangeKind: TypeAlias = Literal["direct", "topic", "fanout", "headers"]
DEFAULT_EXCHANGE = ""
"""The exchange without a name: it routes to the queue whose name is the routing key."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange. ``alternate`` takes what no binding wants.

    ``public`` says that others bind to it too, so that having no binding here is no mistake; brokers are not told.
    """

    name: str
    kind: ExchangeKind = "topic"
    durable: bool = True
    internal: bool = False
    alternate: str | None = None
    public: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue with its broker arguments, sorted by name."""

    name: str
    durable: bool = True
    arguments: Arguments = ()

    def argument(self, name: str) -> Argument | None:
        """Return one argument, or None."""
        return dict(self.arguments).get(name)

    @property
    def kind(self) -> str:
        """Return ``quorum``, ``classic`` or ``stream``."""
        return str(self.argument("x-queue-type") or "classic")

    @property
    def dead_letter_exchange(self) -> str | None:
        """Return where its dead letters go; None means nowhere."""
        value = self.argument("x-dead-letter-exchange")
        return None if value is None else str(value)

    @property
    def dead_letter_key(self) -> str | None:
        """Return the routing key its dead letters get; None keeps their own."""
        value = self.argument("x-dead-letter-routing-key")
        return None if value is None else str(value)

    @property
    def ttl_ms(self) -> int | None:
        """Return how long a message may wait here before it expires."""
        value = self.argument("x-message-ttl")
        return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class Binding:
    """From a source exchange to a queue, or to another exchange when ``to`` says so."""

    source: str
    target: str
    key: str = ""
    to: Literal["queue", "exchange"] = "queue"
    arguments: Arguments = ()


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """What has to exist on a broker. Order is kept for people; equality and union do not look at it."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and self._things() == other._things()

    def __hash__(self) -> int:
        return hash(self._things())

    def exchange(self, name: str) -> Exchange | None:
        """Return the exchange of this name, or None."""
        return next((exchange for exchange in self.exchanges if exchange.name == name), None)

    def queue(self, name: str) -> Queue | None:
        """Return the queue of this name, or None."""
        return next((queue for queue in self.queues if queue.name == name), None)

    def _things(self) -> frozenset[_Thing]:
        return frozenset((*self.exchanges, *self.queues, *self.bindings))


@dataclass(frozen=True, slots=True)
class Change:
    """A property of an exchange or a queue that is not what is wanted; None stands for not set."""

    thing: Literal["exchange", "queue"]
    name: str
    argument: str
    wanted: Argument | None
    actual: Argument | None


@dataclass(frozen=True, slots=True)
class Difference:
    """What a broker has otherwise than wanted. False when nothing differs."""

    missing_exchanges: tuple[Exchange, ...] = ()
    missing_queues: tuple[Queue, ...] = ()
    missing_bindings: tuple[Binding, ...] = ()
    changed: tuple[Change, ...] = ()
    extra_exchanges: tuple[Exchange, ...] = ()
    extra_queues: tuple[Queue, ...] = ()
    extra_bindings: tuple[Binding, ...] = ()

    def __bool__(self) -> bool:
        return self != Difference()


_Thing: TypeAlias = Exchange | Queue | Binding
_Named = TypeVar("_Named", Exchange, Queue)


def arguments(values: Mapping[str, Argument | None]) -> Arguments:
    """Return broker arguments in the one order that makes equal things equal; None means not set."""
    return tuple(sorted((name, value) for name, value in values.items() if value is not None))


def quorum(name: str, **options: Argument | None) -> Queue:
    """Return a quorum queue; ``dead_letter_exchange="x"`` becomes the argument ``x-dead-letter-exchange``."""
    named = {"x-" + option.replace("_", "-"): value for option, value in options.items()}
    return Queue(name, arguments=arguments({"x-queue-type": "quorum", **named}))


def at_least_once(dead_letter_exchange: str, dead_letter_routing_key: str | None = None) -> dict[str, Argument | None]:
    """Return the options of a quorum queue that never loses a dead letter on its way."""
    return {
        "dead_letter_exchange": dead_letter_exchange,
        "dead_letter_routing_key": dead_letter_routing_key,
        "dead_letter_strategy": "at-least-once",
        "overflow": "reject-publish",
    }


def union(*topologies: Topology) -> Topology:
    """Put topologies together; the same thing twice is one thing, in the place where it came first.

    Raises TopologyError, with every contradiction, when they declare one name with different properties.
    """
    exchanges = tuple(exchange for topology in topologies for exchange in topology.exchanges)
    queues = tuple(queue for topology in topologies for queue in topology.queues)
    bindings = dict.fromkeys(binding for topology in topologies for binding in topology.bindings)
    contradictions = _once((*_contradictions(exchanges), *_contradictions(queues)))
    if contradictions:
        raise TopologyError(contradictions)
    return Topology(tuple(_by_name(exchanges).values()), tuple(_by_name(queues).values()), tuple(bindings))


def problems(topology: Topology) -> tuple[str, ...]:
    """Return a sentence for everything a broker would refuse, lose messages by, or send round in circles."""
    contradictions = (*_contradictions(topology.exchanges), *_contradictions(topology.queues))
    return _once((*contradictions, *soundness.problems(topology)))


def validate(topology: Topology) -> Topology:
    """Return the topology as it is, or raise TopologyError with everything that is wrong with it."""
    found = problems(topology)
    if found:
        raise TopologyError(found)
    return topology


def diff(wanted: Topology, actual: Topology) -> Difference:
    """Compare what is wanted with what is there. The broker's own exchanges and bindings are nobody's extra."""
    exchanges, queues = _by_name(wanted.exchanges), _by_name(wanted.queues)
    there, queues_there = _by_name(actual.exchanges), _by_name(actual.queues)
    bindings, bound = dict.fromkeys(wanted.bindings), dict.fromkeys(actual.bindings)
    return Difference(
        missing_exchanges=tuple(each for name, each in exchanges.items() if name not in there),
        missing_queues=tuple(each for name, each in queues.items() if name not in queues_there),
        missing_bindings=tuple(each for each in bindings if each not in bound),
        changed=(*_changed(exchanges, there), *_changed(queues, queues_there)),
        extra_exchanges=tuple(each for name, each in there.items() if name not in exchanges and not _built_in(name)),
        extra_queues=tuple(each for name, each in queues_there.items() if name not in queues),
        extra_bindings=tuple(each for each in bound if each not in bindings and each.source != DEFAULT_EXCHANGE),
    )


def sentences(difference: Difference) -> tuple[str, ...]:
    """Return a sentence for everything that differs, with the object's name and both values."""
    missing: tuple[_Thing, ...] = (
        *difference.missing_exchanges,
        *difference.missing_queues,
        *difference.missing_bindings,
    )
    extra: tuple[_Thing, ...] = (*difference.extra_exchanges, *difference.extra_queues, *difference.extra_bindings)
    return (
        *(f"{_called(thing)} is missing" for thing in missing),
        *(
            f"{change.thing} {change.name!r}: {change.argument} should be {_said(change.wanted)} "
            f"and is {_said(change.actual)}"
            for change in difference.changed
        ),
        *(f"{_called(thing)} is there and not wanted" for thing in extra),
    )


def _by_name(things: Iterable[_Named]) -> dict[str, _Named]:
    named: dict[str, _Named] = {}
    for thing in things:
        named.setdefault(thing.name, thing)
    return named


def _properties(thing: Exchange | Queue) -> dict[str, Argument | None]:
    """Return what a broker compares when a thing is declared again; a queue without a kind is a classic one."""
    if isinstance(thing, Queue):
        return {"durable": thing.durable, **dict(thing.arguments), "x-queue-type": thing.kind}
    return {
        "type": thing.kind,
        "durable": thing.durable,
        "internal": thing.internal,
        "alternate-exchange": thing.alternate,
    }


def _changes(wanted: Exchange | Queue, actual: Exchange | Queue) -> Iterator[Change]:
    ours, theirs = _properties(wanted), _properties(actual)
    thing: Literal["exchange", "queue"] = "queue" if isinstance(wanted, Queue) else "exchange"
    for argument in dict.fromkeys((*ours, *theirs)):
        one, other = ours.get(argument), theirs.get(argument)
        if one != other or isinstance(one, bool) != isinstance(other, bool):
            yield Change(thing, wanted.name, argument, one, other)


def _changed(wanted: Mapping[str, _Named], actual: Mapping[str, _Named]) -> Iterator[Change]:
    for name in wanted:
        if name in actual:
            yield from _changes(wanted[name], actual[name])


def _contradictions(things: Sequence[Exchange] | Sequence[Queue]) -> Iterator[str]:
    first: dict[str, Exchange | Queue] = {}
    for thing in things:
        for change in _changes(first.setdefault(thing.name, thing), thing):
            yield (
                f"{change.thing} {change.name!r} is declared twice, with {change.argument} {_said(change.wanted)} and "
                f"{_said(change.actual)}: keep one of them"
            )


def _built_in(name: str) -> bool:
    return name == DEFAULT_EXCHANGE or name.startswith("amq.")


def _called(thing: _Thing) -> str:
    if isinstance(thing, Binding):
        with_arguments = f" and {dict(thing.arguments)}" if thing.arguments else ""
        return f"the binding of {thing.to} {thing.target!r} to {thing.source!r} with key {thing.key!r}{with_arguments}"
    return f"{thing.kind} {'queue' if isinstance(thing, Queue) else 'exchange'} {thing.name!r}"


def _said(value: Argument | None) -> str:
    return "not set" if value is None else repr(value)


def _once(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lines))
