"""A topology as plain JSON values, and back.

Rule: what is written here is read back as the same topology; nothing is left out and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from carom.core.retry import RetryPolicy
from carom.core.topology import Binding, Exchange, Queue, Topology, arguments
from carom.errors import ConfigurationError
from carom.runtime.listener import Listener


def written(topology: Topology) -> dict[str, Any]:
    """Return a topology as JSON values."""
    return {
        "exchanges": [
            {
                "name": one.name,
                "kind": one.kind,
                "durable": one.durable,
                "internal": one.internal,
                "alternate": one.alternate,
                "public": one.public,
            }
            for one in topology.exchanges
        ],
        "queues": [
            {"name": one.name, "durable": one.durable, "arguments": dict(one.arguments)} for one in topology.queues
        ],
        "bindings": [
            {
                "source": one.source,
                "target": one.target,
                "to": one.to,
                "key": one.key,
                "arguments": dict(one.arguments),
            }
            for one in topology.bindings
        ],
    }


def read(value: Mapping[str, Any]) -> Topology:
    """Return the topology that was written. Raises ConfigurationError for anything else."""
    try:
        found = msgspec.convert(value, _Topology)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"this is no topology: {error}") from error
    return Topology(
        tuple(found.exchanges),
        tuple(Queue(one.name, one.durable, arguments(one.arguments)) for one in found.queues),
        tuple(
            Binding(
                one.source,
                one.target,
                one.key,
                "exchange" if one.to == "exchange" else "queue",
                arguments(one.arguments),
            )
            for one in found.bindings
        ),
    )


def exported(topology: Topology, vhost: str) -> dict[str, Any]:
    """Return a topology as definitions that RabbitMQ imports into a vhost."""
    return {
        "vhosts": [{"name": vhost}],
        "exchanges": [
            {
                "name": one.name,
                "vhost": vhost,
                "type": one.kind,
                "durable": one.durable,
                "auto_delete": False,
                "internal": one.internal,
                "arguments": {} if one.alternate is None else {"alternate-exchange": one.alternate},
            }
            for one in topology.exchanges
        ],
        "queues": [
            {
                "name": one.name,
                "vhost": vhost,
                "durable": one.durable,
                "auto_delete": False,
                "arguments": dict(one.arguments),
            }
            for one in topology.queues
        ],
        "bindings": [
            {
                "source": one.source,
                "vhost": vhost,
                "destination": one.target,
                "destination_type": one.to,
                "routing_key": one.key,
                "arguments": dict(one.arguments),
            }
            for one in topology.bindings
        ],
    }


def listener_written(listener: Listener) -> dict[str, Any]:
    """Return how a listener runs, as JSON values."""
    return {
        "queue": listener.queue,
        "handler": listener.handler.name,
        "keys": list(listener.plan.keys),
        "concurrency": listener.concurrency,
        "prefetch": listener.prefetch,
        "timeout_ms": listener.timeout_ms,
        "batch": listener.batch,
        "crash_limit": listener.plan.crash_limit,
        "retry": _retry_written(listener.plan.retry),
    }


def _retry_written(policy: RetryPolicy) -> dict[str, Any]:
    return {
        "policy": repr(policy),
        "attempts": policy.attempts,
        "jitter": policy.jitter,
        "schedule": [
            {"attempt": step.attempt, "delay_ms": step.delay_ms, "elapsed_ms": step.elapsed_ms}
            for step in policy.schedule()
        ],
    }


class _Queue(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    durable: bool
    arguments: dict[str, str | int | bool]


class _Binding(msgspec.Struct, forbid_unknown_fields=True):
    source: str
    target: str
    to: str
    key: str
    arguments: dict[str, str | int | bool]


class _Topology(msgspec.Struct, forbid_unknown_fields=True):
    exchanges: list[Exchange]
    queues: list[_Queue]
    bindings: list[_Binding]
