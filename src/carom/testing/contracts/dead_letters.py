"""Dead letters: where a message goes when it is refused, crowded out or has come back too often, and what it says.

Rule: nothing is changed on a dead letter but its address, its expiration and the broker's own history of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from carom.core.message import Message
from carom.core.topology import Argument, Exchange, Queue, at_least_once
from carom.ports import Broker
from carom.testing.contracts.playing import POLL_MS
from carom.testing.contracts.stage import COUNTS, KINDS, QUIET_MS, Stage, bind, deaths, to

HISTORY = ("x-death", "x-first-death-", "x-last-death-")


class DeadLettering(Stage):
    """What becomes of messages that a queue does not keep."""

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_refused_message_becomes_a_dead_letter(self, kind: str) -> None:
        """Refusing sends a message to its queue's dead letter exchange, with the reason ``rejected``."""
        broker = await self.connect()
        jobs, dead, _ = await self._with_dead_letters(broker, kind)
        await self.publish(broker, to(jobs, body=b"refused"))
        (await self.take(broker, jobs)).refuse()
        [message] = await self.receive(broker, dead)
        assert message.body == b"refused"
        assert _death(message) == ("rejected", jobs.name, 1)
        assert message.headers["x-first-death-reason"] == "rejected"
        assert await self.ready(broker, jobs) == 0

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_refused_message_without_a_dead_letter_exchange_is_gone(self, kind: str) -> None:
        """Without a place to go, a refused message is removed, not repeated."""
        broker = await self.connect()
        jobs = self.queue("jobs", kind)
        await self.declare(broker, jobs)
        await self.publish(broker, to(jobs))
        (await self.take(broker, jobs)).refuse()
        await self.stay_empty(broker, jobs)

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_refused_message_nobody_takes_is_gone(self, kind: str) -> None:
        """A dead letter exchange that does not exist, or knows no way, loses the message: this is at-most-once."""
        broker = await self.connect()
        jobs = self.queue("jobs", kind, dead_letter_exchange=self.name("nowhere"))
        await self.declare(broker, jobs)
        await self.publish(broker, to(jobs))
        (await self.take(broker, jobs)).refuse()
        await self.stay_empty(broker, jobs)

    async def test_a_dead_letter_keeps_all_but_its_address(self) -> None:
        """Body, properties and headers of a dead letter are those of the message."""
        broker = await self.connect()
        jobs, dead, dlx = await self._with_dead_letters(broker, "quorum")
        original = Message(
            body=b"\x00\xff",
            routing_key=jobs.name,
            id="7",
            correlation_id="70",
            content_type="application/json",
            content_encoding="gzip",
            type="order.created",
            app_id="shop",
            reply_to="answers",
            timestamp=1_700_000_000,
            priority=2,
            headers={"int": 1, "text": "two", "nested": {"list": [None, True, b"\xff"]}},
        )
        await self.publish(broker, original)
        (await self.take(broker, jobs)).refuse()
        [message] = await self.receive(broker, dead)
        kept = {key: value for key, value in message.headers.items() if not key.startswith((*HISTORY, *COUNTS))}
        assert replace(message, headers=kept) == replace(original, exchange=dlx.name)

    async def test_a_dead_letter_keeps_its_routing_key(self) -> None:
        """Without a dead letter routing key the message's own key routes it on."""
        broker = await self.connect()
        orders, dlx = self.exchange("orders", "topic"), self.exchange("dlx", "topic")
        jobs = self.queue("jobs", dead_letter_exchange=dlx.name)
        paid, other = self.queue("paid"), self.queue("other")
        await self.declare(
            broker,
            *(orders, dlx, jobs, paid, other),
            *(bind(orders, jobs, "#"), bind(dlx, paid, "order.paid"), bind(dlx, other, "order.other")),
        )
        await self.publish(broker, to(orders, "order.paid"))
        (await self.take(broker, jobs)).refuse()
        [message] = await self.receive(broker, paid)
        assert (message.exchange, message.routing_key) == (dlx.name, "order.paid")
        await self.stay_empty(broker, other, ms=0)

    async def test_a_dead_letter_gets_the_routing_key_of_its_queue(self) -> None:
        """A queue's dead letter routing key replaces the message's; the history keeps the old one."""
        broker = await self.connect()
        orders, dlx = self.exchange("orders", "topic"), self.exchange("dlx")
        jobs = self.queue("jobs", dead_letter_exchange=dlx.name, dead_letter_routing_key="died")
        dead = self.queue("dead")
        await self.declare(broker, orders, dlx, jobs, dead, bind(orders, jobs, "#"), bind(dlx, dead, "died"))
        await self.publish(broker, to(orders, "order.paid"))
        (await self.take(broker, jobs)).refuse()
        [message] = await self.receive(broker, dead)
        assert (message.exchange, message.routing_key) == (dlx.name, "died")
        assert deaths(message)[0]["routing-keys"] == ["order.paid"]
        assert deaths(message)[0]["exchange"] == orders.name

    async def test_a_dead_letter_exchange_may_have_an_alternate(self) -> None:
        """A dead letter nobody wants goes to the alternate of its exchange instead of nowhere."""
        broker = await self.connect()
        lost, parked = self.exchange("lost", "fanout"), self.queue("parked")
        dlx = self.exchange("dlx", alternate=lost.name)
        jobs = self.queue("jobs", "quorum", **at_least_once(dlx.name, "nobody"))
        await self.declare(broker, lost, parked, bind(lost, parked), dlx, jobs)
        await self.publish(broker, to(jobs, body=b"kept"))
        (await self.take(broker, jobs)).refuse()
        assert [message.body for message in await self.receive(broker, parked)] == [b"kept"]

    async def test_deaths_are_counted_by_queue_and_reason(self) -> None:
        """The same death again raises its count; another queue or reason adds an entry, the newest first."""
        broker = await self.connect()
        jobs, delay = await self._with_delay(broker, "quorum")
        await self.publish(broker, to(jobs, body=b"round"))
        for turn in (1, 2, 3):
            delivery = await self.take(broker, jobs)
            if turn > 1:
                history = [(death["reason"], death["queue"], death["count"]) for death in deaths(delivery.message)]
                assert history == [("expired", delay.name, turn - 1), ("rejected", jobs.name, turn - 1)]
                assert delivery.message.headers["x-first-death-queue"] == jobs.name
                assert delivery.message.headers["x-first-death-reason"] == "rejected"
            delivery.refuse()

    async def test_the_newest_death_comes_first_however_often_it_happened(self) -> None:
        """A death that repeats moves to the front of the history with its count."""
        broker = await self.connect()
        dlx, audit = self.exchange("dlx", "fanout"), self.queue("audit")
        jobs = self.queue("jobs", dead_letter_exchange=dlx.name)
        delay = self.queue("delay", message_ttl=100, dead_letter_exchange="", dead_letter_routing_key=jobs.name)
        await self.declare(broker, dlx, audit, jobs, delay, bind(dlx, audit), bind(dlx, delay))
        await self.publish(broker, to(jobs))
        (await self.take(broker, jobs)).refuse()
        await self.receive(broker, audit)
        (await self.take(broker, jobs)).refuse()
        [message] = await self.receive(broker, audit)
        history = [(death["reason"], death["queue"], death["count"]) for death in deaths(message)]
        assert history == [("rejected", jobs.name, 2), ("expired", delay.name, 1)]

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_cycle_with_a_rejection_goes_round(self, kind: str) -> None:
        """Refused, delayed and back again works as often as a consumer refuses."""
        broker = await self.connect()
        jobs, _ = await self._with_delay(broker, kind)
        await self.publish(broker, to(jobs, body=b"round"))
        for _ in range(4):
            (await self.take(broker, jobs)).refuse()
        assert [message.body for message in await self.receive(broker, jobs)] == [b"round"]

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_cycle_without_a_rejection_is_dropped(self, kind: str) -> None:
        """A message that would come back to a queue by expiry alone is dropped: no endless automatic loops."""
        broker = await self.connect()
        leads: dict[str, Argument | None] = {"dead_letter_exchange": "", "message_ttl": 300}
        ping = self.queue("ping", kind, dead_letter_routing_key=self.name("pong"), **leads)
        pong = self.queue("pong", kind, dead_letter_routing_key=ping.name, **leads)
        await self.declare(broker, ping, pong)
        await self.publish(broker, to(ping))
        await self.until_ready(broker, pong, 1)
        await self.until_ready(broker, pong, 0)
        for _ in range(10):
            assert await self.ready(broker, ping) == 0
            assert await self.ready(broker, pong) == 0
            await self.wait(QUIET_MS // 10)

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_full_queue_drops_its_oldest_message(self, kind: str) -> None:
        """A length limit with drop-head, the default, makes the oldest messages dead letters, reason ``maxlen``."""
        broker = await self.connect()
        jobs, dead, _ = await self._with_dead_letters(broker, kind, max_length=2)
        for body in (b"1", b"2", b"3", b"4"):
            await self.publish(broker, to(jobs, body=body))
        dropped = await self.receive(broker, dead, 2)
        assert [message.body for message in dropped] == [b"1", b"2"]
        assert _death(dropped[0]) == ("maxlen", jobs.name, 1)
        assert [message.body for message in await self.receive(broker, jobs, 2)] == [b"3", b"4"]

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_limit_can_be_in_bytes(self, kind: str) -> None:
        """A limit in bytes counts bodies, and drops from the head as well."""
        broker = await self.connect()
        jobs, dead, _ = await self._with_dead_letters(broker, kind, max_length_bytes=2_500)
        for body in (b"1", b"2", b"3"):
            await self.publish(broker, to(jobs, body=body * 1_000))
        [dropped] = await self.receive(broker, dead)
        assert dropped.body == b"1" * 1_000
        assert _death(dropped) == ("maxlen", jobs.name, 1)

    async def test_a_message_handed_back_too_often_becomes_a_dead_letter(self) -> None:
        """After a delivery limit of 2 a message is delivered 3 times and then dead, reason ``delivery_limit``."""
        if not self.counts_hand_backs:
            pytest.skip("this broker does not count what is handed back (counts_hand_backs is False)")
        broker = await self.connect()
        jobs, dead, _ = await self._with_dead_letters(broker, "quorum", delivery_limit=2)
        await self.publish(broker, to(jobs, body=b"poison"))
        for turn in range(3):
            delivery = await self.take(broker, jobs)
            assert delivery.redelivered is (turn > 0)
            delivery.hand_back()
        [message] = await self.receive(broker, dead)
        assert _death(message) == ("delivery_limit", jobs.name, 1)
        assert await self.ready(broker, jobs) == 0

    async def test_a_message_whose_consumer_is_lost_too_often_becomes_a_dead_letter(self) -> None:
        """A message that takes its consumer's connection with it is stopped by the delivery limit: 2 allow 3."""
        broker, observer = await self.connect(), await self.connect()
        jobs, dead, _ = await self._with_dead_letters(broker, "quorum", delivery_limit=2)
        await self.publish(observer, to(jobs, body=b"poison"))
        listening = await self.listen(broker, jobs)
        for turn in (1, 2, 3):
            await self.until_came(listening, turn)
            await self.drop_connection(broker)
        [message] = await self.receive(observer, dead)
        assert _death(message) == ("delivery_limit", jobs.name, 1)
        assert [delivery.redelivered for delivery in listening.deliveries] == [False, True, True]

    async def test_a_message_over_the_limit_without_a_dead_letter_exchange_is_gone(self) -> None:
        """Without a place to go, a message that came back too often is removed."""
        if not self.counts_hand_backs:
            pytest.skip("this broker does not count what is handed back (counts_hand_backs is False)")
        broker = await self.connect()
        jobs = self.queue("jobs", delivery_limit=1)
        await self.declare(broker, jobs)
        await self.publish(broker, to(jobs))
        for _ in range(2):
            (await self.take(broker, jobs)).hand_back()
        await self.stay_empty(broker, jobs)

    async def test_at_least_once_brings_every_dead_letter_over(self) -> None:
        """The safe strategy moves more than its worker holds at a time, and loses none."""
        broker = await self.connect()
        dlx, dead = self.exchange("dlx"), self.queue("dead")
        delay = self.queue("delay", "quorum", message_ttl=200, **at_least_once(dlx.name, "died"))
        await self.declare(broker, dlx, dead, delay, bind(dlx, dead, "died"))
        bodies = {b"%d" % number for number in range(200)}
        await self.publish(broker, *(to(delay, body=body) for body in sorted(bodies)))
        listening = await self.listen(broker, dead, ack=True)
        await self.until_came(listening, 200)
        assert set(listening.bodies) == bodies

    @pytest.mark.parametrize("missing", ["exchange", "binding"])
    async def test_at_least_once_keeps_what_it_cannot_place(self, missing: str) -> None:
        """A dead letter without a way is kept in its queue, not ready, and comes when there is one."""
        if self.pinned_retry_ms is None:
            pytest.skip("dead letters that could not be placed are tried again too late here (pinned_retry_ms is None)")
        broker = await self.connect()
        dlx, dead = self.exchange("dlx"), self.queue("dead")
        jobs = self.queue("jobs", "quorum", **at_least_once(dlx.name, "died"))
        await self.declare(broker, jobs, dead, *([dlx] if missing == "binding" else []))
        await self.publish(broker, to(jobs, body=b"kept"))
        (await self.take(broker, jobs)).refuse()
        await self.stay_empty(broker, jobs)
        await self.declare(broker, dlx, dead, bind(dlx, dead, "died"))
        await self._until_retried(lambda: self._has_one(broker, dead), "the dead letter")
        [message] = await self.receive(broker, dead)
        assert message.body == b"kept"
        assert _death(message) == ("rejected", jobs.name, 1)

    async def test_at_least_once_waits_for_a_target_that_is_full(self) -> None:
        """A dead letter queue that rejects publishes delays its dead letters and loses none."""
        if self.pinned_retry_ms is None:
            pytest.skip("dead letters that could not be placed are tried again too late here (pinned_retry_ms is None)")
        broker = await self.connect()
        dlx, dead = self.exchange("dlx"), self.queue("dead", max_length=1, overflow="reject-publish")
        jobs = self.queue("jobs", "quorum", **at_least_once(dlx.name, "died"))
        await self.declare(broker, dlx, dead, jobs, bind(dlx, dead, "died"))
        bodies = {b"%d" % number for number in range(6)}
        await self.publish(broker, *(to(jobs, body=body) for body in sorted(bodies)))
        for _ in bodies:
            (await self.take(broker, jobs)).refuse()
        found: set[bytes] = set()

        async def all_came() -> bool:
            found.update(await self.drain(broker, dead))
            return found == bodies

        await self._until_retried(all_came, "every dead letter")

    async def _until_retried(self, came: Callable[[], Awaitable[bool]], what: str) -> None:
        """Let time pass for as long as a broker needs to try again, a few times."""
        retry_ms = self.pinned_retry_ms or 0
        await self.until(came, what, within_ms=8 * retry_ms, every_ms=max(POLL_MS, retry_ms // 200))

    async def _has_one(self, broker: Broker, queue: Queue) -> bool:
        return await self.ready(broker, queue) == 1

    async def _with_dead_letters(self, broker: Broker, kind: str, **options: int) -> tuple[Queue, Queue, Exchange]:
        """Declare a queue, the queue of its dead letters, and the exchange between them."""
        dlx, dead = self.exchange("dlx", "fanout"), self.queue("dead")
        jobs = self.queue("jobs", kind, dead_letter_exchange=dlx.name, **options)
        await self.declare(broker, dlx, dead, jobs, bind(dlx, dead))
        return jobs, dead, dlx

    async def _with_delay(self, broker: Broker, kind: str) -> tuple[Queue, Queue]:
        """Declare a queue whose refused messages come back by way of a delay."""
        name = self.name("delay")
        jobs = self.queue("jobs", kind, dead_letter_exchange="", dead_letter_routing_key=name)
        delay = self.queue("delay", kind, message_ttl=100, dead_letter_exchange="", dead_letter_routing_key=jobs.name)
        await self.declare(broker, jobs, delay)
        return jobs, delay


def _death(message: Message) -> tuple[object, object, object]:
    """Return the only death of a message: reason, queue and count."""
    [death] = deaths(message)
    return death["reason"], death["queue"], death["count"]
