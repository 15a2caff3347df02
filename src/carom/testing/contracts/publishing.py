"""Publishing: confirmed means a queue has it, returned means no queue wanted it, and no answer is ever mixed up.

Rule: what is delivered is what was published, byte for byte and type for type.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from carom.core.effects import CONFIRMED, Confirmed, Nacked, Returned
from carom.core.message import Message
from carom.testing.contracts.stage import KINDS, Stage, bind, published, to

BODIES = {
    "empty": b"",
    "null bytes": b"\x00\x00",
    "every byte": bytes(range(256)),
    "not utf-8": b"\xff\xfe\xc3\x28",
    "json": b'{"order": 7}',
    "one byte less than a frame": b"x" * (131_072 - 9),
    "a mebibyte": bytes(range(256)) * 4096,
}
HEADERS: dict[str, object] = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "one": 1,
    "negative": -1,
    "int 8": 127,
    "int 16": 32_767,
    "int 31": 2**31 - 1,
    "int 32": 2**31,
    "uint 32": 2**32 - 1,
    "int 40": 2**40,
    "int 63": 2**63 - 1,
    "int least": -(2**63),
    "float": 0.1,
    "float whole": 2.0,
    "float huge": 1e300,
    "float negative": -0.5,
    "text": "text",
    "text empty": "",
    "text unicode": "zażółć 雪 🙂",
    "text digits": "007",
    "text long": "x" * 5_000,
    "bytes": b"\x00\xff\xfe",
    "bytes ascii": b"ascii",
    "bytes empty": b"",
    "moment": datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC),
    "epoch": datetime(1970, 1, 1, tzinfo=UTC),
    "list": [1, "two", None, [3.5, [b"\xff"]], {"four": 4}],
    "list empty": [],
    "dict": {"a": {"b": {"c": [True, {"d": None}]}}},
    "dict empty": {},
}


class Publishing(Stage):
    """What `Broker.publish` promises."""

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_message_that_a_queue_took_is_confirmed(self, kind: str) -> None:
        """Confirmed means: a queue has it, and a consumer will get it."""
        broker = await self.connect()
        jobs = self.queue("jobs", kind)
        await self.declare(broker, jobs)
        assert await broker.publish([to(jobs, body=b"job")]) == [CONFIRMED]
        assert [message.body for message in await self.receive(broker, jobs)] == [b"job"]

    async def test_publishing_nothing_answers_nothing(self) -> None:
        """An empty batch has an empty answer."""
        broker = await self.connect()
        assert list(await broker.publish([])) == []

    async def test_a_message_no_binding_wants_is_returned(self) -> None:
        """An exchange that knows no way for a message returns it; that is an answer, not an exception."""
        broker = await self.connect()
        orders, jobs = self.exchange("orders"), self.queue("jobs")
        await self.declare(broker, orders, jobs, bind(orders, jobs, "new"))
        [result] = await broker.publish([to(orders, "other")])
        assert isinstance(result, Returned)
        assert result.code == 312
        await self.stay_empty(broker, jobs, ms=0)

    async def test_a_message_for_a_queue_that_is_not_there_is_returned(self) -> None:
        """The default exchange returns what is addressed to an unknown queue."""
        broker = await self.connect()
        [result] = await broker.publish([to(self.queue("nobody"))])
        assert isinstance(result, Returned)

    async def test_results_come_in_the_order_of_the_messages(self) -> None:
        """Routable and unroutable messages in one batch get each its own answer."""
        broker = await self.connect()
        jobs, nobody = self.queue("jobs"), self.queue("nobody")
        await self.declare(broker, jobs)
        pattern = [number % 3 == 0 or number % 7 == 0 for number in range(200)]
        messages = [to(jobs if good else nobody, id=f"id-{number}") for number, good in enumerate(pattern)]
        results = await broker.publish(messages)
        assert [isinstance(result, Confirmed) for result in results] == pattern
        assert [isinstance(result, Returned) for result in results] == [not good for good in pattern]
        await self.until_ready(broker, jobs, sum(pattern))

    @pytest.mark.parametrize("unroutable_first", [True, False])
    async def test_one_id_twice_in_a_batch_is_not_mixed_up(self, unroutable_first: bool) -> None:  # noqa: FBT001 - pytest gives it by name
        """A return belongs to its publish even when another publish in flight has the same message id."""
        broker = await self.connect()
        jobs, nobody = self.queue("jobs"), self.queue("nobody")
        await self.declare(broker, jobs)
        pair = [to(jobs, id="same"), to(nobody, id="same")]
        wanted = [Confirmed, Returned]
        if unroutable_first:
            pair.reverse()
            wanted.reverse()
        assert [type(result) for result in await broker.publish(pair * 20)] == wanted * 20

    async def test_messages_without_an_id_are_not_mixed_up(self) -> None:
        """Answers do not depend on ids."""
        broker = await self.connect()
        jobs, nobody = self.queue("jobs"), self.queue("nobody")
        await self.declare(broker, jobs)
        results = await broker.publish([to(nobody), to(jobs), to(jobs), to(nobody), to(jobs)])
        assert [type(result) for result in results] == [Returned, Confirmed, Confirmed, Returned, Confirmed]

    async def test_the_same_message_twice_is_two_messages(self) -> None:
        """A broker never drops a repetition on its own; that is the inbox's part."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        await self.publish(broker, to(jobs, id="same"), to(jobs, id="same"))
        await self.until_ready(broker, jobs, 2)

    async def test_an_unknown_exchange_confirms_nothing_and_raises_nothing(self) -> None:
        """A message for an exchange that does not exist is not confirmed; the answer is a value."""
        broker = await self.connect()
        [result] = await broker.publish([to(self.exchange("nowhere"), "key")])
        assert not isinstance(result, Confirmed)

    async def test_an_unknown_exchange_breaks_nothing_after_it(self) -> None:
        """After a publish to an unknown exchange the same session publishes and consumes as before."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        listening = await self.listen(broker, jobs)
        assert len(await broker.publish([to(jobs), to(self.exchange("nowhere"), "key"), to(jobs)])) == 3
        await self.publish(broker, to(jobs, body=b"after"))
        await self.until(lambda: b"after" in listening.bodies, "the message published afterwards")
        assert not any(delivery.redelivered for delivery in listening.deliveries)

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_full_queue_that_rejects_nacks(self, kind: str) -> None:
        """A queue with a length limit and reject-publish says no, and takes messages again when there is room.

        How many it takes beyond its limit is not promised: quorum queues notice a little late.
        """
        broker = await self.connect()
        jobs = self.queue("jobs", kind, max_length=1, overflow="reject-publish")
        await self.declare(broker, jobs)

        async def refused() -> bool:
            return isinstance((await broker.publish([to(jobs, body=b"more")]))[0], Nacked)

        async def accepted() -> bool:
            return isinstance((await broker.publish([to(jobs, body=b"again")]))[0], Confirmed)

        await self.until(refused, "the full queue to refuse")
        kept = await self.ready(broker, jobs)
        assert kept >= 1
        assert len(await self.drain(broker, jobs)) == kept
        await self.until(accepted, "the emptied queue to accept")

    async def test_one_full_queue_of_two_nacks_the_message(self) -> None:
        """Confirmed means that every queue has it; one that refuses is enough for a no."""
        broker = await self.connect()
        orders, full, other = (
            self.exchange("orders", "fanout"),
            self.queue("full", max_length=1, overflow="reject-publish"),
            self.queue("other"),
        )
        await self.declare(broker, orders, full, other, bind(orders, full), bind(orders, other))

        async def refused() -> bool:
            return isinstance((await broker.publish([to(orders)]))[0], Nacked)

        await self.until(refused, "the full queue to refuse")
        assert await self.ready(broker, other) >= 1

    @pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
    async def test_a_body_comes_byte_for_byte(self, body: bytes) -> None:
        """Bodies are bytes and nothing else, from none at all to a mebibyte."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        await self.publish(broker, to(jobs, body=body))
        [message] = await self.receive(broker, jobs)
        assert message.body == body

    @pytest.mark.parametrize("kind", KINDS)
    async def test_every_property_survives(self, kind: str) -> None:
        """All properties come back as they were, the address being the one it was delivered by."""
        broker = await self.connect()
        orders, jobs = self.exchange("orders", "topic"), self.queue("jobs", kind)
        await self.declare(broker, orders, jobs, bind(orders, jobs, "#"))
        message = Message(
            body=b"job",
            exchange=orders.name,
            routing_key="order.created.zażółć",
            id="0190b7c2-5b4e-7def-8000-00000000000a",
            correlation_id="correlation ✓",
            content_type="application/json",
            content_encoding="gzip",
            type="order.created",
            app_id="shop",
            reply_to="answers",
            expiration="600000",
            timestamp=1_700_000_000,
            priority=3,
            headers={"user": "header"},
        )
        await self.publish(broker, message)
        delivery = await self.take(broker, jobs)
        delivery.ack()
        assert published(delivery.message) == message
        assert delivery.queue == jobs.name

    async def test_a_message_without_properties_comes_without(self) -> None:
        """Nothing is added to a plain message."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        await self.publish(broker, to(jobs, body=b"plain"))
        [message] = await self.receive(broker, jobs)
        assert published(message) == to(jobs, body=b"plain")

    @pytest.mark.parametrize("name", HEADERS)
    async def test_a_header_keeps_its_type_and_value(self, name: str) -> None:
        """None, bool, int of 64 bits, float, text, bytes, moment (UTC, whole seconds), list and dict, nested too."""
        broker = await self.connect()
        jobs = self.queue("jobs", "classic")
        await self.declare(broker, jobs)
        value = HEADERS[name]
        await self.publish(broker, to(jobs, headers={name: value}))
        [message] = await self.receive(broker, jobs)
        found = published(message).headers
        assert found == {name: value}
        assert _kind(found[name]) == _kind(value)

    async def test_many_and_large_headers_survive(self) -> None:
        """As much as 64 KiB of headers fits a message."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        headers = {f"header-{number}": "x" * 500 for number in range(128)}
        await self.publish(broker, to(jobs, headers=headers))
        [message] = await self.receive(broker, jobs)
        assert published(message).headers == headers

    @pytest.mark.parametrize("kind", KINDS)
    async def test_two_thousand_messages_in_one_call_are_all_confirmed(self, kind: str) -> None:
        """A large batch is pipelined within what may be unconfirmed, and the queue has it in order."""
        broker = await self.connect()
        jobs = self.queue("jobs", kind)
        await self.declare(broker, jobs)
        bodies = [b"%d" % number for number in range(2_000)]
        await self.publish(broker, *(to(jobs, body=body) for body in bodies))
        listening = await self.listen(broker, jobs, prefetch=500, ack=True)
        await self.until_came(listening, 2_000)
        assert listening.bodies == bodies

    async def test_publishers_in_parallel_get_each_their_own_answers(self) -> None:
        """Tasks that publish at the same time do not see each other's results."""
        broker = await self.connect()
        jobs, nobody = self.queue("jobs"), self.queue("nobody")
        await self.declare(broker, jobs)

        async def one(number: int) -> bool:
            target = jobs if number % 2 else nobody
            results = await broker.publish([to(target, id="same") for _ in range(20)])
            return {type(result) for result in results} == {Confirmed if number % 2 else Returned}

        assert all(await asyncio.gather(*(one(number) for number in range(20))))
        await self.until_ready(broker, jobs, 200)


def _kind(value: object) -> object:
    """Return the type of a value and of all in it; a driver may have its own kind of int."""
    if isinstance(value, list):
        return [_kind(item) for item in value]
    if isinstance(value, dict):
        return {key: _kind(item) for key, item in value.items()}
    return int if isinstance(value, int) and not isinstance(value, bool) else type(value)
