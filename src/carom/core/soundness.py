"""Soundness: what in a topology a broker would refuse, lose messages by, or send round in circles.

Rule: only what is certain is called wrong. What RabbitMQ decides by something that is not in the topology (a
message's own expiration or headers, a policy) is not guessed. Every sentence names the object and the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from carom.core.durations import LONGEST_MS
from carom.core.message import NAME_LIMIT
from carom.core.routing import EXCHANGE_KINDS, NO_HEADERS, X_MATCH, matches, router

if TYPE_CHECKING:
    from carom.core.topology import Argument, Binding, Exchange, Queue, Topology

_LARGEST = 2**63 - 1
_BOUNDS = {
    "x-message-ttl": (0, LONGEST_MS),
    "x-expires": (1, LONGEST_MS),
    "x-max-length": (0, _LARGEST),
    "x-max-length-bytes": (0, _LARGEST),
    "x-delivery-limit": (0, _LARGEST),  # below 0 means no limit since 4.0, and none at all before
}
PRACTICALLY_UNLIMITED = 100_000
"""A delivery limit that no message reaches by coming back; -1 does not say it on every version of the broker."""
_CHOICES = {
    "x-dead-letter-strategy": ("at-most-once", "at-least-once"),
    "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
}
_KINDS = ("classic", "quorum", "stream")
_UNDERSTOOD_BY = {
    "x-delivery-limit": ("quorum",),
    "x-dead-letter-strategy": ("quorum",),
    "x-dead-letter-exchange": ("classic", "quorum"),
    "x-dead-letter-routing-key": ("classic", "quorum"),
    "x-message-ttl": ("classic", "quorum"),
    "x-overflow": ("classic", "quorum"),
    "x-expires": ("classic", "quorum"),
}

_SOME_KEY = ".".join(["\0"] * 100)
"""A key no binding names: where it goes, a message goes whatever its key."""
_State: TypeAlias = tuple[str, str]
"""A queue and the routing key of a message in it."""


def problems(topology: Topology) -> Iterator[str]:
    """Yield a sentence for everything wrong with the parts of a topology and with how they hang together."""
    kinds: dict[str, str] = {exchange.name: exchange.kind for exchange in topology.exchanges}
    queues = {queue.name for queue in topology.queues}
    sources = {binding.source for binding in topology.bindings}
    for exchange in topology.exchanges:
        # A topology without queues is a publisher's: who listens is declared elsewhere.
        bound = exchange.public or not topology.queues or exchange.name in sources
        yield from _exchange_problems(exchange, kinds, bound=bound)
    for queue in topology.queues:
        yield from _queue_problems(queue, kinds)
    for binding in topology.bindings:
        yield from _binding_problems(binding, kinds, queues)
    yield from dead_ends(topology)
    for way in loops(topology):
        yield (
            f"dead letters go round with nobody deciding it: {' -> '.join(way)}; the broker drops them there or keeps "
            "them for ever: let one of these queues send its dead letters to a queue they stay in"
        )


def dead_ends(topology: Topology) -> Iterator[str]:
    """Yield a sentence for each queue whose dead letters, by its own arguments, cannot reach any queue.

    With a dead letter key the answer is certain, but for a headers exchange, which may want anything. Without one
    a message keeps the key it came with; that is judged only for the default exchange, which needs a queue of
    that very name: one of the queue's bindings must let such a key in.
    """
    generous = [replace(each, kind="fanout") if each.kind == "headers" else each for each in topology.exchanges]
    find = router(replace(topology, exchanges=tuple(generous)))
    ways = _ways_in(topology)
    known = {"", *(exchange.name for exchange in topology.exchanges)}
    for queue in topology.queues:
        exchange, key = queue.dead_letter_exchange, queue.dead_letter_key
        if exchange is None or exchange not in known:
            continue
        if key is not None and not find(exchange, key, NO_HEADERS):
            yield (
                f"queue {queue.name!r} sends its dead letters to exchange {exchange!r} with key {key!r}, where no "
                "queue takes them: bind a queue there or change the key"
            )
        if key is None and not exchange and not any(_comes_in(name, ways[queue.name]) for name in ways):
            yield (
                f"queue {queue.name!r} sends its dead letters to the default exchange with the key they came with, and "
                "no queue has such a name: set x-dead-letter-routing-key to the name of a queue"
            )


def loops(topology: Topology) -> Iterator[tuple[str, ...]]:
    """Yield each way on which dead letters come back to a queue without anybody's decision, as its queues in order.

    RabbitMQ drops such messages without a word, or with at-least-once dead lettering keeps them for ever. Only
    queues that let messages die by themselves take part: those with a TTL, those with a maximum length that do not
    refuse the publisher, and quorum queues unless their delivery limit is switched off with -1 (20 is the default
    since RabbitMQ 4.0). A queue that only consumers reject from ends the way, for a rejection is a decision.

    A dead letter without a new key keeps its own, which no topology tells. So the way is tried with each key the
    queue is bound by (a topic pattern is tried as it is written), with its name if nothing binds it, and, where a
    fanout or headers exchange lets any key in, with a key nobody names, which finds what every key finds. Two
    patterns that overlap in keys that neither of them spells are therefore not found: better silent than wrong.
    """
    find = router(topology)
    queues = {queue.name: queue for queue in topology.queues}
    reported: set[frozenset[str]] = set()

    def deaths(state: _State) -> list[_State]:
        queue = queues[state[0]]
        if queue.dead_letter_exchange is None or not _dies_unattended(queue):
            return []
        key = state[1] if queue.dead_letter_key is None else queue.dead_letter_key
        return [(name, key) for name in sorted(find(queue.dead_letter_exchange, key, NO_HEADERS))]

    ways = _ways_in(topology)
    starts = [(queue.name, key) for queue in topology.queues for key in _keys_in(queue, ways[queue.name])]
    steps = _explore(starts, deaths)
    for state in steps:
        way = _way_back(state, steps)
        if way and frozenset(way) not in reported:
            reported.add(frozenset(way))
            yield way


def _name_problems(thing: str, name: str) -> Iterator[str]:
    if not name:
        yield f"{thing} '' has no name: the empty name belongs to the default exchange, give it another"
    if name.startswith("amq."):
        yield f"{thing} {name!r} starts with 'amq.', which belongs to the broker: give it another name"
    yield from _too_long(f"{thing} {name!r} has a name", name)


def _too_long(what: str, text: str) -> Iterator[str]:
    length = len(text.encode(errors="surrogatepass"))
    if length > NAME_LIMIT:
        yield f"{what} of {length} bytes, and a broker takes {NAME_LIMIT}: make it shorter"


def _exchange_problems(exchange: Exchange, exchanges: Container[str], *, bound: bool) -> Iterator[str]:
    yield from _name_problems("exchange", exchange.name)
    if exchange.kind not in EXCHANGE_KINDS:
        kinds = ", ".join(sorted(EXCHANGE_KINDS))
        yield f"exchange {exchange.name!r} is of kind {exchange.kind!r}, which does not exist: use one of {kinds}"
    if exchange.alternate is None and not bound:
        yield (
            f"exchange {exchange.name!r}: nothing is bound to it, so what is published there goes nowhere: bind a "
            "queue to it or give it an alternate exchange"
        )
    if exchange.alternate and exchange.alternate not in exchanges:
        yield (
            f"exchange {exchange.name!r} has the alternate exchange {exchange.alternate!r}, which does not exist: "
            "declare it too"
        )


def _binding_problems(binding: Binding, exchanges: Mapping[str, str], queues: Container[str]) -> Iterator[str]:
    where = f"the binding of {binding.to} {binding.target!r} to exchange {binding.source!r} with key {binding.key!r}"
    if not binding.source or (binding.to == "exchange" and not binding.target):
        yield f"{where} binds the default exchange, which a broker refuses: bind an exchange with a name"
        return
    if binding.source not in exchanges:
        yield f"{where} has no source: exchange {binding.source!r} does not exist, declare it too"
    elif exchanges[binding.source] == "headers":
        mode = dict(binding.arguments).get("x-match", "all")
        if mode not in X_MATCH:
            yield f"{where} has x-match {mode!r}, which means nothing: use one of {', '.join(sorted(X_MATCH))}"
    if binding.target not in (queues if binding.to == "queue" else exchanges):
        yield f"{where} has no target: {binding.to} {binding.target!r} does not exist, declare it too"
    yield from _too_long(f"{where} has a key", binding.key)


def _queue_problems(queue: Queue, exchanges: Container[str]) -> Iterator[str]:
    yield from _name_problems("queue", queue.name)
    where = f"queue {queue.name!r}"
    if queue.kind not in _KINDS:
        yield f"{where} is of kind {queue.kind!r}, which does not exist: use one of {', '.join(_KINDS)}"
        return
    if not queue.durable and queue.kind != "classic":
        yield f"{where} is a {queue.kind} queue and not durable, which a broker refuses: make it durable"
    for name, value in queue.arguments:
        yield from _argument_problems(queue, name, value)
    exchange = queue.dead_letter_exchange
    if exchange and exchange not in exchanges:
        yield f"{where} sends its dead letters to exchange {exchange!r}, which does not exist: declare it too"
    if exchange is None and queue.dead_letter_key is not None:
        yield f"{where} has a dead letter key and no dead letter exchange: set x-dead-letter-exchange too"
    yield from _too_long(f"{where} has a dead letter key", queue.dead_letter_key or "")
    if queue.argument("x-dead-letter-strategy") == "at-least-once":
        if exchange is None:
            yield f"{where} asks for at-least-once dead lettering and has no dead letter exchange: set one"
        if queue.argument("x-overflow") != "reject-publish":
            yield (
                f"{where} asks for at-least-once dead lettering without x-overflow 'reject-publish': the broker would "
                "fall back to at-most-once without a word, set it"
            )


def _argument_problems(queue: Queue, name: str, value: Argument) -> Iterator[str]:
    where = f"queue {queue.name!r} has {name} {value!r}"
    if queue.kind not in _UNDERSTOOD_BY.get(name, _KINDS):
        able = " or ".join(_UNDERSTOOD_BY[name])
        yield f"{where} and is a {queue.kind} queue, which a broker refuses: make it {able} or leave the argument out"
    if name in _BOUNDS:
        least, most = _BOUNDS[name]
        if isinstance(value, bool) or not isinstance(value, int):
            yield f"{where}, which is not a whole number: use one from {least} to {most}"
        elif not least <= value <= most:
            yield f"{where}, which a broker does not take: use a whole number from {least} to {most}"
    if name in _CHOICES and value not in _CHOICES[name]:
        yield f"{where}, which means nothing: use one of {', '.join(_CHOICES[name])}"


def _ways_in(topology: Topology) -> dict[str, list[tuple[str, Binding]]]:
    """Return for each queue the bindings that lead to it, each with the kind of its exchange."""
    kinds = {exchange.name: exchange.kind for exchange in topology.exchanges}
    ways: dict[str, list[tuple[str, Binding]]] = {queue.name: [] for queue in topology.queues}
    for binding in topology.bindings:
        if binding.to == "queue" and binding.target in ways and kinds.get(binding.source) in EXCHANGE_KINDS:
            ways[binding.target].append((kinds[binding.source], binding))
    return ways


def _keys_in(queue: Queue, ways: Sequence[tuple[str, Binding]]) -> list[str]:
    keys = {binding.key if kind in {"direct", "topic"} else _SOME_KEY for kind, binding in ways}
    return sorted(keys or {queue.name})


def _comes_in(name: str, ways: Sequence[tuple[str, Binding]]) -> bool:
    """Tell whether a message may come in with this routing key."""
    return not ways or any(
        matches("fanout" if kind == "headers" else kind, binding.key, name) for kind, binding in ways
    )


def _dies_unattended(queue: Queue) -> bool:
    if queue.ttl_ms is not None:
        return True
    bounded = queue.argument("x-max-length") is not None or queue.argument("x-max-length-bytes") is not None
    if bounded and queue.argument("x-overflow") != "reject-publish":
        return True
    limit = queue.argument("x-delivery-limit")
    return queue.kind == "quorum" and not (isinstance(limit, int) and limit >= PRACTICALLY_UNLIMITED)


def _explore(starts: Sequence[_State], deaths: Callable[[_State], list[_State]]) -> dict[_State, list[_State]]:
    """Return every state that can be reached and the states that follow it."""
    steps: dict[_State, list[_State]] = {}
    todo = list(reversed(starts))
    while todo:
        state = todo.pop()
        if state not in steps:
            steps[state] = deaths(state)
            todo.extend(steps[state])
    return steps


def _way_back(start: _State, steps: Mapping[_State, list[_State]]) -> tuple[str, ...]:
    """Return a shortest way from a state to the queue it is in, as queue names, or nothing."""
    ways: list[tuple[_State, tuple[str, ...]]] = [(start, (start[0],))]
    seen = {start}
    for state, way in ways:
        for following in steps[state]:
            if following[0] == start[0]:
                return (*way, start[0])
            if following not in seen:
                seen.add(following)
                ways.append((following, (*way, following[0])))
    return ()
