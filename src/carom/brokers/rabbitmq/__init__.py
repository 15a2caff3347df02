"""RabbitMQ, spoken over AMQP 0-9-1 with pika's asyncio adapter."""

from __future__ import annotations

from carom.brokers.rabbitmq.broker import RabbitBroker
from carom.ports import Clock, Location, Report

__all__ = ["RabbitBroker", "connect"]


def connect(url: Location, clock: Clock, report: Report) -> RabbitBroker:
    """Return a broker for ``amqp://`` and ``amqps://`` URLs, not yet connected."""
    return RabbitBroker(url, clock, report)
