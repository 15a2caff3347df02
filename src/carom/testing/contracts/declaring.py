"""Declaring: making a topology exist, comparing it with what exists, and saying both values where they differ.

Rule: a difference is never repaired and never passed over in silence.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from carom.core.effects import Returned
from carom.core.topology import Topology
from carom.errors import BrokerError, TopologyMismatch
from carom.testing.contracts.stage import Stage, bind, gather, to


class Declaring(Stage):
    """What `Broker.declare` promises."""

    async def test_declaring_twice_changes_nothing(self) -> None:
        """The same topology may be declared again, by anybody, at any time: messages and bindings stay."""
        broker = await self.connect()
        orders, jobs = self.exchange("orders"), self.queue("jobs", message_ttl=60_000)
        await self.declare(broker, orders, jobs, bind(orders, jobs, "new"))
        await self.publish(broker, to(orders, "new", b"kept"))
        await self.declare(broker, orders, jobs, bind(orders, jobs, "new"))
        await self.publish(broker, to(orders, "new", b"once"))
        assert [message.body for message in await self.receive(broker, jobs, 2)] == [b"kept", b"once"]
        await self.stay_empty(broker, jobs, ms=0)

    async def test_declaring_nothing_is_allowed(self) -> None:
        """An empty topology is declared and verified without complaint."""
        broker = await self.connect()
        await broker.declare(Topology())
        await broker.declare(Topology(), mode="verify")

    async def test_what_one_declares_another_sees(self) -> None:
        """Queues belong to the server, not to the connection that declared them."""
        first, second = await self.connect(), await self.connect()
        jobs = self.queue("jobs")
        await self.declare(first, jobs)
        await self.publish(second, to(jobs, body=b"from the second"))
        assert [message.body for message in await self.receive(first, jobs)] == [b"from the second"]

    async def test_queues_outlive_the_connection_that_declared_them(self) -> None:
        """A durable queue and its messages are there when the one who declared it is gone."""
        first = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(first, jobs)
        await self.publish(first, to(jobs, body=b"kept"))
        await first.close()
        second = await self.connect()
        assert [message.body for message in await self.receive(second, jobs)] == [b"kept"]

    async def test_bindings_add_up(self) -> None:
        """Declaring more bindings keeps the old ones."""
        broker = await self.connect()
        orders, jobs = self.exchange("orders"), self.queue("jobs")
        await self.declare(broker, orders, jobs, bind(orders, jobs, "new"))
        await self.declare(broker, orders, jobs, bind(orders, jobs, "old"))
        await self.publish(broker, to(orders, "new"), to(orders, "old"))
        await self.until_ready(broker, jobs, 2)

    async def test_another_argument_is_a_mismatch_with_both_values(self) -> None:
        """A queue that exists with another argument is refused, naming the queue, what is wanted and what is there."""
        broker = await self.connect()
        await self.declare(broker, self.queue("jobs", message_ttl=61_000))
        with pytest.raises(TopologyMismatch) as caught:
            await self.declare(broker, self.queue("jobs", message_ttl=62_000))
        self._names(caught.value, self.name("jobs"), "61000", "62000")

    async def test_an_argument_too_many_or_too_few_is_a_mismatch(self) -> None:
        """An argument that only one side has is a difference too."""
        broker = await self.connect()
        plain, limited = self.queue("plain"), self.queue("limited", max_length=77)
        await self.declare(broker, plain, limited)
        with pytest.raises(TopologyMismatch) as caught:
            await self.declare(broker, self.queue("plain", max_length=78))
        self._names(caught.value, plain.name, "78")
        with pytest.raises(TopologyMismatch) as caught:
            await self.declare(broker, self.queue("limited"))
        self._names(caught.value, limited.name, "77")

    async def test_another_queue_type_is_a_mismatch(self) -> None:
        """A quorum queue does not pass for a classic one."""
        broker = await self.connect()
        await self.declare(broker, self.queue("jobs", "quorum"))
        with pytest.raises(TopologyMismatch) as caught:
            await self.declare(broker, self.queue("jobs", "classic"))
        self._names(caught.value, self.name("jobs"), "quorum", "classic")

    async def test_an_exchange_of_another_kind_is_a_mismatch(self) -> None:
        """A topic exchange does not pass for a direct one."""
        broker = await self.connect()
        await self.declare(broker, self.exchange("orders", "direct"))
        with pytest.raises(TopologyMismatch) as caught:
            await self.declare(broker, self.exchange("orders", "topic"))
        self._names(caught.value, self.name("orders"), "direct", "topic")

    async def test_another_alternate_exchange_is_a_mismatch(self) -> None:
        """Where unroutable messages go is a part of what an exchange is."""
        broker = await self.connect()
        here, there = self.exchange("here", "fanout"), self.exchange("there", "fanout")
        orders = self.exchange("orders", alternate=here.name)
        await self.declare(broker, here, there, orders)
        with pytest.raises(TopologyMismatch) as caught:
            await self.declare(broker, replace(orders, alternate=there.name))
        self._names(caught.value, orders.name, here.name, there.name)

    async def test_every_mismatch_is_named_not_only_the_first(self) -> None:
        """One look is enough to learn all that is wrong."""
        broker = await self.connect()
        await self.declare(broker, self.queue("a"), self.queue("b"), self.exchange("c", "direct"))
        with pytest.raises(TopologyMismatch) as caught:
            await self.declare(
                broker, self.queue("a", max_length=1), self.queue("b", max_length=2), self.exchange("c", "topic")
            )
        for short in "abc":
            self._names(caught.value, self.name(short))

    async def test_a_mismatch_changes_nothing_and_breaks_nothing(self) -> None:
        """After a mismatch the queue is as it was, and the same session goes on publishing and taking."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        await self.publish(broker, to(jobs, body=b"before"))
        with pytest.raises(TopologyMismatch):
            await self.declare(broker, self.queue("jobs", max_length=1, overflow="drop-head"))
        await self.publish(broker, to(jobs, body=b"after"))
        assert [message.body for message in await self.receive(broker, jobs, 2)] == [b"before", b"after"]

    async def test_a_mismatch_leaves_consumers_alone(self) -> None:
        """A subscription of the same session goes on, and none of its deliveries comes twice."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        listening = await self.listen(broker, jobs)
        await self.publish(broker, to(jobs, body=b"before"))
        await self.until_came(listening, 1)
        with pytest.raises(TopologyMismatch):
            await self.declare(broker, self.queue("jobs", max_length=1))
        await self.publish(broker, to(jobs, body=b"after"))
        await self.until_came(listening, 2)
        assert listening.bodies == [b"before", b"after"]
        assert listening.ended == []

    async def test_verifying_what_is_there_is_silent(self) -> None:
        """``verify`` says nothing when everything is as declared."""
        broker = await self.connect()
        orders, jobs = self.exchange("orders", "topic"), self.queue("jobs", message_ttl=60_000)
        parts = orders, jobs, bind(orders, jobs, "a.#")
        await self.declare(broker, *parts)
        await broker.declare(gather(*parts), mode="verify")

    async def test_verifying_names_what_is_missing_and_declares_nothing(self) -> None:
        """``verify`` names every missing queue and exchange, and they are still missing afterwards."""
        broker = await self.connect()
        orders, jobs = self.exchange("orders"), self.queue("jobs")
        with pytest.raises(TopologyMismatch) as caught:
            await broker.declare(gather(orders, jobs), mode="verify")
        self._names(caught.value, orders.name)
        self._names(caught.value, jobs.name)
        assert await broker.depths([jobs.name]) == {jobs.name: None}
        with pytest.raises(TopologyMismatch) as caught:
            await broker.declare(gather(orders), mode="verify")
        self._names(caught.value, orders.name)

    async def test_verifying_names_what_differs_with_both_values(self) -> None:
        """``verify`` compares arguments, not only names."""
        broker = await self.connect()
        await self.declare(broker, self.queue("jobs", delivery_limit=3))
        with pytest.raises(TopologyMismatch) as caught:
            await broker.declare(gather(self.queue("jobs", delivery_limit=4)), mode="verify")
        self._names(caught.value, self.name("jobs"), "3", "4")

    async def test_verifying_names_a_missing_binding(self) -> None:
        """A queue that nothing reaches is found before a message is lost, where the broker can list bindings."""
        if not self.sees_bindings:
            pytest.skip("this broker cannot list bindings (sees_bindings is False)")
        broker = await self.connect()
        orders, jobs = self.exchange("orders"), self.queue("jobs")
        await self.declare(broker, orders, jobs)
        with pytest.raises(TopologyMismatch) as caught:
            await broker.declare(gather(orders, jobs, bind(orders, jobs, "the-key")), mode="verify")
        self._names(caught.value, orders.name, jobs.name, "the-key")
        assert isinstance((await broker.publish([to(orders, "the-key")]))[0], Returned), "verify has bound the queue"

    async def test_ignoring_does_nothing(self) -> None:
        """``ignore`` neither declares nor compares."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await broker.declare(gather(jobs), mode="ignore")
        assert await broker.depths([jobs.name]) == {jobs.name: None}
        await self.declare(broker, jobs)
        await broker.declare(gather(self.queue("jobs", max_length=1)), mode="ignore")

    async def test_a_binding_to_nothing_is_refused(self) -> None:
        """A binding whose queue does not exist is an error, and the broker goes on."""
        broker = await self.connect()
        orders, jobs = self.exchange("orders"), self.queue("jobs")
        await self.declare(broker, orders)
        with pytest.raises((BrokerError, ValueError)):
            await broker.declare(gather(orders, bind(orders, jobs, "new")))
        await self.declare(broker, jobs)
        await self.publish(broker, to(jobs))

    @staticmethod
    def _names(mismatch: TopologyMismatch, *words: str) -> None:
        """Find one difference that says all of the words."""
        found = [line for line in mismatch.differences if all(word in line for word in words)]
        assert found, f"no difference names {', '.join(words)}; they are: {mismatch.differences}"
