"""From a ``definitions.json``, or what the management API answers in the same form, to what a server has.

Rule: what does not have the form of definitions is refused with a sentence that says where; what is not known is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from carom.core.lint.seen import Binding, Exchange, Facts, Inventory, Policy, Queue, Vhost
from carom.core.lint.versions import version_of
from carom.core.topology import Topology
from carom.errors import ConfigurationError

DEFAULT_VHOST = "/"


def definitions(value: object, version: str = "", vhost: str = DEFAULT_VHOST) -> Inventory:
    """Return what definitions define. Raises ConfigurationError for anything else.

    ``version`` is used where they do not say it; ``vhost`` where, exported from one vhost alone, they name none.
    """
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"definitions are a JSON object, and this is {_kind(value)}")
    found = {name: Vhost(name) for name in (_text(one, "name", "vhosts") for one in _rows(value, "vhosts"))}
    for key, part, read in _PARTS:
        for one in _rows(value, key):
            thing, home = read(one), str(one.get("vhost", vhost))
            here = found.setdefault(home, Vhost(home))
            if thing is not None:
                things: dict[str, Any] = {part: (*getattr(here, part), thing)}
                found[home] = replace(here, **things)
    said = str(value.get("rabbit_version") or value.get("rabbitmq_version") or version)
    return Inventory(version_of(said), tuple(found.values()), dict(_flags(value)))


def of_topology(topology: Topology, version: str = "", vhost: str = DEFAULT_VHOST) -> Inventory:
    """Return a topology as what a server has that has nothing else."""
    exchanges = (
        Exchange(
            one.name,
            one.kind,
            one.durable,
            one.internal,
            {} if one.alternate is None else {"alternate-exchange": one.alternate},
        )
        for one in topology.exchanges
    )
    queues = (Queue(one.name, one.durable, arguments=dict(one.arguments)) for one in topology.queues)
    bindings = (Binding(one.source, one.target, one.key, one.to, dict(one.arguments)) for one in topology.bindings)
    return Inventory(version_of(version), (Vhost(vhost, tuple(exchanges), tuple(queues), tuple(bindings)),))


def _exchange(one: Mapping[str, object]) -> Exchange:
    return Exchange(
        _text(one, "name", "exchanges"),
        _text(one, "type", "exchanges"),
        bool(one.get("durable", True)),
        bool(one.get("internal", False)),
        _table(one, "arguments", "exchanges"),
    )


def _queue(one: Mapping[str, object]) -> Queue:
    arguments = dict(_table(one, "arguments", "queues"))
    if isinstance(one.get("type"), str):
        arguments.setdefault("x-queue-type", one["type"])
    return Queue(
        _text(one, "name", "queues"),
        bool(one.get("durable", True)),
        bool(one.get("auto_delete", False)),
        bool(one.get("exclusive", False) or one.get("owner_pid_details")),
        arguments,
        Facts(_count(one.get("messages")), _count(one.get("consumers")), _count(one.get("without_ack")))
        if "consumers" in one
        else None,
    )


def _binding(one: Mapping[str, object]) -> Binding:
    return Binding(
        _text(one, "source", "bindings"),
        _text(one, "destination", "bindings"),
        _text(one, "routing_key", "bindings"),
        "exchange" if one.get("destination_type") == "exchange" else "queue",
        _table(one, "arguments", "bindings"),
    )


def _policy(one: Mapping[str, object], *, operator: bool = False) -> Policy:
    where = "operator_policies" if operator else "policies"
    return Policy(
        _text(one, "name", where),
        _text(one, "pattern", where),
        _table(one, "definition", where),
        _whole(one.get("priority", 0)),
        str(one.get("apply-to", "all")),
        operator,
    )


def _operator_policy(parameter: Mapping[str, object]) -> Policy | None:
    """Return the policy of a parameter: definitions have those of the operator among the parameters."""
    value = parameter.get("value")
    if parameter.get("component") != "operator_policy" or not isinstance(value, Mapping):
        return None
    return _policy({**value, "name": parameter.get("name")}, operator=True)


_PARTS: tuple[tuple[str, str, Callable[[Mapping[str, object]], object]], ...] = (
    ("exchanges", "exchanges", _exchange),
    ("queues", "queues", _queue),
    ("bindings", "bindings", _binding),
    ("policies", "policies", _policy),
    ("parameters", "policies", _operator_policy),
    ("operator_policies", "policies", partial(_policy, operator=True)),
)


def _flags(value: Mapping[str, object]) -> Iterator[tuple[str, bool]]:
    for one in _rows(value, "feature_flags"):
        yield _text(one, "name", "feature_flags"), one.get("state") == "enabled"


def _rows(value: Mapping[str, object], key: str) -> Iterator[Mapping[str, object]]:
    rows = value.get(key, [])
    if not isinstance(rows, list):
        raise ConfigurationError(f"{key!r} of the definitions is a list, and this is {_kind(rows)}")
    for one in rows:
        if not isinstance(one, Mapping):
            raise ConfigurationError(f"{key!r} of the definitions is a list of objects, and has {_kind(one)} in it")
        yield one


def _text(one: Mapping[str, object], key: str, where: str) -> str:
    value = one.get(key)
    if not isinstance(value, str):
        raise ConfigurationError(f"one of the {where!r} of the definitions has no text as its {key!r}")
    return value


def _table(one: Mapping[str, object], key: str, where: str) -> Mapping[str, object]:
    value = one.get(key) or {}  # an empty table is written as [] by some versions
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"one of the {where!r} of the definitions has no object as its {key!r}")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"a policy of the definitions has a priority that is no number, but {_kind(value)}")
    return value


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _kind(value: object) -> str:
    return {dict: "an object", list: "a list", str: "text", type(None): "nothing"}.get(type(value), "something else")
