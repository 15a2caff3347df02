"""The memory broker keeps the contract of every broker, on virtual time."""

from carom.brokers.embedded.broker import MemoryBroker
from carom.brokers.embedded.engine import Engine
from carom.testing.clock import VirtualClock
from carom.testing.contracts import BrokerContract


class TestMemoryBroker(BrokerContract):
    pinned_retry_ms = 180_000

    async def set_up(self):
        self.clock = VirtualClock()
        self.engine = Engine()

    def make_broker(self):
        return MemoryBroker(self.clock, engine=self.engine)

    async def drop_connection(self, broker):
        broker.disconnect()

    async def delete_queue(self, broker, queue):
        await broker.delete_queue(queue)

    async def wait(self, ms):
        await self.clock.elapse(ms)

    def now_ms(self):
        return self.clock.now_ms()
