"""Permissions: whether this user may publish to an exchange or consume from a queue, found out without doing either.

Rule: what is asked for can never be done. RabbitMQ looks at the permission first, and then refuses an expiration or a
priority that is no number; which of the two it refuses is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pika import BasicProperties
from pika.channel import Channel

from carom.brokers.rabbitmq.channels import ChannelClosed
from carom.brokers.rabbitmq.declaring import Questions
from carom.errors import NotPermitted

_NONSENSE = "nonsense"


async def unwritable(questions: Questions, exchanges: Iterable[str]) -> tuple[str, ...]:
    """Return the exchanges that this user may not publish to."""
    return tuple([one for one in exchanges if not await _may(questions, _publish, one)])


async def unreadable(questions: Questions, queues: Iterable[str]) -> tuple[str, ...]:
    """Return the queues that this user may not consume from."""
    return tuple([one for one in queues if not await _may(questions, _consume, one)])


async def _may(questions: Questions, ask: Callable[..., None], name: str) -> bool:
    rpc = await questions.rpc()
    try:
        await rpc.ask(ask, rpc.channel, name)
    except NotPermitted:
        return False
    except ChannelClosed:
        pass
    return True


def _publish(channel: Channel, exchange: str, callback: Callable[[Any], None]) -> None:
    channel.basic_publish(exchange, "", b"", BasicProperties(expiration=_NONSENSE))
    channel.basic_qos(callback=callback)  # a publish has no answer; this one never comes before it


def _consume(channel: Channel, queue: str, callback: Callable[[Any], None]) -> None:
    channel.basic_consume(queue, _nobody, arguments={"x-priority": _NONSENSE}, callback=callback)


def _nobody(*_delivery: object) -> None:
    """Take a delivery that never comes."""
