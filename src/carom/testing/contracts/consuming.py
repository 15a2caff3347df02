"""Consuming: who gets a message, how many at a time, in which order, and what settling it means.

Rule: a message is in one pair of hands at a time, and stays somebody's until it is settled.
"""

from __future__ import annotations

import asyncio

import pytest

from carom.errors import BrokerError
from carom.ports import Depth
from carom.testing.contracts.stage import KINDS, QUIET_MS, Stage, bind, to


class Consuming(Stage):
    """What `Broker.consume`, `Broker.get`, `Broker.depths` and `Delivery` promise."""

    @pytest.mark.parametrize("kind", KINDS)
    async def test_messages_come_in_the_order_of_publishing(self, kind: str) -> None:
        """One publisher, one queue, one consumer: first in, first out."""
        broker = await self.connect()
        jobs = self.queue("jobs", kind)
        await self.declare(broker, jobs)
        listening = await self.listen(broker, jobs, prefetch=7, ack=True)
        bodies = [b"%d" % number for number in range(300)]
        for start in range(0, 300, 50):
            await self.publish(broker, *(to(jobs, body=body) for body in bodies[start : start + 50]))
        await self.until_came(listening, 300)
        assert listening.bodies == bodies

    async def test_a_first_delivery_is_not_a_redelivery(self) -> None:
        """``redelivered`` is False the first time, and the delivery knows its queue."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        listening = await self.listen(broker, jobs)
        await self.publish(broker, to(jobs))
        await self.until_came(listening, 1)
        [delivery] = listening.deliveries
        assert (delivery.redelivered, delivery.stale, delivery.queue) == (False, False, jobs.name)

    async def test_what_was_there_before_the_consumer_is_delivered(self) -> None:
        """A consumer gets what waits in the queue, then what comes."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        await self.publish(broker, to(jobs, body=b"before"))
        listening = await self.listen(broker, jobs)
        await self.publish(broker, to(jobs, body=b"after"))
        await self.until_came(listening, 2)
        assert listening.bodies == [b"before", b"after"]

    @pytest.mark.parametrize("kind", KINDS)
    async def test_prefetch_bounds_what_is_unsettled(self, kind: str) -> None:
        """No more than ``prefetch`` deliveries are unsettled; each one settled makes room for one."""
        broker = await self.connect()
        jobs = self.queue("jobs", kind)
        await self.declare(broker, jobs)
        await self.publish(broker, *(to(jobs, body=b"%d" % number) for number in range(10)))
        listening = await self.listen(broker, jobs, prefetch=3)
        await self.until_came(listening, 3)
        await self.wait(QUIET_MS)
        assert listening.bodies == [b"0", b"1", b"2"]
        listening.deliveries[0].ack()
        await self.until_came(listening, 4)
        listening.deliveries[2].ack()
        listening.deliveries[1].ack()
        await self.until_came(listening, 6)
        await self.wait(QUIET_MS)
        assert len(listening.deliveries) == 6

    async def test_prefetch_is_the_same_after_many_messages(self) -> None:
        """A consumer that settled all it got holds again exactly ``prefetch``, neither more nor fewer."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        listening = await self.listen(broker, jobs, prefetch=4, ack=True)
        for count in range(1, 11):
            await self.publish(broker, to(jobs))
            await self.until_came(listening, count)
        await self.publish(broker, *(to(jobs) for _ in range(40)))
        await self.until_came(listening, 50)
        listening.ack = False
        await self.publish(broker, *(to(jobs) for _ in range(10)))
        await self.until_came(listening, 54)
        await self.wait(QUIET_MS)
        assert len(listening.deliveries) == 54

    async def test_an_acknowledged_message_never_comes_again(self) -> None:
        """Acked and closed, a message is gone for everybody."""
        first = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(first, jobs)
        await self.publish(first, *(to(jobs) for _ in range(20)))
        listening = await self.listen(first, jobs, ack=True)
        await self.until_came(listening, 20)
        await first.close()
        second = await self.connect()
        await self.stay_empty(second, jobs)

    async def test_acks_out_of_order_settle_exactly_what_was_acked(self) -> None:
        """An adapter may gather acks, but never acknowledges what was not."""
        first = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(first, jobs)
        await self.publish(first, *(to(jobs, body=b"%d" % number) for number in range(10)))
        listening = await self.listen(first, jobs)
        await self.until_came(listening, 10)
        for number in (9, 0, 1, 4, 3, 7):
            listening.deliveries[number].ack()
        await first.close()
        second = await self.connect()
        left = [message.body for message in await self.receive(second, jobs, 4)]
        assert sorted(left) == [b"2", b"5", b"6", b"8"]
        await self.stay_empty(second, jobs)

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_message_handed_back_comes_again_and_says_so(self, kind: str) -> None:
        """A message handed back is delivered again, unchanged, marked as redelivered."""
        broker = await self.connect()
        jobs = self.queue("jobs", kind)
        await self.declare(broker, jobs)
        await self.publish(broker, to(jobs, body=b"back", id="7"))
        listening = await self.listen(broker, jobs)
        await self.until_came(listening, 1)
        listening.deliveries[0].hand_back()
        await self.until_came(listening, 2)
        assert listening.deliveries[1].redelivered
        assert (listening.deliveries[1].message.body, listening.deliveries[1].message.id) == (b"back", "7")

    async def test_a_quorum_queue_counts_what_is_handed_back(self) -> None:
        """``x-delivery-count`` tells how often a message came back; a publisher's own header is written over."""
        if not self.counts_hand_backs:
            pytest.skip("this broker does not count what is handed back (counts_hand_backs is False)")
        broker = await self.connect()
        jobs = self.queue("jobs", delivery_limit=100)
        await self.declare(broker, jobs)
        await self.publish(broker, to(jobs, headers={"x-delivery-count": "forged"}))
        listening = await self.listen(broker, jobs)
        for count in (1, 2, 3):
            await self.until_came(listening, count)
            listening.deliveries[-1].hand_back()
            await self.until_came(listening, count + 1)
            assert listening.deliveries[-1].message.headers["x-delivery-count"] == count

    async def test_messages_handed_back_come_before_those_that_wait(self) -> None:
        """In a quorum queue with a delivery limit, what comes back is delivered next, in the order it came back."""
        broker = await self.connect()
        jobs = self.queue("jobs", delivery_limit=100)
        await self.declare(broker, jobs)
        await self.publish(broker, *(to(jobs, body=body) for body in (b"1", b"2", b"3", b"4")))
        first, second = await self.take(broker, jobs), await self.take(broker, jobs)
        second.hand_back()
        await self.until_ready(broker, jobs, 3)
        first.hand_back()
        await self.until_ready(broker, jobs, 4)
        bodies = [message.body for message in await self.receive(broker, jobs, 4)]
        assert bodies == [b"2", b"1", b"3", b"4"]

    async def test_a_classic_queue_puts_back_where_it_was(self) -> None:
        """In a classic queue what comes back takes its old place."""
        broker = await self.connect()
        jobs = self.queue("jobs", "classic")
        await self.declare(broker, jobs)
        await self.publish(broker, *(to(jobs, body=body) for body in (b"1", b"2", b"3")))
        first, second = await self.take(broker, jobs), await self.take(broker, jobs)
        second.hand_back()
        await self.until_ready(broker, jobs, 2)
        first.hand_back()
        await self.until_ready(broker, jobs, 3)
        assert [message.body for message in await self.receive(broker, jobs, 3)] == [b"1", b"2", b"3"]

    @pytest.mark.parametrize("kind", KINDS)
    async def test_settling_twice_does_nothing(self, kind: str) -> None:
        """The first settling counts; later ones, of any kind, are without effect."""
        broker = await self.connect()
        dead = self.queue("dead")
        jobs = self.queue("jobs", kind, dead_letter_exchange="", dead_letter_routing_key=dead.name)
        await self.declare(broker, jobs, dead)
        await self.publish(broker, to(jobs, body=b"1"), to(jobs, body=b"2"))
        first = await self.take(broker, jobs)
        first.ack()
        first.ack()
        first.hand_back()
        first.refuse()
        second = await self.take(broker, jobs)
        second.refuse()
        second.ack()
        second.hand_back()
        assert [message.body for message in await self.receive(broker, dead)] == [b"2"]
        await self.stay_empty(broker, jobs)
        await self.stay_empty(broker, dead, ms=0)

    async def test_getting_from_an_empty_queue_gives_none(self) -> None:
        """``get`` never waits for a message."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        assert await broker.get(jobs.name) is None

    @pytest.mark.parametrize("kind", KINDS)
    async def test_what_was_got_and_acked_is_gone_and_the_rest_is_not(self, kind: str) -> None:
        """``get`` takes the head of the queue into our hands, one at a time."""
        broker = await self.connect()
        jobs = self.queue("jobs", kind)
        await self.declare(broker, jobs)
        await self.publish(broker, to(jobs, body=b"1"), to(jobs, body=b"2"), to(jobs, body=b"3"))
        first, second = await self.take(broker, jobs), await self.take(broker, jobs)
        assert (first.message.body, second.message.body) == (b"1", b"2")
        assert (first.redelivered, first.queue) == (False, jobs.name)
        first.ack()
        second.ack()
        assert [message.body for message in await self.receive(broker, jobs)] == [b"3"]
        await self.stay_empty(broker, jobs)

    @pytest.mark.parametrize("call", ["consume", "get"])
    async def test_an_unknown_queue_is_an_error_and_breaks_nothing(self, call: str) -> None:
        """Asking for messages of a queue that does not exist raises a BrokerError that names it."""
        broker = await self.connect()
        jobs, nobody = self.queue("jobs"), self.queue("nobody")
        await self.declare(broker, jobs)
        listening = await self.listen(broker, jobs)
        with pytest.raises(BrokerError, match=nobody.name):
            await (self.listen(broker, nobody) if call == "consume" else broker.get(nobody.name))
        await self.publish(broker, to(jobs, body=b"after"))
        await self.until_came(listening, 1)
        assert not listening.deliveries[0].redelivered

    async def test_two_consumers_share_a_queue(self) -> None:
        """Consumers with room take turns: neither gets everything, and nothing goes to both."""
        broker, other = await self.connect(), await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        one, two = await self.listen(broker, jobs), await self.listen(other, jobs)
        bodies = [b"%d" % number for number in range(40)]
        await self.publish(broker, *(to(jobs, body=body) for body in bodies))
        await self.until(lambda: len(one.bodies) + len(two.bodies) >= 40, "all deliveries")
        assert sorted(one.bodies + two.bodies) == sorted(bodies)
        assert min(len(one.bodies), len(two.bodies)) >= 10

    async def test_a_busy_consumer_leaves_messages_to_the_other(self) -> None:
        """What does not fit into one consumer's prefetch goes to the next."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        busy = await self.listen(broker, jobs, prefetch=1)
        free = await self.listen(broker, jobs, prefetch=100)
        await self.publish(broker, *(to(jobs) for _ in range(20)))
        await self.until_came(free, 19)
        assert len(busy.deliveries) == 1

    async def test_many_consumers_get_every_message_once(self) -> None:
        """Twenty consumers of one queue share a thousand messages without repeating one."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        crowd = [await self.listen(broker, jobs, prefetch=5, ack=True) for _ in range(20)]
        bodies = [b"%d" % number for number in range(1_000)]
        await self.publish(broker, *(to(jobs, body=body) for body in bodies))
        await self.until(lambda: sum(len(one.bodies) for one in crowd) >= 1_000, "a thousand deliveries")
        assert sorted(body for one in crowd for body in one.bodies) == sorted(bodies)
        await self.stay_empty(broker, jobs)

    async def test_one_session_consumes_many_queues(self) -> None:
        """Subscriptions of one session do not disturb each other."""
        broker = await self.connect()
        orders = self.exchange("orders", "fanout")
        queues = [self.queue(f"jobs-{number}", "classic") for number in range(20)]
        await self.declare(broker, orders, *queues, *(bind(orders, queue) for queue in queues))
        listeners = [await self.listen(broker, queue, prefetch=3, ack=True) for queue in queues]
        bodies = [b"%d" % number for number in range(20)]
        await self.publish(broker, *(to(orders, body=body) for body in bodies))
        for queue, listening in zip(queues, listeners, strict=True):
            await self.until_came(listening, 20)
            assert listening.bodies == bodies
            assert {delivery.queue for delivery in listening.deliveries} == {queue.name}

    async def test_a_handler_may_publish_and_settle_from_within(self) -> None:
        """``receive`` may settle at once, and publishing from a task it starts does not deadlock."""
        broker = await self.connect()
        jobs, done = self.queue("jobs"), self.queue("done")
        await self.declare(broker, jobs, done)
        listening = await self.listen(broker, jobs, prefetch=2)

        async def forward() -> None:
            for number in range(20):
                await self.until_came(listening, number + 1)
                await self.publish(broker, to(done, body=listening.deliveries[number].message.body))
                listening.deliveries[number].ack()

        task = asyncio.create_task(forward())
        await self.publish(broker, *(to(jobs, body=b"%d" % number) for number in range(20)))
        await task
        bodies = [message.body for message in await self.receive(broker, done, 20)]
        assert bodies == [b"%d" % number for number in range(20)]

    @pytest.mark.parametrize("kind", KINDS)
    async def test_cancelling_stops_deliveries_and_leaves_what_was_delivered(self, kind: str) -> None:
        """After ``cancel`` nothing new comes; what is in our hands stays ours and can be settled."""
        broker = await self.connect()
        jobs = self.queue("jobs", kind)
        await self.declare(broker, jobs)
        listening = await self.listen(broker, jobs, prefetch=2)
        await self.publish(broker, *(to(jobs, body=b"%d" % number) for number in range(4)))
        await self.until_came(listening, 2)
        await listening.cancel()
        first, second = listening.deliveries
        assert not first.stale
        first.ack()
        second.hand_back()
        await self.until_ready(broker, jobs, 3)
        await self.wait(QUIET_MS)
        assert len(listening.deliveries) == 2
        assert sorted(await self.drain(broker, jobs)) == [b"1", b"2", b"3"]
        assert listening.ended == [], "ended is for what the broker ends, not for what we cancel"

    async def test_cancelling_twice_is_allowed(self) -> None:
        """A second ``cancel`` does nothing."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        listening = await self.listen(broker, jobs)
        await listening.cancel()
        await listening.cancel()

    async def test_deleting_a_queue_ends_its_consumers(self) -> None:
        """A consumer whose queue is gone is told so with a sentence; it is never left waiting in silence."""
        broker = await self.connect()
        jobs, others = self.queue("jobs"), self.queue("others")
        await self.declare(broker, jobs, others)
        gone, stays = await self.listen(broker, jobs), await self.listen(broker, others)
        await self.delete_queue(broker, jobs.name)
        await self.until(lambda: bool(gone.ended), "the end of the consumer")
        assert len(gone.ended) == 1
        assert gone.ended[0].strip()
        await self.publish(broker, to(others))
        await self.until_came(stays, 1)
        assert stays.ended == []

    async def test_depths_count_what_is_ready(self) -> None:
        """The depth of a queue is what can be delivered now; an unknown queue has none, and asking breaks nothing."""
        broker = await self.connect()
        full, empty, nobody = self.queue("full"), self.queue("empty", "classic"), self.queue("nobody")
        await self.declare(broker, full, empty)
        await self.publish(broker, *(to(full) for _ in range(3)))
        await self.until_ready(broker, full, 3)
        depths = await broker.depths([full.name, nobody.name, empty.name])
        assert set(depths) == {full.name, nobody.name, empty.name}
        assert depths[nobody.name] is None
        assert isinstance(depths[empty.name], Depth)
        assert (await self.ready(broker, full), await self.ready(broker, empty)) == (3, 0)
        assert await broker.depths([]) == {}

    @pytest.mark.parametrize("kind", KINDS)
    async def test_depths_do_not_count_what_is_in_somebodys_hands(self, kind: str) -> None:
        """A delivery that is not settled is not ready, and is counted apart where the broker says so."""
        broker = await self.connect()
        jobs = self.queue("jobs", kind)
        await self.declare(broker, jobs)
        await self.publish(broker, *(to(jobs) for _ in range(3)))
        await self.take(broker, jobs)
        await self.until_ready(broker, jobs, 2)
        depth = (await broker.depths([jobs.name]))[jobs.name]
        assert depth is not None
        assert depth.unacked in (None, 1)

    async def test_depths_count_consumers(self) -> None:
        """A queue knows how many consumers it has."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        one, _ = await self.listen(broker, jobs), await self.listen(broker, jobs)

        async def consumers(count: int) -> bool:
            depth = (await broker.depths([jobs.name]))[jobs.name]
            return depth is not None and depth.consumers == count

        await self.until(lambda: consumers(2), "two consumers")
        await one.cancel()
        await self.until(lambda: consumers(1), "one consumer")
