"""Opening: the tables are there, are made, or are missed by name.

Rule: opening twice, and by many at once, is as good as once.
"""

from __future__ import annotations

import asyncio

import pytest

from carom.errors import SchemaMismatch
from carom.testing.contracts.store.stage import StoreStage


class Opening(StoreStage):
    """What `open` and `close` promise."""

    async def test_missing_tables_are_made(self) -> None:
        """And found by the next one."""
        await self.connect()
        store = self.make_store()
        await store.open("verify")
        await store.close()

    async def test_missing_tables_are_named(self) -> None:
        """With what to do about them."""
        store = self.make_store()
        self._open.push_async_callback(store.close)
        with pytest.raises(SchemaMismatch, match=f"{self.prefix}outbox.*carom db upgrade"):
            await store.open("verify")

    async def test_missing_tables_can_be_ignored(self) -> None:
        """Until somebody needs them: that is said then."""
        store = self.make_store()
        self._open.push_async_callback(store.close)
        await store.open("ignore")
        with pytest.raises(SchemaMismatch, match="carom db upgrade"):
            await store.claim(1, [])

    async def test_many_can_open_at_once(self) -> None:
        """One of them makes the tables."""
        stores = [self.make_store() for _ in range(4)]
        for store in stores:
            self._open.push_async_callback(store.close)
        await asyncio.gather(*(store.open("apply") for store in stores))
        await self.emit(stores[0], "a")
        assert await self.claimed(stores[3]) == ["a"]

    async def test_closing_twice_does_no_harm(self) -> None:
        """Nor does closing what was never open."""
        store = self.make_store()
        await store.close()
        store = await self.connect()
        await store.close()
        await store.close()
