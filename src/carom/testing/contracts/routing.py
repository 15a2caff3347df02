"""Routing: which queues get a message, and that each of them gets it once.

Rule: exactly AMQP 0-9-1, with RabbitMQ's bindings between exchanges and its alternate exchanges.
"""

from __future__ import annotations

from carom.core.effects import Returned
from carom.core.message import Message
from carom.core.topology import Argument, Queue
from carom.ports import Broker
from carom.testing.contracts.stage import Stage, bind, to

PATTERNS = (
    "order.created",
    "order.*",
    "*.created",
    "order.#",
    "#.created",
    "#",
    "*",
    "*.*",
    "order.*.eu",
    "order.#.eu",
    "#.order.#",
    "",
    "*.#",
)
TOPICS: dict[str, set[str]] = {
    "order.created": {
        "order.created", "order.*", "*.created", "order.#", "#.created", "#", "*.*", "#.order.#", "*.#",
    },
    "order": {"order.#", "#", "*", "#.order.#", "*.#"},
    "created": {"#.created", "#", "*", "*.#"},
    "order.created.eu": {"order.#", "#", "order.*.eu", "order.#.eu", "#.order.#", "*.#"},
    "order.eu": {"order.*", "order.#", "#", "*.*", "order.#.eu", "#.order.#", "*.#"},
    "order.a.b.eu": {"order.#", "#", "order.#.eu", "#.order.#", "*.#"},
    "the.order.was.created": {"#.created", "#", "#.order.#", "*.#"},
    "ORDER.CREATED": {"#", "*.*", "*.#"},
    "order.": {"order.*", "order.#", "#", "*.*", "#.order.#", "*.#"},
    ".created": {"*.created", "#.created", "#", "*.*", "*.#"},
    "orders": {"#", "*", "*.#"},
    "": {"#", ""},
}  # fmt: skip
"""Routing key → the patterns of `PATTERNS` that it matches."""


