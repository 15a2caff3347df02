"""Every layout keeps the contract of layouts, to the millisecond, on the embedded broker and virtual time."""

from __future__ import annotations

from carom.brokers.embedded.broker import MemoryBroker
from carom.brokers.embedded.engine import Engine
from carom.layouts import AsyncWorker, Binary, FreeFlow, GoQueue, Kbairak, PerQueue, Shared, WaitQueue
from carom.layouts.async_worker import snake
from carom.testing.clock import VirtualClock
from carom.testing.contracts import LayoutContract


class OnVirtualTime(LayoutContract):
    async def set_up(self):
        self.clock = VirtualClock()
        self.engine = Engine()

    def make_broker(self):
        return MemoryBroker(self.clock, engine=self.engine)

    async def wait(self, ms):
        await self.clock.elapse(ms)

    def now_ms(self):
        return self.clock.now_ms()


class TestShared(OnVirtualTime):
    def make_layout(self, plans):
        return Shared(self.prefix, self.name("events"), plans)


class TestPerQueue(OnVirtualTime):
    def make_layout(self, plans):
        return PerQueue(self.prefix, self.name("events"), plans)


class TestKbairak(OnVirtualTime):
    def make_layout(self, plans):
        return Kbairak(self.prefix, self.name("outbox"), plans)


class TestGoQueue(OnVirtualTime):
    def make_layout(self, plans):
        return GoQueue(self.prefix, self.name("events"), plans)


class TestFreeFlow(OnVirtualTime):
    ladder_ms = (30_000, 300_000, 1_800_000)
    writes_headers_as_text = True

    def make_layout(self, plans):
        return FreeFlow(self.prefix, self.name("events"), plans)


class TestFreeFlowOfNestThatReturnsToTheQueue(TestFreeFlow):
    def make_layout(self, plans):
        return FreeFlow(self.prefix, self.name("events"), plans, return_to="queue", nest=True)


class TestWaitQueue(OnVirtualTime):
    ladder_ms = (2_000, 2_000, 2_000)

    def make_layout(self, plans):
        return WaitQueue(self.prefix, self.name("events"), plans)


class TestWaitQueueOfCopies(TestWaitQueue):
    def make_layout(self, plans):
        return WaitQueue(self.prefix, self.name("events"), plans, copies=True)


class TestAsyncWorker(OnVirtualTime):
    body = b"NPY\0p\1j\1nd\1"

    def home(self):
        return f"{snake(self.prefix)}_instant_queue"

    def make_layout(self, plans):
        return AsyncWorker(self.prefix, "", plans)


class TestBinary(OnVirtualTime):
    ladder_ms = (1_000, 6_000, 7_000)

    def make_layout(self, plans):
        return Binary(self.prefix, self.name("events"), plans)
