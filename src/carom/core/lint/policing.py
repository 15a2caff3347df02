"""Policies: which hide one another, which change what was declared, and which do nothing.

Rule: what a policy is meant for is not judged; what is said is what it does not do, or does behind a declaration.
"""

from __future__ import annotations

from collections.abc import Iterator

from carom.core.lint.findings import Finding, Level, found
from carom.core.lint.policies import KEYS, is_for, matches, suits
from carom.core.lint.seen import Policy
from carom.core.lint.versions import LIMITED
from carom.core.lint.view import Looked, View, knows


def findings(view: View) -> Iterator[Finding]:
    """Yield what is wrong with the policies of a vhost."""
    for policy in view.vhost.policies:
        yield from _policy(view, policy)
    yield from _shadows(view)
    for one in view.queues.values():
        yield from _overrides(view, one)


def _policy(view: View, policy: Policy) -> Iterator[Finding]:
    where = _place(view, policy)
    if matches(policy.pattern, "") is None:
        yield found("policy-unreadable", where, f"its pattern {policy.pattern!r} is no regular expression known here")
        return
    if "ha-mode" in policy.definition:
        gone = knows(view.broker) and view.broker.version >= LIMITED
        yield found("mirrored", where, "mirrors classic queues", Level.ERROR if gone else None)
    useful = set(policy.definition) & set(KEYS)
    left_out = [
        one.name
        for one in view.queues.values()
        if is_for(policy, one.kind, view.broker.version)
        and matches(policy.pattern, one.name)
        and not suits(policy, one.kind)
    ]
    if useful and left_out:
        says = f"is not applied to {_listed(left_out)}: not every key of it is for that kind of queue"
        yield found("policy-not-applied", where, says)


def _shadows(view: View) -> Iterator[Finding]:
    hidden: dict[tuple[str, str, bool], tuple[Policy, Policy, set[str], list[str]]] = {}
    for one in view.queues.values():
        for there in (one.applied.matching, one.applied.operators):
            for other in there[1:]:
                lost = _lost(there[0], other)
                tied = other.priority == there[0].priority and there[0].definition != other.definition
                if lost or tied:
                    pair = (there[0].name, other.name, tied)
                    hidden.setdefault(pair, (there[0], other, lost, []))[3].append(one.name)
    for (_, _, tied), (winner, loser, lost, names) in hidden.items():
        if tied:
            says = f"has the same priority, {winner.priority}, as {winner.name!r}, and both match {_listed(names)}"
            yield found("policy-tie", _place(view, loser), says)
        else:
            says = (
                f"does not apply to {_listed(names)}, because {winner.name!r} does: not set are {_listed(sorted(lost))}"
            )
            yield found("policy-shadowed", _place(view, loser), says)


def _lost(winner: Policy, loser: Policy) -> set[str]:
    return set(loser.definition) - set(winner.definition)


def _overrides(view: View, one: Looked) -> Iterator[Finding]:
    where = view.place("queue", one.name)
    for key, value in one.values.items():
        argument, policy = one.queue.arguments.get(f"x-{key}"), one.applied.defines.get(key)
        if argument is None or policy is None or argument == policy:
            continue
        if value == argument and value != policy:
            if key not in {"message-ttl", "max-length", "max-length-bytes", "delivery-limit"}:
                yield found(
                    "policy-ignored", where, f"was declared with {key} {argument!r}, and a policy sets {policy!r}"
                )
        else:
            yield found(
                "policy-overrides", where, f"was declared with {key} {argument!r}, and a policy makes it {value!r}"
            )


def _place(view: View, policy: Policy) -> str:
    return view.place("operator policy" if policy.operator else "policy", policy.name)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""  # noqa: PLR2004 - as many as one reads at a glance
    return ", ".join(names[:3]) + more
