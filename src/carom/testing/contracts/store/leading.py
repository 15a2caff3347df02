"""Leading: one leads at a time, and what an older leader marks is not done.

Rule: who leads is decided by the database's clock and by nothing the leaders themselves believe.
"""

from __future__ import annotations

import asyncio

from carom.core.relaying import Parked, Sent
from carom.ports import Lease
from carom.testing.contracts.store.stage import TTL_MS, StoreStage


class Leading(StoreStage):
    """What `lead`, `resign` and the lease in `mark` promise."""

    async def test_one_leads_and_the_others_do_not(self) -> None:
        """Until it ends."""
        store, other = await self.connect(), await self.connect()
        first = await store.lead("one", TTL_MS)
        assert first is not None
        assert first.holder == "one"
        assert await other.lead("two", TTL_MS) is None

    async def test_of_many_at_once_one_leads(self) -> None:
        """The very first time too."""
        stores = [await self.connect() for _ in range(5)]
        leases = await asyncio.gather(*(store.lead(f"relay {at}", TTL_MS) for at, store in enumerate(stores)))
        assert sum(lease is not None for lease in leases) == 1

    async def test_a_leader_stays_it(self) -> None:
        """Its proof stays the same."""
        store = await self.connect()
        first = await store.lead("one", 200)
        await self.wait(120)
        assert await store.lead("one", 200) == first
        await self.wait(120)
        assert await store.lead("two", TTL_MS) is None, "it was led for longer"
        assert await store.lead("one", TTL_MS) == first

    async def test_a_leader_that_is_silent_is_followed_by_another(self) -> None:
        """With a higher epoch."""
        store = await self.connect()
        first = await store.lead("one", 100)
        await self.wait(150)
        second = await store.lead("two", TTL_MS)
        assert first is not None
        assert second is not None
        assert second.epoch > first.epoch
        assert await store.lead("one", TTL_MS) is None

    async def test_what_an_old_leader_marks_is_not_done(self) -> None:
        """It slept through the end of its lease, with rows in its hands."""
        store = await self.connect()
        old = await store.lead("one", 50)
        assert old is not None
        await self.emit(store, "a", "b")
        a, b = await store.claim(2, [])
        await self.wait(100)
        lease = await store.lead("two", TTL_MS)
        assert lease is not None
        self.lease: Lease = lease
        assert not await store.mark(old, [Sent(a.seq), Parked(b.seq, "no")])
        assert await self.claimed(store) == ["a", "b"]
        await self.mark(store, Sent(a.seq))
        assert await self.claimed(store) == ["b"]

    async def test_a_late_leader_that_nobody_followed_may_mark(self) -> None:
        """Nobody else can have taken what it holds."""
        store = await self.connect()
        lease = await store.lead("one", 50)
        assert lease is not None
        await self.emit(store, "a")
        (row,) = await store.claim(1, [])
        await self.wait(100)
        assert await store.mark(lease, [Sent(row.seq)])
        assert await self.claimed(store) == []

    async def test_whoever_resigns_need_not_be_waited_for(self) -> None:
        """And marks no more."""
        store = await self.relay()
        await self.emit(store, "a")
        (row,) = await store.claim(1, [])
        await store.resign(self.lease)
        assert not await store.mark(self.lease, [Sent(row.seq)])
        other = await store.lead("two", TTL_MS)
        assert other is not None
        assert other.epoch > self.lease.epoch

    async def test_resigning_late_takes_the_lead_from_nobody(self) -> None:
        """It was another's already."""
        store = await self.connect()
        old = await store.lead("one", 50)
        assert old is not None
        await self.wait(100)
        new = await store.lead("two", TTL_MS)
        await store.resign(old)
        assert await store.lead("two", TTL_MS) == new
        assert await store.lead("three", TTL_MS) is None

    async def test_whoever_comes_back_under_its_name_has_a_higher_epoch(self) -> None:
        """After another led, or after it resigned."""
        store = await self.relay()
        await store.resign(self.lease)
        again = await store.lead(self.lease.holder, TTL_MS)
        assert again is not None
        assert again.epoch > self.lease.epoch
        assert not await store.mark(self.lease, [])
