"""Expiring: how long a message waits in a queue, and where it goes when its time is up.

Rule: a message never leaves before its time. How soon after it is not promised, and so not tested tightly.
"""

from __future__ import annotations

from datetime import datetime

import pytest

from carom.core.topology import Queue
from carom.ports import Broker
from carom.testing.contracts.stage import KINDS, QUIET_MS, Stage, bind, deaths, to

CLOCK_STEP_MS = 5
"""What two clocks of one machine may disagree by."""


class Expiring(Stage):
    """Times to live, of queues and of messages."""

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_queue_lets_its_messages_go_when_their_time_is_up(self, kind: str) -> None:
        """Expired messages go to the dead letter exchange, in order, and never early."""
        broker = await self.connect()
        waiting, dead = await self._delay(broker, kind, message_ttl=300)
        began = self.now_ms()
        await self.publish(broker, *(to(waiting, body=b"%d" % number) for number in range(5)))
        first, *rest = await self.receive(broker, dead, 5)
        self._not_before(began, 300)
        assert [message.body for message in (first, *rest)] == [b"0", b"1", b"2", b"3", b"4"]
        assert await self.ready(broker, waiting) == 0

    async def test_messages_wait_each_their_own_time(self) -> None:
        """A queue's time begins for each message when it comes, not for all at once."""
        broker = await self.connect()
        waiting, dead = await self._delay(broker, "quorum", message_ttl=200)
        for body in (b"first", b"second"):
            began = self.now_ms()
            await self.publish(broker, to(waiting, body=body))
            await self.wait(100)
        listening = await self.listen(broker, dead)
        await self.until(lambda: b"second" in listening.bodies, "the second message")
        self._not_before(began, 200)
        assert listening.bodies == [b"first", b"second"]

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_message_may_bring_its_own_time(self, kind: str) -> None:
        """A message's expiration ends its wait; the dead letter no longer has it, its history does."""
        broker = await self.connect()
        waiting, dead = await self._delay(broker, kind)
        began = self.now_ms()
        await self.publish(broker, to(waiting, expiration="250"))
        [message] = await self.receive(broker, dead)
        self._not_before(began, 250)
        assert message.expiration == ""
        assert deaths(message)[0]["original-expiration"] == "250"

    async def test_the_shorter_of_two_times_counts(self) -> None:
        """Whether the queue's or the message's own time is shorter, the message leaves then."""
        broker = await self.connect()
        patient, one = await self._delay(broker, "quorum", message_ttl=600_000)
        began = self.now_ms()
        await self.publish(broker, to(patient, expiration="200"))
        await self.receive(broker, one)
        self._not_before(began, 200)
        hasty, two = await self._delay(broker, "quorum", "2", message_ttl=200)
        began = self.now_ms()
        await self.publish(broker, to(hasty, expiration="600000"))
        await self.receive(broker, two)
        self._not_before(began, 200)

    @pytest.mark.parametrize("kind", KINDS)
    async def test_only_the_head_of_a_queue_expires(self, kind: str) -> None:
        """A long time at the head holds back a short one behind it: this is why delays have queues of their own."""
        broker = await self.connect()
        waiting, dead = await self._delay(broker, kind)
        began = self.now_ms()
        await self.publish(
            broker, to(waiting, body=b"long", expiration="500"), to(waiting, body=b"short", expiration="100")
        )
        first, second = await self.receive(broker, dead, 2)
        self._not_before(began, 500)
        assert (first.body, second.body) == (b"long", b"short")

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_message_in_somebodys_hands_does_not_expire(self, kind: str) -> None:
        """Time stands still for no message, but it is looked at only in the queue: handed back late, it expires."""
        broker = await self.connect()
        waiting, dead = await self._delay(broker, kind, message_ttl=300)
        await self.publish(broker, to(waiting, body=b"held"))
        held = await self.take(broker, waiting)
        await self.stay_empty(broker, dead, ms=500)
        held.hand_back()
        [message] = await self.receive(broker, dead)
        assert deaths(message)[0]["reason"] == "expired"

    async def test_a_message_in_somebodys_hands_can_be_settled_after_its_time(self) -> None:
        """A delivery that is acknowledged late is done; it does not come as a dead letter as well."""
        broker = await self.connect()
        waiting, dead = await self._delay(broker, "quorum", message_ttl=200)
        await self.publish(broker, to(waiting))
        held = await self.take(broker, waiting)
        await self.wait(400)
        held.ack()
        await self.stay_empty(broker, dead)
        assert await self.ready(broker, waiting) == 0

    @pytest.mark.parametrize("kind", KINDS)
    async def test_what_expires_without_a_dead_letter_exchange_is_gone(self, kind: str) -> None:
        """Without a place to go, an expired message is removed."""
        broker = await self.connect()
        waiting = self.queue("waiting", kind, message_ttl=150)
        await self.declare(broker, waiting)
        await self.publish(broker, to(waiting))
        await self.until_ready(broker, waiting, 0)
        await self.stay_empty(broker, waiting, ms=0)

    @pytest.mark.parametrize("kind", KINDS)
    async def test_an_expired_message_is_never_delivered(self, kind: str) -> None:
        """A consumer that comes too late gets nothing of what has expired, and all that has not."""
        broker = await self.connect()
        waiting = self.queue("waiting", kind)
        await self.declare(broker, waiting)
        await self.publish(broker, to(waiting, body=b"old", expiration="100"), to(waiting, body=b"new"))
        await self.wait(300)
        listening = await self.listen(broker, waiting)
        await self.until_came(listening, 1)
        await self.wait(QUIET_MS)
        assert listening.bodies == [b"new"]

    async def test_an_expired_message_says_so(self) -> None:
        """Its history names the queue, the reason, the exchange and the keys it was published with, and when."""
        broker = await self.connect()
        orders, dlx = self.exchange("orders", "topic"), self.exchange("dlx", "fanout")
        waiting, dead = self.queue("waiting", message_ttl=150, dead_letter_exchange=dlx.name), self.queue("dead")
        await self.declare(broker, orders, dlx, waiting, dead, bind(orders, waiting, "#"), bind(dlx, dead))
        await self.publish(broker, to(orders, "order.created", b"late", id="7", headers={"mine": 1}))
        [message] = await self.receive(broker, dead)
        [death] = deaths(message)
        assert {key: death[key] for key in ("count", "reason", "queue", "exchange", "routing-keys")} == {
            "count": 1,
            "reason": "expired",
            "queue": waiting.name,
            "exchange": orders.name,
            "routing-keys": ["order.created"],
        }
        assert isinstance(death["time"], datetime)
        assert message.headers["x-first-death-queue"] == waiting.name
        assert message.headers["x-first-death-reason"] == "expired"
        assert message.headers["x-first-death-exchange"] == orders.name
        assert (message.body, message.id, message.headers["mine"]) == (b"late", "7", 1)

    async def test_a_retry_ladder_brings_the_message_back_each_time(self) -> None:
        """Published into a delay queue whose dead letter exchange leads home, a message returns after each delay."""
        broker = await self.connect()
        home = self.exchange("return")
        jobs = self.queue("jobs")
        delay = self.queue("delay", message_ttl=200, dead_letter_exchange=home.name)
        into = self.exchange("delay", "fanout")
        await self.declare(broker, home, into, jobs, delay, bind(home, jobs, jobs.name), bind(into, delay))
        for attempt in (1, 2, 3):
            began = self.now_ms()
            await self.publish(broker, to(into, jobs.name, b"again", id="7", headers={"attempt": attempt}))
            [message] = await self.receive(broker, jobs)
            self._not_before(began, 200)
            assert (message.exchange, message.routing_key) == (home.name, jobs.name)
            assert (message.body, message.id, message.headers["attempt"]) == (b"again", "7", attempt)

    async def _delay(
        self, broker: Broker, kind: str, suffix: str = "", message_ttl: int | None = None
    ) -> tuple[Queue, Queue]:
        """Declare a queue in which messages wait, and the one they go to."""
        dead = self.queue("dead" + suffix)
        waiting = self.queue(
            "waiting" + suffix,
            kind,
            message_ttl=message_ttl,
            dead_letter_exchange="",
            dead_letter_routing_key=dead.name,
        )
        await self.declare(broker, waiting, dead)
        return waiting, dead

    def _not_before(self, began: float, ms: int) -> None:
        waited = self.now_ms() - began
        assert waited >= ms - CLOCK_STEP_MS, f"it came after {waited:.0f} ms, {ms} were asked for"
