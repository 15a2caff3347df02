"""Making a topology exist on RabbitMQ, or comparing it with what is there.

AMQP can ask whether something exists, and whether a declaration agrees with it; it cannot list. So a comparison
asks for each thing, and declares again what exists already, which changes nothing and is refused when an argument
differs. Bindings cannot be asked for at all: whoever knows them, from the management API, hands them in.

Rule: what differs is never touched. Every difference is named, with both values and what to do.
"""

from __future__ import annotations

import logging
from typing import Any

from carom.brokers.rabbitmq.channels import LOCKED, NOT_FOUND, PRECONDITION_FAILED, ChannelClosed, Rpc, open_channel
from carom.brokers.rabbitmq.frames import Connection
from carom.brokers.rabbitmq.refusals import Thing, as_it_is, called, read, sentence
from carom.core.topology import Binding, Queue, Topology
from carom.errors import BrokerError, NotPermitted, TopologyMismatch

_log = logging.getLogger("carom.rabbitmq")


class Questions:
    """A channel for questions over which the server may close it; the next one is asked on a new channel."""

    def __init__(self, connection: Connection) -> None:
        """Open nothing yet."""
        self._connection = connection
        self._rpc: Rpc | None = None

    async def ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Ask one. Raises ChannelClosed, with which the server says no."""
        rpc = await self.rpc()
        return await rpc.ask(getattr(rpc.channel, method), *arguments, **options)

    async def rpc(self) -> Rpc:
        """Return the channel, or a new one."""
        if self._rpc is None or not self._rpc.channel.is_open:
            self._rpc = Rpc(await open_channel(self._connection))
        return self._rpc

    def close(self) -> None:
        """Ask no more."""
        if self._rpc is not None:
            self._rpc.close()


async def apply(questions: Questions, topology: Topology) -> None:
    """Declare everything. Raises TopologyMismatch with every difference, or NotPermitted."""
    differences = [difference for thing in _things(topology) for difference in await _declared(questions, thing)]
    if differences:
        raise TopologyMismatch(differences)
    for binding in topology.bindings:
        await _bind(questions, binding)


async def verify(
    questions: Questions, topology: Topology, known: frozenset[tuple[str, str, str, str]] | None = None
) -> None:
    """Declare nothing; raise TopologyMismatch with everything that is missing or different.

    ``known`` are the bindings there are; without them, no binding is looked at. A user who may not configure a thing
    only learns that it exists, and the log says so.
    """
    differences: list[str] = []
    for thing in _things(topology):
        if not await _exists(questions, thing):
            differences.append(
                f"{called(thing)} is missing: declare it with mode 'apply', as a user who may configure it"
            )
            continue
        try:
            differences += await _declared(questions, thing)
        except NotPermitted:
            _log.warning("%s exists; this user may not compare its arguments, for want of configure", called(thing))
    for binding in topology.bindings:
        if known is not None and (binding.source, binding.to, binding.target, binding.key) not in known:
            differences.append(
                f"{binding.to} {binding.target!r} is not bound to exchange {binding.source!r} with key {binding.key!r}"
            )
    if differences:
        raise TopologyMismatch(differences)


async def depth(questions: Questions, queue: str) -> tuple[int, int] | None:
    """Return how many messages are ready in a queue and how many consumers it has; None when there is no such queue."""
    try:
        answer = await questions.ask("queue_declare", queue, passive=True)
    except ChannelClosed as closed:
        if closed.code == NOT_FOUND:
            return None
        raise BrokerError(f"queue {queue!r} cannot be looked at: {closed}") from closed
    return answer.method.message_count, answer.method.consumer_count


def _things(topology: Topology) -> list[Thing]:
    things: list[Thing] = [*topology.exchanges, *topology.queues]
    return [thing for thing in things if thing.name and not thing.name.startswith("amq.")]


async def _exists(questions: Questions, thing: Thing) -> bool:
    try:
        await questions.ask(
            "queue_declare" if isinstance(thing, Queue) else "exchange_declare", thing.name, passive=True
        )
    except ChannelClosed as closed:
        if closed.code == NOT_FOUND:
            return False
        if closed.code == LOCKED:  # it is there, and somebody else's
            return True
        raise BrokerError(f"{called(thing)} cannot be looked at: {closed}") from closed
    except NotPermitted as refused:
        raise NotPermitted(f"{called(thing)} may not be looked at by this user: {refused}") from refused
    return True


async def _declared(questions: Questions, thing: Thing) -> list[str]:
    """Declare it; return how it differs from what is there.

    The server names one difference at a time: with what it has put into its place, it names the next.
    """
    differences: list[str] = []
    asked: Thing | None = thing
    while asked is not None:
        words = await _refused(questions, asked)
        if not words:
            break
        refusal = read(words)
        differences.append(sentence(thing, words, refusal))
        asked = None if refusal is None else as_it_is(asked, refusal)
    return differences


async def _refused(questions: Questions, thing: Thing) -> str:
    """Declare it; return the server's words when it has something else, or an empty string."""
    try:
        await _declare(questions, thing)
    except ChannelClosed as closed:
        if closed.code in {PRECONDITION_FAILED, LOCKED}:
            return closed.words
        raise BrokerError(f"{called(thing)} cannot be declared: {closed}") from closed
    except NotPermitted as refused:
        raise NotPermitted(f"{called(thing)} may not be declared by this user: {refused}") from refused
    return ""


async def _declare(questions: Questions, thing: Thing) -> None:
    if isinstance(thing, Queue):
        await questions.ask("queue_declare", thing.name, durable=thing.durable, arguments=dict(thing.arguments))
        return
    await questions.ask(
        "exchange_declare",
        thing.name,
        exchange_type=thing.kind,
        durable=thing.durable,
        internal=thing.internal,
        arguments={} if thing.alternate is None else {"alternate-exchange": thing.alternate},
    )


async def _bind(questions: Questions, binding: Binding) -> None:
    method = "queue_bind" if binding.to == "queue" else "exchange_bind"
    label = f"{binding.to} {binding.target!r} cannot be bound to exchange {binding.source!r} with key {binding.key!r}"
    try:
        await questions.ask(
            method, binding.target, binding.source, routing_key=binding.key, arguments=dict(binding.arguments)
        )
    except NotPermitted as refused:
        raise NotPermitted(f"{label} by this user: {refused}") from refused
    except ChannelClosed as closed:
        raise BrokerError(f"{label}: {closed}") from closed
