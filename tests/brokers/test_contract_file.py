"""The file broker keeps the contract of every broker, on virtual time and a real disk."""

import asyncio
import tempfile
from pathlib import Path

from carom.brokers.embedded.file import FileBroker
from carom.testing.clock import VirtualClock
from carom.testing.contracts import BrokerContract


class TestFileBroker(BrokerContract):
    pinned_retry_ms = 180_000

    async def set_up(self):
        self.folder = tempfile.TemporaryDirectory(prefix="carom-contract-")
        self.clock = VirtualClock()
        self.brokers = []

    async def tear_down(self, declared):
        self.folder.cleanup()

    def make_broker(self):
        self.brokers.append(FileBroker(Path(self.folder.name) / "broker.db", self.clock))
        return self.brokers[-1]

    async def drop_connection(self, broker):
        await broker.disconnect()

    async def delete_queue(self, broker, queue):
        await broker.delete_queue(queue)

    async def wait(self, ms):
        """Let virtual time pass, every broker's thread being done with what is due before the next moment comes."""
        until_ms = self.clock.now_ms() + ms
        await self.settle()
        while self.clock.step(until_ms):
            await self.settle()
        self.clock.advance_to(until_ms)
        await self.settle()

    def now_ms(self):
        return self.clock.now_ms()

    async def settle(self):
        """Let the loop go round until nobody has anything under way, wake-ups between brokers included."""
        quiet = 0
        while quiet < 3:
            await asyncio.sleep(0)
            quiet = 0 if any(broker.pending() for broker in self.brokers) else quiet + 1