class Routing(Stage):
    """Where a published message goes."""

    async def test_a_direct_exchange_routes_by_the_whole_key(self) -> None:
        """Only the very same key matches; wildcards are ordinary characters."""
        broker = await self.connect()
        orders = self.exchange("orders", "direct")
        new, star = self.queue("new"), self.queue("star")
        await self.declare(broker, orders, new, star, bind(orders, new, "new"), bind(orders, star, "*"))
        assert await self._reached(broker, to(orders, "new"), new, star) == {new.name}
        assert await self._reached(broker, to(orders, "*"), new, star) == {star.name}
        assert await self._reached(broker, to(orders, "new.x"), new, star) == set()
        assert await self._reached(broker, to(orders, ""), new, star) == set()

    async def test_a_direct_exchange_gives_every_queue_with_the_key_its_copy(self) -> None:
        """Two queues bound by the same key both get the message."""
        broker = await self.connect()
        orders, one, two = self.exchange("orders", "direct"), self.queue("one"), self.queue("two")
        await self.declare(broker, orders, one, two, bind(orders, one, "new"), bind(orders, two, "new"))
        assert await self._reached(broker, to(orders, "new"), one, two) == {one.name, two.name}

    async def test_a_topic_exchange_matches_words_and_wildcards(self) -> None:
        """``*`` is exactly one word, ``#`` is any number of words, none included; words may be empty."""
        broker = await self.connect()
        orders = self.exchange("orders", "topic")
        queues = {pattern: self.queue(f"q{number}", "classic") for number, pattern in enumerate(PATTERNS)}
        bindings = [bind(orders, queue, pattern) for pattern, queue in queues.items()]
        await self.declare(broker, orders, *queues.values(), *bindings)
        for key, wanted in TOPICS.items():
            reached = await self._reached(broker, to(orders, key), *queues.values())
            found = {pattern for pattern, queue in queues.items() if queue.name in reached}
            assert found == wanted, f"the key {key!r} matches other patterns than it should"

    async def test_a_fanout_exchange_ignores_the_key(self) -> None:
        """Every bound queue gets every message."""
        broker = await self.connect()
        orders, one, two = self.exchange("orders", "fanout"), self.queue("one"), self.queue("two")
        await self.declare(broker, orders, one, two, bind(orders, one, "some"), bind(orders, two))
        assert await self._reached(broker, to(orders, "other"), one, two) == {one.name, two.name}

    async def test_a_headers_exchange_matches_all_or_any(self) -> None:
        """``x-match`` all (the default) wants every header of the binding, any wants one; values compare by type."""
        broker = await self.connect()
        orders = self.exchange("orders", "headers")
        every, some, default = self.queue("every"), self.queue("some"), self.queue("default")
        wanted: dict[str, Argument] = {"region": "eu", "size": 3}
        await self.declare(
            broker,
            orders,
            *(every, some, default),
            bind(orders, every, matching={"x-match": "all", **wanted}),
            bind(orders, some, matching={"x-match": "any", **wanted}),
            bind(orders, default, matching=wanted),
        )
        queues = every, some, default
        cases: list[tuple[dict[str, object], set[str]]] = [
            ({"region": "eu", "size": 3}, {every.name, some.name, default.name}),
            ({"region": "eu", "size": 3, "more": True}, {every.name, some.name, default.name}),
            ({"region": "eu"}, {some.name}),
            ({"region": "us", "size": 3}, {some.name}),
            ({"region": "us", "size": 4}, set()),
            ({"region": "eu", "size": "3"}, {some.name}),
            ({}, set()),
        ]
        for headers, names in cases:
            assert await self._reached(broker, to(orders, headers=headers), *queues) == names, headers

    async def test_the_default_exchange_reaches_a_queue_by_its_name(self) -> None:
        """Every queue can be addressed by its name, and the message says that it came that way."""
        broker = await self.connect()
        one, two = self.queue("one"), self.queue("two")
        await self.declare(broker, one, two)
        await self.publish(broker, to(one, body=b"direct"))
        [message] = await self.receive(broker, one)
        assert (message.exchange, message.routing_key) == ("", one.name)
        await self.stay_empty(broker, two, ms=0)

    async def test_a_queue_gets_one_copy_however_many_bindings_match(self) -> None:
        """Two matching bindings of a queue do not make two messages."""
        broker = await self.connect()
        orders, jobs = self.exchange("orders", "topic"), self.queue("jobs")
        keys = ("order.created", "order.*", "#")
        await self.declare(broker, orders, jobs, *(bind(orders, jobs, key) for key in keys))
        await self.publish(broker, to(orders, "order.created", b"once"))
        assert len(await self.receive(broker, jobs)) == 1
        await self.stay_empty(broker, jobs)

    async def test_an_exchange_can_feed_an_exchange(self) -> None:
        """A message passes from exchange to exchange by the rules of each; it keeps its first address."""
        broker = await self.connect()
        orders, europe, jobs = self.exchange("orders", "topic"), self.exchange("europe", "direct"), self.queue("jobs")
        await self.declare(broker, orders, europe, jobs, bind(orders, europe, "eu.#"), bind(europe, jobs, "eu.order"))
        await self.publish(broker, to(orders, "eu.order", b"passed"))
        [message] = await self.receive(broker, jobs)
        assert (message.exchange, message.routing_key) == (orders.name, "eu.order")
        assert isinstance((await broker.publish([to(orders, "eu.other")]))[0], Returned)
        assert isinstance((await broker.publish([to(orders, "us.order")]))[0], Returned)

    async def test_a_queue_gets_one_copy_over_two_paths(self) -> None:
        """A queue reached directly and through another exchange gets the message once."""
        broker = await self.connect()
        orders, copy, jobs = self.exchange("orders", "topic"), self.exchange("copy", "fanout"), self.queue("jobs")
        await self.declare(
            broker, orders, copy, jobs, bind(orders, jobs, "#"), bind(orders, copy, "#"), bind(copy, jobs)
        )
        await self.publish(broker, to(orders, "new"))
        assert len(await self.receive(broker, jobs)) == 1
        await self.stay_empty(broker, jobs)

    async def test_exchanges_bound_in_a_circle_deliver_once(self) -> None:
        """A circle of exchanges neither hangs the broker nor multiplies the message."""
        broker = await self.connect()
        one, two, jobs = self.exchange("one", "fanout"), self.exchange("two", "fanout"), self.queue("jobs")
        await self.declare(broker, one, two, jobs, bind(one, two), bind(two, one), bind(two, jobs))
        await self.publish(broker, to(one))
        assert len(await self.receive(broker, jobs)) == 1
        await self.stay_empty(broker, jobs)

    async def test_an_alternate_exchange_takes_what_no_binding_wants(self) -> None:
        """What would be returned goes to the alternate exchange, is confirmed, and keeps its address."""
        broker = await self.connect()
        lost, parked, jobs = self.exchange("lost", "fanout"), self.queue("parked"), self.queue("jobs")
        orders = self.exchange("orders", alternate=lost.name)
        await self.declare(broker, lost, parked, bind(lost, parked), orders, jobs, bind(orders, jobs, "new"))
        await self.publish(broker, to(orders, "new", b"wanted"), to(orders, "odd", b"unwanted"))
        [wanted] = await self.receive(broker, jobs)
        [unwanted] = await self.receive(broker, parked)
        assert (wanted.body, unwanted.body) == (b"wanted", b"unwanted")
        assert (unwanted.exchange, unwanted.routing_key) == (orders.name, "odd")
        await self.stay_empty(broker, jobs, ms=0)
        await self.stay_empty(broker, parked, ms=0)

    async def test_an_alternate_exchange_may_have_an_alternate(self) -> None:
        """Alternates are followed until somebody wants the message; when nobody does it is returned."""
        broker = await self.connect()
        last, parked = self.exchange("last"), self.queue("parked")
        middle = self.exchange("middle", alternate=last.name)
        orders = self.exchange("orders", alternate=middle.name)
        await self.declare(broker, last, middle, orders, parked, bind(last, parked, "odd"))
        await self.publish(broker, to(orders, "odd"))
        await self.until_ready(broker, parked, 1)
        assert isinstance((await broker.publish([to(orders, "odder")]))[0], Returned)

    async def test_an_alternate_exchange_that_is_not_there_returns(self) -> None:
        """An alternate that does not exist changes nothing: unwanted messages are returned."""
        broker = await self.connect()
        orders = self.exchange("orders", alternate=self.name("nowhere"))
        await self.declare(broker, orders)
        assert isinstance((await broker.publish([to(orders, "odd")]))[0], Returned)

    async def _reached(self, broker: Broker, message: Message, *queues: Queue) -> set[str]:
        """Publish one message, return the queues that got it, and empty them; confirmed exactly when one did."""
        [result] = await broker.publish([message])
        reached = set()
        for queue in queues:
            bodies = await self.drain(broker, queue)
            assert len(bodies) <= 1, f"{queue.name} got {len(bodies)} copies"
            reached |= {queue.name} if bodies else set()
        assert isinstance(result, Returned) is (not reached), f"answered {result}, reached {reached}"
        return reached
