"""Failing: one copy follows from one failed attempt, however often that attempt was delivered.

Rule: whoever records the failure of an attempt first publishes its copy, and nobody else does.
"""

from __future__ import annotations

import asyncio

import pytest

from carom.ports import Store
from carom.testing.contracts.store.stage import StoreStage


class Failing(StoreStage):
    """What `failing` promises."""

    async def failed(self, store: Store, attempt: int, *, last: bool = False) -> bool:
        """Record that an attempt failed; return whether its copy was to be published."""
        async with store.failing("billing", "m", attempt, last=last) as is_first:
            return is_first

    async def is_new(self, store: Store, attempt: int) -> bool:
        """Tell whether an attempt would be handled."""
        async with store.begin(synchronous=False) as unit:
            return (await unit.admit("billing", [("m", attempt)]))[0]

    async def test_one_copy_follows_from_one_attempt(self) -> None:
        """The second delivery of it makes none."""
        store = await self.connect()
        assert await self.failed(store, 1)
        assert not await self.failed(store, 1)
        assert await self.failed(store, 2)

    async def test_an_attempt_that_failed_is_not_new_and_the_next_one_is(self) -> None:
        """A fork into two chains of retries ends here."""
        store = await self.connect()
        await self.failed(store, 1)
        assert not await self.is_new(store, 1)
        assert await self.is_new(store, 2)

    async def test_of_a_batch_the_attempt_that_failed_is_not_new(self) -> None:
        """Beside others, and beside its own next attempt."""
        store = await self.connect()
        await self.failed(store, 1)
        async with store.begin(synchronous=False) as unit:
            assert list(await unit.admit("billing", [("m", 1), ("n", 1)])) == [False, True]
        async with store.begin(synchronous=False) as unit:
            assert list(await unit.admit("billing", [("m", 1), ("m", 2), ("m", 2)])) == [False, True, False]

    async def test_a_copy_that_was_not_published_leaves_all_as_it_was(self) -> None:
        """Whoever comes next publishes it."""
        store = await self.connect()

        async def fail() -> None:
            async with store.failing("billing", "m", 1, last=False) as is_first:
                assert is_first
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert await self.is_new(store, 1)
        assert await self.failed(store, 1)

    async def test_who_records_the_same_waits_for_the_first(self) -> None:
        """Until it is known whether there is a copy."""
        store = await self.connect()
        async with store.failing("billing", "m", 1, last=False) as is_first:
            assert is_first
            second = asyncio.create_task(self.failed(store, 1))
            await self.wait(100)
            assert not second.done(), "the first has not ended"
        assert not await second

    async def test_after_the_last_attempt_all_is_forgotten(self) -> None:
        """A dead letter that is put back is handled anew, from the first attempt on."""
        store = await self.connect()
        assert await self.failed(store, 1)
        assert await self.failed(store, 2)
        assert await self.failed(store, 3, last=True)
        assert await self.is_new(store, 1)
        assert await self.is_new(store, 3)
        assert await self.failed(store, 1)

    async def test_no_copy_follows_from_what_was_handled_after_all(self) -> None:
        """Two deliveries of one message: one failed, and the other one did it."""
        store = await self.connect()
        async with store.begin(synchronous=False) as unit:
            await unit.admit("billing", [("m", 1)])
            await unit.commit()
        assert not await self.failed(store, 1)
        assert not await self.failed(store, 1, last=True)

    async def test_others_are_not_concerned(self) -> None:
        """Neither another message nor another listener."""
        store = await self.connect()
        await self.failed(store, 1)
        for listener, identity in (("shipping", "m"), ("billing", "n")):
            async with store.failing(listener, identity, 1, last=True) as is_first:
                assert is_first
        assert not await self.failed(store, 1)

    async def test_what_failed_is_forgotten_in_time(self) -> None:
        """As what was handled is."""
        store = await self.connect(keep_seen=0.2)
        await self.failed(store, 1)
        await self.wait(250)
        assert await store.forget_seen(10) == 1
        assert await self.is_new(store, 1)
