"""RabbitMQ, spoken over AMQP 0-9-1 with pika's asyncio adapter."""

from __future__ import annotations

from carom.brokers.rabbitmq.broker import RabbitBroker
from carom.brokers.rabbitmq.management import Api, api
from carom.ports import Clock, Location, Report

__all__ = ["Api", "RabbitBroker", "connect", "management_api"]


def connect(url: Location, clock: Clock, report: Report) -> RabbitBroker:
    """Return a broker for ``amqp://`` and ``amqps://`` URLs, not yet connected."""
    return RabbitBroker(url, clock, report)


def management_api(url: str) -> Api:
    """Return the management API of an ``http://`` or ``https://`` URL; nothing is asked yet."""
    return api(url)
