"""Policies as RabbitMQ resolves them: which one applies to a queue, and what then is effective.

Rule: one policy and one of the operator's apply to an object, those of the highest priority; nothing is merged but
these two, and then with the arguments: the smaller number wins, a dead letter argument beats its policy, and for
``overflow`` and ``expires`` it depends on the kind of queue.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from carom.core.lint.seen import Policy, Queue, Values
from carom.core.lint.versions import TYPED_POLICIES, UNKNOWN, Version

_APPLY_TO = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}
_MIRRORING = {"ha-mode", "ha-params", "ha-sync-mode", "ha-promote-on-shutdown", "ha-promote-on-failure"}
_STREAM = {"max-age", "stream-max-segment-size-bytes", "initial-cluster-size"}
NOT_FOR: dict[str, frozenset[str]] = {
    "classic": frozenset({*_STREAM, "queue-leader-locator", "delivery-limit", "dead-letter-strategy"}),
    "quorum": frozenset({*_MIRRORING, *_STREAM, "max-priority", "queue-mode", "queue-master-locator"}),
    "stream": frozenset(
        {
            *_MIRRORING,
            *("expires", "message-ttl", "dead-letter-exchange", "dead-letter-routing-key", "max-length", "overflow"),
            *("max-in-memory-length", "max-in-memory-bytes", "max-priority", "queue-mode", "single-active-consumer"),
            *("delivery-limit", "queue-master-locator", "dead-letter-strategy"),
        }
    ),
}
"""The keys that make a policy no policy for this kind of queue, with everything else in it."""

SMALLEST = frozenset({"message-ttl", "max-length", "max-length-bytes", "delivery-limit", "expires"})
_POLICY_WINS = {"quorum": frozenset({"overflow", "expires"}), "classic": frozenset[str](), "stream": frozenset[str]()}
KEYS = (
    *("message-ttl", "expires", "max-length", "max-length-bytes", "overflow", "delivery-limit"),
    *("dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy"),
)
"""What decides where messages go and when: as policies write it; arguments have ``x-`` before it."""


_ELSEWHERE = re.compile(r"\[[^\]]*(?:\[|--|&&|~~|\|\|)")


@dataclass(frozen=True, slots=True)
class Applied:
    """Which policies match a queue, the one that applies first, and what the two that apply define together."""

    matching: tuple[Policy, ...] = ()
    operators: tuple[Policy, ...] = ()
    defines: Values = field(default_factory=dict)


def matches(pattern: str, name: str) -> bool | None:
    """Tell whether a policy's pattern is found in a name; None when it cannot be read here.

    RabbitMQ looks at bytes, and so is done here. Where its regular expressions mean something else than ours, as a set
    inside a set does, they are not read.
    """
    found = _read(pattern)
    return None if found is None else found.search(_bytes(name)) is not None


@lru_cache(maxsize=1024)
def _read(pattern: str) -> re.Pattern[bytes] | None:
    if _ELSEWHERE.search(pattern):
        return None
    try:
        return re.compile(_bytes(pattern))
    except (re.error, RecursionError, OverflowError):
        return None


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def is_for(policy: Policy, kind: str, version: Version) -> bool:
    """Tell whether a policy is for this kind of queue at all, by what it says it applies to."""
    if policy.apply_to in {"all", "queues"}:
        return True
    return policy.apply_to == _APPLY_TO.get(kind) and (version == UNKNOWN or version >= TYPED_POLICIES)


def suits(policy: Policy, kind: str) -> bool:
    """Tell whether everything a policy defines exists for this kind of queue; otherwise it is not applied."""
    return not NOT_FOR.get(kind, frozenset()) & set(policy.definition)


def applied(queue: Queue, policies: Sequence[Policy], version: Version) -> Applied:
    """Return what policies make of a queue."""
    matching = [one for one in policies if is_for(one, queue.kind, version) and suits(one, queue.kind)]
    there = sorted((one for one in matching if matches(one.pattern, queue.name)), key=lambda one: -one.priority)
    user, operator = (tuple(one for one in there if one.operator is who) for who in (False, True))
    return Applied(user, operator, _together(user[:1], operator[:1]))


def effective(queue: Queue, defines: Values) -> dict[str, object]:
    """Return the values that count for a queue, under the names that policies use."""
    values: dict[str, object] = {}
    for key in KEYS:
        argument, policy = queue.arguments.get(f"x-{key}"), defines.get(key)
        if argument is None or policy is None:
            value = policy if argument is None else argument
        else:
            value = _decided(key, queue.kind, argument, policy)
        if value is not None:
            values[key] = value
    return values


def _decided(key: str, kind: str, argument: object, policy: object) -> object:
    if key in _POLICY_WINS.get(kind, frozenset()):
        return policy
    if key in SMALLEST and isinstance(argument, int) and isinstance(policy, int):
        if key == "delivery-limit" and min(argument, policy) < 0:
            return max(argument, policy)  # below 0 is no limit, so the other is one
        return min(argument, policy)
    return argument


def _together(user: Sequence[Policy], operator: Sequence[Policy]) -> dict[str, object]:
    values: dict[str, object] = {key: value for one in user for key, value in one.definition.items()}
    for one in operator:
        values.update(_operated(values, one.definition))
    return values


def _operated(values: Mapping[str, object], operator: Values) -> dict[str, object]:
    merged = dict(operator)
    for key in SMALLEST & set(operator):
        given, value = values.get(key), operator[key]
        if isinstance(value, int) and isinstance(given, int):
            merged[key] = min(given, value)
    return merged
