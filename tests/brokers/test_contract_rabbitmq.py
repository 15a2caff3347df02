"""The broker's contract on a real RabbitMQ."""

from __future__ import annotations

from collections.abc import Sequence

import pika

from carom.brokers.rabbitmq import RabbitBroker
from carom.core.topology import Topology
from carom.ports import Broker
from carom.runtime.clock import RealClock
from carom.testing.contracts import BrokerContract

URL = "amqp://guest:guest@127.0.0.1:5672/"


class TestRabbit(BrokerContract):
    sees_bindings = False

    def make_broker(self) -> Broker:
        return RabbitBroker(URL, RealClock())

    async def drop_connection(self, broker: RabbitBroker) -> None:
        broker.drop_connections()

    async def delete_queue(self, broker: Broker, queue: str) -> None:
        with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
            connection.channel().queue_delete(queue)

    async def tear_down(self, declared: Sequence[Topology]) -> None:
        with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
            channel = connection.channel()
            for topology in declared:
                for queue in topology.queues:
                    channel.queue_delete(queue.name)
                for exchange in topology.exchanges:
                    channel.exchange_delete(exchange.name)
