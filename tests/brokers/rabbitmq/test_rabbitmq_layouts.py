"""Every layout keeps the contract of layouts on RabbitMQ, in real time: the same claims, waits of parts of a second."""

import pika
import pytest

from carom.brokers.rabbitmq import RabbitBroker
from carom.errors import Unsupported
from carom.layouts import AsyncWorker, Binary, FreeFlow, GoQueue, Kbairak, Native, PerQueue, Shared, WaitQueue
from carom.layouts.async_worker import snake
from carom.runtime.clock import RealClock
from carom.testing.contracts import LayoutContract

DELAYS_BY_ITSELF = (4, 3)
TIERS = (("30s", 300), ("5m", 600), ("30m", 900))


@pytest.fixture(scope="module")
def server_version(rabbitmq_url):
    """Return the version that the server reports, as numbers."""
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        version = connection._impl.server_properties["version"]
    return tuple(int(number) for number in version.split(".")[:2])


class OnRabbit(LayoutContract):
    ladder_ms = (300, 600, 900)
    late_ms = 2_000

    @pytest.fixture(autouse=True)
    def _on(self, rabbitmq_url, server_version):
        self.url = rabbitmq_url
        self.version = server_version

    def make_broker(self):
        return RabbitBroker(self.url, RealClock())

    async def tear_down(self, declared):
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            channel = connection.channel()
            for topology in declared:
                for queue in topology.queues:
                    channel.queue_delete(queue.name)
                for exchange in topology.exchanges:
                    channel.exchange_delete(exchange.name)


class TestShared(OnRabbit):
    def make_layout(self, plans):
        return Shared(self.prefix, self.name("events"), plans)


class TestPerQueue(OnRabbit):
    def make_layout(self, plans):
        return PerQueue(self.prefix, self.name("events"), plans)


class TestKbairak(OnRabbit):
    def make_layout(self, plans):
        return Kbairak(self.prefix, self.name("outbox"), plans)


class TestGoQueue(OnRabbit):
    def make_layout(self, plans):
        return GoQueue(self.prefix, self.name("events"), plans)


class TestGoQueueOfQuorumQueues(OnRabbit):
    def make_layout(self, plans):
        return GoQueue(self.prefix, self.name("events"), plans, quorum_queues=True)


class TestFreeFlow(OnRabbit):
    writes_headers_as_text = True

    def make_layout(self, plans):
        return FreeFlow(self.prefix, self.name("events"), plans, tiers=TIERS)


class TestFreeFlowOfNestThatReturnsToTheQueue(TestFreeFlow):
    def make_layout(self, plans):
        return FreeFlow(self.prefix, self.name("events"), plans, return_to="queue", nest=True, tiers=TIERS)


class TestWaitQueue(OnRabbit):
    ladder_ms = (300, 300, 300)

    def make_layout(self, plans):
        return WaitQueue(self.prefix, self.name("events"), plans)


class TestWaitQueueOfCopies(TestWaitQueue):
    def make_layout(self, plans):
        return WaitQueue(self.prefix, self.name("events"), plans, copies=True)


class TestAsyncWorker(OnRabbit):
    ladder_ms = (300, 600, 1_200)
    body = b"NPY\0p\1j\1nd\1"

    def home(self):
        return f"{snake(self.prefix)}_instant_queue"

    def make_layout(self, plans):
        return AsyncWorker(self.prefix, "", plans)


class TestBinary(OnRabbit):
    ladder_ms = (1_000, 2_000, 3_000)

    def make_layout(self, plans):
        return Binary(self.prefix, self.name("events"), plans)


class TestNative(OnRabbit):
    """On a server that does not delay by itself, each claim is that it is refused there with a sentence."""

    counts_crashes_as_attempts = True

    def make_layout(self, plans):
        return Native(self.prefix, self.name("events"), plans)

    async def play(self, test):
        await super().play(test if self.version >= DELAYS_BY_ITSELF else self.is_refused)

    async def is_refused(self):
        broker = await self.connect()
        with pytest.raises(Unsupported, match=r"x-delayed-retry-type, which is ignored before 4\.3"):
            await broker.declare(self.make_layout((self._plan(),)).topology)
