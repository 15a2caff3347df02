"""Making a topology exist on RabbitMQ, or comparing it with what is there.

AMQP can ask whether something exists, and whether a declaration agrees with it; it cannot list. So a comparison
asks for each thing, and declares again what exists already, which changes nothing and is refused when an argument
differs. Bindings cannot be asked for; declaring one that exists changes nothing.

Rule: what differs is never touched. Every difference is named, with both values and what to do.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from carom.brokers.rabbitmq.channels import LOCKED, NOT_FOUND, PRECONDITION_FAILED, ChannelClosed, Rpc, open_channel
from carom.brokers.rabbitmq.frames import Connection
from carom.core.topology import Binding, Exchange, Queue, Topology
from carom.errors import NotPermitted, TopologyMismatch

_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<argument>[^']+)' for (?P<kind>queue|exchange) '(?P<name>.+)' in vhost '.*': "
    r"received (?P<wanted>.+) but current is (?P<actual>.+)"
)
REMEDY = "give it another name, or remove it when it is empty and apply the topology again"


async def apply(connection: Callable[[], Connection | None], topology: Topology) -> None:
    """Declare everything. Raises TopologyMismatch with every difference, or NotPermitted."""
    told = [await _declared(connection, thing) for thing in _things(topology)]
    differences = [difference for difference in told if difference]
    if differences:
        raise TopologyMismatch(differences)
    async with _channel(connection) as rpc:
        for binding in topology.bindings:
            await _bind(rpc, binding)


async def verify(connection: Callable[[], Connection | None], topology: Topology) -> None:
    """Declare nothing; raise TopologyMismatch with everything that is missing or different."""
    differences = []
    for thing in _things(topology):
        if not await _exists(connection, thing):
            differences.append(f"{_called(thing)} is missing")
        elif difference := await _declared(connection, thing):
            differences.append(difference)
    if differences:
        raise TopologyMismatch(differences)


async def depth(connection: Callable[[], Connection | None], queue: str) -> tuple[int, int] | None:
    """Return how many messages are ready in a queue and how many consumers it has; None when there is no such queue."""
    try:
        async with _channel(connection) as rpc:
            answer = await rpc.ask(rpc.channel.queue_declare, queue, passive=True)
    except ChannelClosed as closed:
        if closed.code == NOT_FOUND:
            return None
        raise
    return answer.method.message_count, answer.method.consumer_count


def _things(topology: Topology) -> list[Exchange | Queue]:
    things: list[Exchange | Queue] = [*topology.exchanges, *topology.queues]
    return [thing for thing in things if thing.name and not thing.name.startswith("amq.")]


@asynccontextmanager
async def _channel(connection: Callable[[], Connection | None]) -> AsyncIterator[Rpc]:
    rpc = Rpc(await open_channel(connection()))
    try:
        yield rpc
    finally:
        rpc.close()


async def _exists(connection: Callable[[], Connection | None], thing: Exchange | Queue) -> bool:
    try:
        async with _channel(connection) as rpc:
            if isinstance(thing, Queue):
                await rpc.ask(rpc.channel.queue_declare, thing.name, passive=True)
            else:
                await rpc.ask(rpc.channel.exchange_declare, thing.name, passive=True)
    except ChannelClosed as closed:
        if closed.code == NOT_FOUND:
            return False
        raise
    return True


async def _declared(connection: Callable[[], Connection | None], thing: Exchange | Queue) -> str:
    """Declare it; return how it differs from what is there, or an empty string."""
    try:
        async with _channel(connection) as rpc:
            await _declare(rpc, thing)
    except ChannelClosed as closed:
        if closed.code in {PRECONDITION_FAILED, LOCKED}:
            return _difference(thing, closed.words)
        raise
    except NotPermitted as error:
        raise NotPermitted(f"{_called(thing)} may not be declared by this user: {error}") from error
    return ""


async def _declare(rpc: Rpc, thing: Exchange | Queue) -> Any:
    if isinstance(thing, Queue):
        return await rpc.ask(
            rpc.channel.queue_declare, thing.name, durable=thing.durable, arguments=dict(thing.arguments)
        )
    arguments = {} if thing.alternate is None else {"alternate-exchange": thing.alternate}
    return await rpc.ask(
        rpc.channel.exchange_declare,
        thing.name,
        exchange_type=thing.kind,
        durable=thing.durable,
        internal=thing.internal,
        arguments=arguments,
    )


async def _bind(rpc: Rpc, binding: Binding) -> None:
    arguments = dict(binding.arguments)
    if binding.to == "queue":
        await rpc.ask(
            rpc.channel.queue_bind, binding.target, binding.source, routing_key=binding.key, arguments=arguments
        )
    else:
        await rpc.ask(
            rpc.channel.exchange_bind, binding.target, binding.source, routing_key=binding.key, arguments=arguments
        )


def _difference(thing: Exchange | Queue, words: str) -> str:
    found = _INEQUIVALENT.search(words)
    if found is None:
        return f"{_called(thing)} is not as declared: {words}"
    wanted, actual = found["wanted"], found["actual"]
    return f"{_called(thing)} has {found['argument']} {actual}, and {wanted} is wanted: {REMEDY}"


def _called(thing: Exchange | Queue) -> str:
    return f"{'queue' if isinstance(thing, Queue) else 'exchange'} {thing.name!r}"
