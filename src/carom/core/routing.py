"""Routing: which binding wants a message, and which queues it reaches.

Rule: exactly AMQP 0-9-1 as RabbitMQ does it, also where that is odd.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from carom.errors import ConfigurationError

if TYPE_CHECKING:
    from carom.core.topology import Argument, Binding, Topology

Matcher: TypeAlias = Callable[[str, Mapping[str, object]], bool]
"""A binding's answer to a routing key and headers."""
Router: TypeAlias = Callable[[str, str, Mapping[str, object]], frozenset[str]]
"""From an exchange, a routing key and headers to the queues that get the message."""

EXCHANGE_KINDS = frozenset({"direct", "topic", "fanout", "headers"})
X_MATCH = frozenset({"all", "any", "all-with-x", "any-with-x"})
NO_HEADERS: Mapping[str, object] = MappingProxyType({})

_WORD = r"[^.]*\."


def matches(
    kind: str,
    binding_key: str,
    routing_key: str,
    arguments: Sequence[tuple[str, Argument | None]] = (),
    headers: Mapping[str, object] = NO_HEADERS,
) -> bool:
    """Tell whether a binding of an exchange of this kind wants a message. For many messages use `matcher`."""
    return matcher(kind, binding_key, arguments)(routing_key, headers)


def matcher(kind: str, binding_key: str, arguments: Sequence[tuple[str, Argument | None]] = ()) -> Matcher:
    """Prepare a binding once, to ask it about many messages.

    A topic's ``*`` stands for exactly one word and ``#`` for any number, none included; words lie between dots
    and may be empty, and the empty key has no word at all. A message costs time in proportion to the length of
    its key times that of the pattern, however hostile the pattern is.
    """
    if kind == "direct":
        return lambda routing_key, _headers: routing_key == binding_key
    if kind == "fanout":
        return lambda _routing_key, _headers: True
    if kind == "topic":
        return _topic(binding_key)
    if kind == "headers":
        return _headers(dict(arguments))
    raise ConfigurationError(f"there is no exchange of kind {kind!r}: use one of {', '.join(sorted(EXCHANGE_KINDS))}")


def router(topology: Topology) -> Router:
    """Prepare a topology once, to ask it where many messages go.

    Direct bindings are looked up, all others of an exchange are asked one by one. Bindings of exchanges that are not
    in the topology, or of no kind there is, want nothing; `topology.problems` names them.
    """
    queues = frozenset(queue.name for queue in topology.queues)
    exchanges = {exchange.name: exchange for exchange in topology.exchanges}
    direct: defaultdict[tuple[str, str], list[Binding]] = defaultdict(list)
    asked: defaultdict[str, list[tuple[Matcher, Binding]]] = defaultdict(list)
    for binding in topology.bindings:
        kind = exchanges[binding.source].kind if binding.source in exchanges else None
        if kind == "direct":
            direct[binding.source, binding.key].append(binding)
        elif kind in EXCHANGE_KINDS:
            asked[binding.source].append((matcher(kind, binding.key, binding.arguments), binding))

    def find(exchange: str, routing_key: str, headers: Mapping[str, object]) -> frozenset[str]:
        reached: set[str] = set()
        seen: set[str] = set()
        todo = [exchange]
        while todo:
            name = todo.pop()
            if not name:
                reached.add(routing_key)
            if name in seen or name not in exchanges:
                continue
            seen.add(name)
            wanting = [binding for wants, binding in asked.get(name, ()) if wants(routing_key, headers)]
            wanting += direct.get((name, routing_key), ())
            reached.update(binding.target for binding in wanting if binding.to == "queue")
            todo.extend(binding.target for binding in wanting if binding.to == "exchange")
            alternate = exchanges[name].alternate
            if not wanting and alternate is not None:
                todo.append(alternate)
        return queues & reached

    return find


def route(
    topology: Topology, exchange: str, routing_key: str, headers: Mapping[str, object] = NO_HEADERS
) -> frozenset[str]:
    """Return the names of the queues a message reaches; none means the broker returns or drops it."""
    return router(topology)(exchange, routing_key, headers)


def _topic(binding_key: str) -> Matcher:
    words = binding_key.split(".") if binding_key else []
    if "#" not in words and "*" not in words:
        return lambda routing_key, _headers: routing_key == binding_key
    if all(word == "#" for word in words):
        return lambda _routing_key, _headers: True
    fits = re.compile(_pattern(words)).fullmatch
    return lambda routing_key, _headers: fits(routing_key + "." if routing_key else "") is not None


def _pattern(words: Sequence[str]) -> str:
    """Write a topic pattern as a regular expression over words that each end in a dot.

    What stands between two ``#`` is taken where it first fits and never tried again (an atomic group): it has a
    fixed number of words, so an earlier place leaves more to what follows, and nothing blows up.
    """
    parts = [""]
    for word in words:
        if word == "#":
            parts.append("")
        else:
            parts[-1] += _WORD if word == "*" else re.escape(word) + r"\."
    first, *between = parts
    if not between:
        return first
    last = between.pop()
    middle = "".join(f"(?>(?:{_WORD})*?{part})" for part in between if part)
    return f"{first}{middle}(?:{_WORD})*{last}"


def _headers(arguments: Mapping[str, Argument | None]) -> Matcher:
    """Match as RabbitMQ does: by value, whatever the type on the wire; None asks only that the header is there.

    Names that start with ``x-`` are passed over unless ``x-match`` says so. An ``x-match`` that means nothing is
    read as ``all``; `topology.problems` names it and the broker refuses it.
    """
    mode = arguments.get("x-match", "all")
    strict = mode not in {"all-with-x", "any-with-x"}
    wanted = [
        (name, value)
        for name, value in arguments.items()
        if name != "x-match" and not (strict and name.startswith("x-"))
    ]
    enough = any if mode in {"any", "any-with-x"} else all
    return lambda _routing_key, headers: enough(
        name in headers and _same(value, headers[name]) for name, value in wanted
    )


def _same(wanted: Argument | None, given: object) -> bool:
    if isinstance(given, bytes) and isinstance(wanted, str):
        return given == wanted.encode()
    return wanted is None or (wanted == given and isinstance(wanted, bool) == isinstance(given, bool))
