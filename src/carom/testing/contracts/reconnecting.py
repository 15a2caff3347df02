"""Reconnecting: connections break, sessions close and processes die; messages stay.

Rule: what was not settled belongs to the broker again, and an old delivery has no power over it.
"""

from __future__ import annotations

import asyncio

import pytest

from carom.core.effects import Confirmed, Unknown
from carom.core.topology import Queue
from carom.errors import BrokerError, BrokerUnavailable
from carom.ports import Broker
from carom.testing.contracts.playing import POLL_MS
from carom.testing.contracts.stage import KINDS, QUIET_MS, Listening, Stage, gather, to


class Reconnecting(Stage):
    """What holds when a connection is closed or lost."""

    @pytest.mark.parametrize("kind", KINDS)
    async def test_closing_hands_back_what_is_unsettled(self, kind: str) -> None:
        """A session that closes leaves nothing in its hands: the next one gets it, marked as redelivered."""
        first = await self.connect()
        jobs = self.queue("jobs", kind)
        await self.declare(first, jobs)
        await self.publish(first, to(jobs, body=b"1"), to(jobs, body=b"2"))
        listening = await self.listen(first, jobs)
        await self.until_came(listening, 2)
        listening.deliveries[0].ack()
        await first.close()
        assert listening.deliveries[1].stale
        second = await self.connect()
        delivery = await self.take(second, jobs)
        assert (delivery.message.body, delivery.redelivered) == (b"2", True)
        delivery.ack()
        await self.stay_empty(second, jobs)

    async def test_closing_first_writes_what_was_settled(self) -> None:
        """Settling returns at once; ``close`` does not leave before it is done."""
        first = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(first, jobs)
        await self.publish(first, *(to(jobs) for _ in range(200)))
        listening = await self.listen(first, jobs, prefetch=200)
        await self.until_came(listening, 200)
        for delivery in listening.deliveries:
            delivery.ack()
        await first.close()
        second = await self.connect()
        await self.stay_empty(second, jobs)

    async def test_closing_twice_is_allowed(self) -> None:
        """A second ``close`` does nothing, and settling afterwards does nothing either."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        await self.publish(broker, to(jobs))
        delivery = await self.take(broker, jobs)
        await broker.close()
        await broker.close()
        delivery.ack()
        other = await self.connect()
        assert (await self.take(other, jobs)).redelivered

    async def test_nothing_is_delivered_after_closing(self) -> None:
        """A closed session's ``receive`` is never called again."""
        broker, other = await self.connect(), await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        listening = await self.listen(broker, jobs)
        await broker.close()
        await self.publish(other, to(jobs))
        await self.wait(QUIET_MS)
        assert listening.deliveries == []
        await self.until_ready(other, jobs, 1)

    async def test_a_closed_session_says_so(self) -> None:
        """Nothing asked of a closed session waits for ever or pretends: it is an error, or a publish not confirmed."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        await broker.close()
        with pytest.raises(BrokerError):
            await broker.get(jobs.name)
        with pytest.raises(BrokerError):
            await self.listen(broker, jobs)
        with pytest.raises(BrokerError):
            await broker.declare(gather(jobs))
        assert not await self._confirmed(broker, jobs)

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_lost_connection_brings_unsettled_messages_again(self, kind: str) -> None:
        """After a loss the subscription goes on by itself, and what was unsettled comes again, marked so."""
        broker = await self.connect()
        jobs = self.queue("jobs", kind)
        await self.declare(broker, jobs)
        listening = await self.listen(broker, jobs)
        await self.publish(broker, to(jobs, body=b"1"), to(jobs, body=b"2"))
        await self.until_came(listening, 2)
        await self.drop_connection(broker)
        await self.until_came(listening, 4)
        again = listening.deliveries[2:]
        assert sorted(delivery.message.body for delivery in again) == [b"1", b"2"]
        assert [delivery.redelivered for delivery in again] == [True, True]
        assert [delivery.stale for delivery in listening.deliveries] == [True, True, False, False]
        assert listening.ended == [], "a lost connection is restored, not ended"

    async def test_a_lost_connection_is_counted_by_a_quorum_queue(self) -> None:
        """``x-delivery-count`` grows with every loss: a message that kills its consumer can be recognised."""
        broker = await self.connect()
        jobs = self.queue("jobs", delivery_limit=100)
        await self.declare(broker, jobs)
        listening = await self.listen(broker, jobs)
        await self.publish(broker, to(jobs))
        for count in (1, 2):
            await self.until_came(listening, count)
            await self.drop_connection(broker)
            await self.until_came(listening, count + 1)
            assert listening.deliveries[-1].message.headers["x-delivery-count"] == count

    async def test_an_old_delivery_settles_nothing(self) -> None:
        """Settling what came over the lost connection touches neither its redelivery nor anybody else's message."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        listening = await self.listen(broker, jobs)
        await self.publish(broker, *(to(jobs, body=b"%d" % number) for number in range(3)))
        await self.until_came(listening, 3)
        await self.drop_connection(broker)
        await self.until_came(listening, 6)
        old, new = listening.deliveries[:3], listening.deliveries[3:]
        old[0].ack()
        old[1].refuse()
        old[2].hand_back()
        await self.wait(QUIET_MS)
        assert len(listening.deliveries) == 6, "an old delivery was handed back"
        assert not any(delivery.stale for delivery in new)
        await broker.close()
        other = await self.connect()
        bodies = [message.body for message in await self.receive(other, jobs, 3)]
        assert sorted(bodies) == [b"0", b"1", b"2"]

    async def test_a_new_delivery_after_a_loss_can_be_settled(self) -> None:
        """The redelivery is as good as any delivery."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        listening = await self.listen(broker, jobs, prefetch=1)
        await self.publish(broker, to(jobs, body=b"1"), to(jobs, body=b"2"))
        await self.until_came(listening, 1)
        await self.drop_connection(broker)
        await self.until_came(listening, 2)
        assert listening.bodies[1] == b"1"
        for count in (2, 3):
            await self.until_came(listening, count)
            listening.deliveries[count - 1].ack()
        await broker.close()
        other = await self.connect()
        await self.stay_empty(other, jobs)

    async def test_a_subscription_survives_many_losses(self) -> None:
        """However often the connection goes, what is published later still comes, and prefetch still bounds it."""
        broker, other = await self.connect(), await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        listening = await self.listen(broker, jobs, prefetch=2)
        for _ in range(3):
            await self.drop_connection(broker)
        await self.publish(other, *(to(jobs, body=b"%d" % number) for number in range(5)))
        await self._until_held(listening, 2)
        await self.wait(QUIET_MS)
        assert len([delivery for delivery in listening.deliveries if not delivery.stale]) == 2
        assert listening.ended == []

    async def test_publishing_goes_on_after_a_loss(self) -> None:
        """While the connection is restored a publish is unknown or unavailable; then it is confirmed again."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        await self.drop_connection(broker)
        await self.until(lambda: self._confirmed(broker, jobs), "a confirmed publish")
        assert await self.ready(broker, jobs) >= 1

    async def test_what_was_confirmed_survives_a_loss(self) -> None:
        """A confirmed message is the broker's, whatever becomes of the one who published it."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        await self.publish(broker, *(to(jobs, body=b"%d" % number) for number in range(100)))
        await self.drop_connection(broker)
        other = await self.connect()
        bodies = [message.body for message in await self.receive(other, jobs, 100)]
        assert bodies == [b"%d" % number for number in range(100)]

    async def test_a_loss_amid_publishing_loses_nothing_that_was_confirmed(self) -> None:
        """Every message of the batch has an answer, and what the answer calls confirmed is in the queue."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        bodies = [b"%d" % number for number in range(2_000)]
        task = asyncio.create_task(broker.publish([to(jobs, body=body) for body in bodies]))
        await self.wait(POLL_MS)
        await self.drop_connection(broker)
        results = await task
        assert len(results) == len(bodies)
        confirmed = {body for body, result in zip(bodies, results, strict=True) if isinstance(result, Confirmed)}
        assert {type(result) for result in results} <= {Confirmed, Unknown}
        other = await self.connect()
        assert confirmed <= set(await self.drain(other, jobs))

    async def test_what_was_got_comes_again_after_a_loss(self) -> None:
        """A delivery taken by ``get`` belongs to its connection like any other."""
        broker, other = await self.connect(), await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        await self.publish(broker, to(jobs, body=b"held"))
        held = await self.take(broker, jobs)
        await self.drop_connection(broker)
        again = await self.take(other, jobs)
        await self.until(lambda: held.stale, "the old delivery to be stale")
        held.ack()
        assert (again.message.body, again.redelivered, again.stale) == (b"held", True, False)
        again.hand_back()
        assert len(await self.receive(other, jobs)) == 1

    async def test_every_subscription_is_restored_with_its_own_queue(self) -> None:
        """A session with several subscriptions gets all of them back after a loss."""
        broker, other = await self.connect(), await self.connect()
        queues = [self.queue(f"jobs-{number}") for number in range(5)]
        await self.declare(broker, *queues)
        listeners = [await self.listen(broker, queue, ack=True) for queue in queues]
        await self.drop_connection(broker)
        await self.publish(other, *(to(queue, body=queue.name.encode()) for queue in queues))
        for queue, listening in zip(queues, listeners, strict=True):
            await self.until_came(listening, 1)
            assert listening.bodies == [queue.name.encode()]

    async def test_a_cancelled_subscription_does_not_come_back(self) -> None:
        """What was cancelled before the loss is not restored after it."""
        broker = await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        listening = await self.listen(broker, jobs)
        await listening.cancel()
        await self.drop_connection(broker)
        await self.until(lambda: self._confirmed(broker, jobs), "a confirmed publish")
        await self.wait(QUIET_MS)
        assert listening.deliveries == []

    async def test_a_loss_here_does_not_disturb_others(self) -> None:
        """Another session's deliveries stay valid when ours is lost."""
        broker, other = await self.connect(), await self.connect()
        jobs = self.queue("jobs")
        await self.declare(broker, jobs)
        theirs = await self.listen(other, jobs)
        await self.publish(other, to(jobs))
        await self.until_came(theirs, 1)
        await self.drop_connection(broker)
        await self.wait(QUIET_MS)
        assert not theirs.deliveries[0].stale
        theirs.deliveries[0].ack()
        await other.close()
        third = await self.connect()
        await self.stay_empty(third, jobs)

    async def _until_held(self, listening: Listening, count: int) -> None:
        """Let time pass until so many deliveries are in our hands and not stale."""
        await self.until(
            lambda: len([delivery for delivery in listening.deliveries if not delivery.stale]) >= count,
            f"{count} deliveries after the loss",
        )

    async def _confirmed(self, broker: Broker, queue: Queue) -> bool:
        """Try one publish; a session that is being restored may say unknown or unavailable."""
        try:
            [result] = await broker.publish([to(queue)])
        except BrokerUnavailable:
            return False
        return isinstance(result, Confirmed)
