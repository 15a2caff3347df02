"""RabbitMQ keeps the contract of every broker, in real time; what a test declared is deleted again."""

import os

import pika
import pytest

from carom.brokers.rabbitmq import RabbitBroker
from carom.runtime.clock import RealClock
from carom.testing.contracts import BrokerContract
from servers.rabbitmq import PINNED_RETRY_MS

FIRST_THAT_FORGETS_HAND_BACKS = (4, 3)


@pytest.fixture(scope="module")
def server_version(rabbitmq_url):
    """Return the version that the server reports, as numbers."""
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        version = connection._impl.server_properties["version"]
    return tuple(int(number) for number in version.split(".")[:2])


class TestRabbitBroker(BrokerContract):
    @pytest.fixture(autouse=True)
    def _on(self, rabbitmq_url, rabbitmq_management_url, server_version):
        self.url = rabbitmq_url
        self.management = "" if rabbitmq_management_url is None else f"?management={rabbitmq_management_url}"
        self.sees_bindings = rabbitmq_management_url is not None
        self.counts_hand_backs = server_version < FIRST_THAT_FORGETS_HAND_BACKS
        self.pinned_retry_ms = None if "CAROM_TEST_BROKER" in os.environ else PINNED_RETRY_MS

    def make_broker(self):
        return RabbitBroker(f"{self.url}{self.management}", RealClock())

    async def drop_connection(self, broker):
        broker.drop_connections()

    async def delete_queue(self, broker, queue):
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            connection.channel().queue_delete(queue)

    async def tear_down(self, declared):
        if not declared:
            return
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            channel = connection.channel()
            for topology in declared:
                for queue in topology.queues:
                    channel.queue_delete(queue.name)
                for exchange in topology.exchanges:
                    channel.exchange_delete(exchange.name)
