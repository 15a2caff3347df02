"""SQLite keeps the contract of every store: in a file, on virtual time, in memory, on an engine of the user's."""

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from carom.ports import Database
from carom.stores import connect
from carom.testing.clock import VirtualClock
from carom.testing.contracts import StoreContract


class InFile(StoreContract):
    lets_others_write = False

    @pytest.fixture(autouse=True)
    def _in(self, tmp_path):
        self.path = tmp_path / "shop.db"

    def make_store(self, **settings):
        return connect(Database(f"sqlite+aiosqlite:///{self.path}", prefix=self.prefix, **settings))

    def session(self, store):
        return AsyncSession(store.engines.asynchronous)


class TestSqliteFile(InFile):
    """As it is in production."""


class TestSqliteOnVirtualTime(InFile):
    async def set_up(self):
        self.clock = VirtualClock()

    def make_store(self, **settings):
        return connect(Database(f"sqlite:///{self.path}", prefix=self.prefix, **settings), self.clock.now_ms)

    async def wait(self, ms):
        await self.clock.elapse(ms)

    def now_ms(self):
        return self.clock.now_ms()


class TestSqliteOnAnEngineOfTheUsers(InFile):
    async def set_up(self):
        self.engine = create_async_engine(f"sqlite+aiosqlite:///{self.path}", connect_args={"timeout": 30})

    def make_store(self, **settings):
        return connect(Database(self.engine, prefix=self.prefix, **settings))

    async def tear_down(self):
        await self.engine.dispose()
