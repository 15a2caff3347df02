"""Waiting: rows that are not due, and waking whoever waits for them.

Rule: due is what the database's clock says.
"""

from __future__ import annotations

from carom.testing.contracts.store.stage import FAR_MS, StoreStage, promised

LONG_AGO_MS = 1_000_000_000_000


class Waiting(StoreStage):
    """What `release` and `watch` promise."""

    async def test_what_is_delayed_is_claimed_when_it_is_due(self) -> None:
        """Not before, and only once it was released."""
        store = await self.connect()
        await self.emit(store, promised("later", wait_ms=200), "now")
        assert await self.claimed(store) == ["now"]
        wait_ms = await store.release()
        assert wait_ms is not None
        assert 0 < wait_ms <= 200
        await self.wait(wait_ms + 20)
        assert await store.release() is None
        assert await self.claimed(store) == ["later", "now"]

    async def test_a_time_of_day_that_is_past_is_due(self) -> None:
        """At once."""
        store = await self.connect()
        await self.emit(store, promised("past", at_ms=LONG_AGO_MS))
        assert await store.release() is None
        assert await self.claimed(store) == ["past"]

    async def test_a_time_of_day_is_kept_to_the_millisecond(self) -> None:
        """However far away."""
        at_ms = 4_102_444_800_123
        store = await self.connect()
        await self.emit(store, promised("2100", at_ms=at_ms), promised("and", at_ms=at_ms + 1))
        assert [held.due_ms for held in await store.find(["later"], 10)] == [at_ms, at_ms + 1]
        assert await self.claimed(store) == []

    async def test_the_next_one_is_said(self) -> None:
        """The first of many."""
        store = await self.connect()
        await self.emit(
            store, promised("a", wait_ms=FAR_MS), promised("b", wait_ms=2_000), promised("c", wait_ms=FAR_MS)
        )
        wait_ms = await store.release()
        assert wait_ms is not None
        assert 0 < wait_ms <= 2_000

    async def test_nothing_waits_where_nothing_is(self) -> None:
        """Nor where all is ready."""
        store = await self.connect()
        assert await store.release() is None
        await self.emit(store, "a")
        assert await store.release() is None

    async def test_a_commit_wakes(self) -> None:
        """Once it is a commit."""
        store = await self.connect()
        woken: list[int] = []
        async with store.watch(lambda: woken.append(len(woken))):
            await self.until(lambda: bool(woken) or not self.tells_others, "the first wake: listening has begun")
            before = len(woken)
            async with self.session(store) as session:
                store.add(session, [promised("a")])
                await session.flush()
                await self.wait(20)
                assert len(woken) == before, "nobody can see the row yet"
                await session.commit()
            await self.until(lambda: len(woken) > before, "a wake after the commit")

    async def test_a_rollback_wakes_nobody(self) -> None:
        """There is nothing to see."""
        store = await self.connect()
        woken: list[int] = []
        async with store.watch(lambda: woken.append(len(woken))):
            await self.until(lambda: bool(woken) or not self.tells_others, "the first wake: listening has begun")
            before = len(woken)
            async with self.session(store) as session:
                store.add(session, [promised("a")])
                await session.flush()
                await session.rollback()
                await session.commit()
            await self.wait(50)
            assert len(woken) == before

    async def test_all_who_watch_are_woken_and_nobody_after_the_end(self) -> None:
        """On the same store and on another."""
        store, other = await self.connect(), await self.connect()
        one: list[int] = []
        two: list[int] = []
        async with store.watch(lambda: one.append(1)):
            async with other.watch(lambda: two.append(1)):
                await self.until(lambda: bool(one and two) or not self.tells_others, "the first wakes")
                before = (len(one), len(two))
                await self.emit(store, "a")
                await self.until(lambda: len(one) > before[0] and len(two) > before[1], "both to be woken")
            after = len(two)
            await self.emit(store, "b")
            await self.until(lambda: len(one) > before[0] + 1, "the one that still watches")
        assert len(two) == after

    async def test_what_people_let_go_wakes_too(self) -> None:
        """There is no new row, and something to do."""
        store = await self.connect()
        await self.emit(store, promised("a", wait_ms=FAR_MS))
        held = await self.only(store, "later")
        woken: list[int] = []
        async with store.watch(lambda: woken.append(1)):
            await self.until(lambda: bool(woken) or not self.tells_others, "the first wake: listening has begun")
            before = len(woken)
            await store.expedite([held.seq])
            await self.until(lambda: len(woken) > before, "a wake after expediting")

    async def test_who_resigns_wakes_who_stands_by(self) -> None:
        """So that the next one leads at once."""
        store = await self.relay()
        woken: list[int] = []
        async with store.watch(lambda: woken.append(1)):
            await self.until(lambda: bool(woken) or not self.tells_others, "the first wake: listening has begun")
            before = len(woken)
            await store.resign(self.lease)
            await self.until(lambda: len(woken) > before, "a wake after resigning")
