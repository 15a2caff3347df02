"""From an exchange, routing keys and headers to queues.

Rule: as in RabbitMQ, a queue gets a message once however many paths lead to it, and an alternate exchange is asked
only when nothing at all is bound that wants the message, queue or exchange.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from carom.core.message import Headers
from carom.core.routing import Matcher, matcher
from carom.core.topology import DEFAULT_EXCHANGE, Binding, Exchange

CACHE_LIMIT = 8192
"""How many (exchange, key) pairs are remembered before all are forgotten."""
NOWHERE: tuple[str, ...] = ()


class _Table:
    """The bindings of one exchange, prepared: those with a literal key by key, the others with their matchers."""

    __slots__ = ("always", "exchange", "keyed", "matching", "sensitive")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.keyed: dict[str, list[Binding]] = {}
        self.always: list[Binding] = []
        self.matching: list[tuple[Matcher, Binding]] = []
        self.sensitive = exchange.kind == "headers"

    def add(self, binding: Binding) -> None:
        kind = self.exchange.kind
        if kind == "fanout":
            self.always.append(binding)
        elif kind == "direct" or (kind == "topic" and not {"*", "#"} & set(binding.key.split("."))):
            self.keyed.setdefault(binding.key, []).append(binding)
        else:
            self.matching.append((matcher(kind, binding.key, binding.arguments), binding))

    def wanting(self, keys: Iterable[str], headers: Headers) -> list[Binding]:
        found = list(self.always)
        for key in keys:
            found += self.keyed.get(key, ())
            found += [binding for wants, binding in self.matching if wants(key, headers)]
        return found


class Router:
    """Exchanges and bindings, and what follows from them. ``queues`` are the names that exist, kept by the owner."""

    def __init__(self, queues: Collection[str]) -> None:
        """Start without exchanges; the default exchange is always there."""
        self.exchanges: dict[str, Exchange] = {}
        self.bindings: dict[Binding, None] = {}
        self._queues = queues
        self._tables: dict[str, _Table] = {}
        self._cache: dict[tuple[str, str], tuple[str, ...]] = {}

    def add(self, exchanges: Iterable[Exchange], bindings: Iterable[Binding]) -> None:
        """Add what is new; what is there already stays as it is. Forgets every remembered route."""
        for exchange in exchanges:
            if exchange.name not in self.exchanges:
                self.exchanges[exchange.name] = exchange
                self._tables[exchange.name] = _Table(exchange)
        for binding in bindings:
            if binding not in self.bindings:
                self.bindings[binding] = None
                self._tables[binding.source].add(binding)
        self._cache.clear()

    def forget_queue(self, name: str) -> None:
        """Remove the bindings of a queue that is gone."""
        kept = [binding for binding in self.bindings if binding.to != "queue" or binding.target != name]
        exchanges = list(self.exchanges.values())
        self.exchanges, self.bindings, self._tables = {}, {}, {}
        self.add(exchanges, kept)

    def one(self, exchange: str, key: str, headers: Headers) -> tuple[str, ...]:
        """Return the queues for a message with a single routing key. Remembered where headers do not decide."""
        route = self._cache.get((exchange, key))
        return self._find(exchange, (key,), headers) if route is None else route

    def route(self, exchange: str, keys: tuple[str, ...], headers: Headers) -> tuple[str, ...]:
        """Return the queues for a message with any number of routing keys, each once, in the order they were found."""
        return self.one(exchange, keys[0], headers) if len(keys) == 1 else self._find(exchange, keys, headers)

    def _find(self, exchange: str, keys: tuple[str, ...], headers: Headers) -> tuple[str, ...]:
        reached: dict[str, None] = {}
        sensitive = self._walk(exchange, keys, headers, reached)
        route = tuple(name for name in reached if name in self._queues) or NOWHERE
        if len(keys) == 1 and not sensitive:
            if len(self._cache) >= CACHE_LIMIT:
                self._cache.clear()
            self._cache[exchange, keys[0]] = route
        return route

    def _walk(self, start: str, keys: tuple[str, ...], headers: Headers, reached: dict[str, None]) -> bool:
        """Collect the queues; tell whether headers had a say."""
        sensitive = False
        seen: set[str] = set()
        todo = [start]
        for name in todo:
            if name == DEFAULT_EXCHANGE:
                reached.update(dict.fromkeys(keys))
            table = self._tables.get(name)
            if table is None or name in seen:
                continue
            seen.add(name)
            sensitive = sensitive or table.sensitive
            wanting = table.wanting(keys, headers)
            reached.update((binding.target, None) for binding in wanting if binding.to == "queue")
            todo.extend(binding.target for binding in wanting if binding.to == "exchange")
            if not wanting and table.exchange.alternate is not None:
                todo.append(table.exchange.alternate)
        return sensitive
