"""A vhost as it behaves: every queue with the values that count, where its dead letters go, and what it is for.

What a queue is for is told by what it does. A queue that sends what expires to where work is done is a *delay*; one
that has no dead letters of its own and takes those of others is a *dead letter queue*. Where arguments cannot tell, as
for waiting rooms whose messages bring their own expiration, the words in the name do.

Rule: who is not sure what a queue is for takes it for one where work is done, and says less.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import cast

from carom.core.lint.policies import Applied, applied, effective
from carom.core.lint.seen import Exchange, Inventory, Queue, Vhost
from carom.core.lint.versions import DEFAULT_LIMIT, LIMITED, UNKNOWN
from carom.core.routing import EXCHANGE_KINDS, NO_HEADERS, Router, router
from carom.core.topology import Argument, ExchangeKind, Topology, arguments
from carom.core.topology import Binding as Bound
from carom.core.topology import Exchange as Declared
from carom.core.topology import Queue as DeclaredQueue

UNLIMITED = 100_000
"""A delivery limit that is not reached."""
_BUILT_IN = {"amq.direct": "direct", "amq.topic": "topic", "amq.fanout": "fanout"} | dict.fromkeys(
    ("amq.headers", "amq.match"), "headers"
)
_WAITS = re.compile(r"retr(?:y|ies)|delay|wait|later|back.?off|defer", re.IGNORECASE)
_DEAD = re.compile(
    r"dlq|dead|(?:^|[._-])(?:dl|lost|fail\w*|errors?|poison\w*|park\w*|rejected|quarantine)(?:$|[._-])", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Looked:
    """A queue, the policies on it, and the values that count."""

    queue: Queue
    applied: Applied
    values: dict[str, object]

    @property
    def name(self) -> str:
        """Return the queue's name."""
        return self.queue.name

    @property
    def kind(self) -> str:
        """Return the kind of the queue."""
        return self.queue.kind

    @property
    def exchange(self) -> str | None:
        """Return where its dead letters go; None means nowhere."""
        return _text(self.values.get("dead-letter-exchange"))

    @property
    def key(self) -> str | None:
        """Return the key its dead letters get; None keeps their own."""
        return _text(self.values.get("dead-letter-routing-key"))

    @property
    def waits_ms(self) -> int | None:
        """Return how long messages may wait."""
        return self.number("message-ttl")

    @property
    def at_least_once(self) -> bool:
        """Tell whether it asks that no dead letter is lost on its way."""
        return self.values.get("dead-letter-strategy") == "at-least-once"

    @property
    def rejects(self) -> bool:
        """Tell whether a full queue refuses what is published."""
        return self.values.get("overflow") in {"reject-publish", "reject-publish-dlx"}

    @property
    def bounded(self) -> bool:
        """Tell whether it can be full."""
        return self.number("max-length") is not None or self.number("max-length-bytes") is not None

    def number(self, key: str) -> int | None:
        """Return a value that is a whole number."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def by_policy(self, key: str) -> bool:
        """Tell whether a value comes from a policy alone."""
        return key in self.values and f"x-{key}" not in self.queue.arguments


@dataclass(frozen=True)
class View:
    """A vhost, looked at as a whole."""

    broker: Inventory
    vhost: Vhost
    queues: dict[str, Looked] = field(init=False)
    exchanges: dict[str, Exchange] = field(init=False)
    topology: Topology = field(init=False)
    find: Router = field(init=False)
    bindings: dict[str, tuple[Bound, ...]] = field(init=False)
    fed: frozenset[str] = field(init=False)
    delays: frozenset[str] = field(init=False)
    dead: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Look once."""
        looked = {one.name: self._look(one) for one in self.vhost.queues}
        exchanges = {name: Exchange(name, kind) for name, kind in _BUILT_IN.items()}
        exchanges |= {one.name: one for one in self.vhost.exchanges if one.name}
        set_ = object.__setattr__
        set_(self, "queues", looked)
        set_(self, "exchanges", exchanges)
        set_(self, "topology", self._topology())
        set_(self, "find", router(self.topology))
        bindings: dict[str, tuple[Bound, ...]] = {}
        leads = {one.exchange for one in looked.values()}
        by_source = sorted(self.topology.bindings, key=lambda one: one.source)
        for source, bound in groupby(by_source, key=lambda one: one.source):
            bindings[source] = tuple(bound)
        set_(self, "bindings", bindings)
        set_(self, "fed", frozenset(one.target for one in by_source if one.source not in leads))
        set_(self, "delays", frozenset(name for name, one in looked.items() if self._is_delay(one)))
        set_(self, "dead", self._dead())

    def targets(self, one: Looked) -> frozenset[str] | None:
        """Return the queues that take the dead letters of a queue; None when that depends on each message's key."""
        if one.exchange is None:
            return frozenset()
        if one.key is None:
            here = self.exchanges.get(one.exchange)
            if not one.exchange or (here is not None and here.kind != "fanout"):
                return None
        return self.find(one.exchange, one.key or "", NO_HEADERS)

    def bound(self, exchange: str) -> tuple[Bound, ...]:
        """Return what is bound to an exchange."""
        return self.bindings.get(exchange, ())

    def place(self, thing: str, name: str) -> str:
        """Name a thing and, where there are several or it is not the first, its vhost."""
        where = "" if len(self.broker.vhosts) == 1 and self.vhost.name == "/" else f" in vhost {self.vhost.name}"
        return f"{thing} {name}{where}"

    def work(self) -> tuple[Looked, ...]:
        """Return the queues where work is done: neither delays nor of dead letters, and no streams."""
        return tuple(
            one
            for name, one in self.queues.items()
            if name not in self.delays and name not in self.dead and one.kind != "stream"
        )

    def limit(self, one: Looked) -> int | None:
        """Return after how many returns the broker takes a message away; None when never."""
        if one.kind != "quorum":
            return None
        given = one.number("delivery-limit")
        if given is None:
            return DEFAULT_LIMIT if self.broker.version >= LIMITED else None
        return given if 0 <= given < UNLIMITED else None

    def _look(self, queue: Queue) -> Looked:
        found = applied(queue, self.vhost.policies, self.broker.version)
        return Looked(queue, found, effective(queue, found.defines))

    def _topology(self) -> Topology:
        """Return the vhost as a topology in which the values that count are arguments."""
        return Topology(
            tuple(
                Declared(
                    one.name,
                    cast("ExchangeKind", one.kind),
                    alternate=_text(one.arguments.get("alternate-exchange")),
                )
                for one in self.exchanges.values()
            ),
            tuple(DeclaredQueue(one.name, arguments=self._counting(one)) for one in self.queues.values()),
            tuple(
                Bound(
                    one.source,
                    one.target,
                    one.key,
                    "exchange" if one.to == "exchange" else "queue",
                    arguments({key: value for key, value in one.arguments.items() if isinstance(value, str | int)}),
                )
                for one in self.vhost.bindings
                if one.source
            ),
        )

    def _counting(self, one: Looked) -> tuple[tuple[str, Argument], ...]:
        values = {f"x-{key}": value for key, value in one.values.items() if isinstance(value, str | int)}
        limit = self.limit(one)
        values["x-delivery-limit"] = UNLIMITED if limit is None else limit
        return arguments({**values, "x-queue-type": one.kind})

    def _is_delay(self, one: Looked) -> bool:
        if one.exchange is None or one.kind == "stream":
            return False
        if one.waits_ms is None:
            return _WAITS.search(one.name) is not None and not _DEAD.search(one.name)
        if _WAITS.search(one.name):
            return True
        known = [self.queues[name] for name in self.targets(one) or ()]
        return not known or not all(self._ends(other) for other in known)

    def _ends(self, one: Looked) -> bool:
        """Tell whether nothing but dead letters comes to a queue, as far as bindings tell, and none leaves it."""
        return one.exchange is None and (_DEAD.search(one.name) is not None or one.name not in self.fed)

    def _dead(self) -> frozenset[str]:
        taken: set[str] = set()
        for name, one in self.queues.items():
            if name not in self.delays:
                taken |= self.targets(one) or frozenset()
        named = {name for name in self.queues if _DEAD.search(name)}
        return frozenset(
            name for name in taken | named if self.queues[name].exchange is None and name not in self.delays
        )


def views(broker: Inventory) -> Iterable[View]:
    """Return each vhost as it behaves."""
    return (View(broker, vhost) for vhost in broker.vhosts)


def is_routable(exchange: Exchange) -> bool:
    """Tell whether where this exchange sends a message can be told from its bindings."""
    return exchange.kind in EXCHANGE_KINDS


def knows(broker: Inventory) -> bool:
    """Tell whether the version of the server is known."""
    return broker.version != UNKNOWN


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
