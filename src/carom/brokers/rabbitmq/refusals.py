"""What RabbitMQ says when something is declared that exists otherwise, read and told again as a sentence.

Rule: a sentence names the thing, the argument, both values and the command to run; what cannot be read is quoted.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

from carom.core.topology import Argument, Exchange, ExchangeKind, Queue, arguments

Thing: TypeAlias = Exchange | Queue

_VALUE = r"none|the value '.*' of type '\w+'|'.*'"
_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<argument>[^']+)' for (?:queue|exchange) '.+' in vhost '(?P<vhost>.*)': "
    rf"received (?P<wanted>{_VALUE}) but current is (?P<actual>{_VALUE})",
    re.DOTALL,
)
_TYPED = re.compile(r"the value '(?P<value>.*)' of type '(?P<type>\w+)'", re.DOTALL)
_TEXT = frozenset({"longstr", "binary", "shortstr"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """One difference, as the server names it."""

    argument: str
    vhost: str
    wanted: str | None
    actual: str | None
    type: str
    """The type of the actual value, where the server says it."""


def read(words: str) -> Refusal | None:
    """Read the server's words; None when they are others, or cut off."""
    found = _INEQUIVALENT.search(words)
    if found is None:
        return None
    (wanted, _), (actual, kind) = _value(found["wanted"]), _value(found["actual"])
    return Refusal(found["argument"], found["vhost"], wanted, actual, kind)


def sentence(thing: Thing, words: str, refusal: Refusal | None) -> str:
    """Say how a thing differs and what to do."""
    if refusal is None:
        if "RESOURCE_LOCKED" in words:
            return f"{called(thing)} belongs to one other connection alone: give yours another name ({words})"
        return f"{called(thing)} is not as declared: {words}"
    if isinstance(thing, Queue):
        remove = f"rabbitmqctl -p {shlex.quote(refusal.vhost)} delete_queue {shlex.quote(thing.name)}"
        then = f"when it is empty, remove it with '{remove}'"
    else:
        remove = f"rabbitmqadmin -V {shlex.quote(refusal.vhost)} delete exchange name={shlex.quote(thing.name)}"
        then = f"remove it, with its bindings, with '{remove}'"
    return (
        f"{called(thing)} has {refusal.argument} {_said(refusal.actual)}, and {_said(refusal.wanted)} is wanted: "
        f"{then} and declare again, or give it another name"
    )


def as_it_is(thing: Thing, refusal: Refusal) -> Thing | None:
    """Return the thing with the server's value in the place of its own; None when that makes no difference."""
    changed = _queue_as_it_is(thing, refusal) if isinstance(thing, Queue) else _exchange_as_it_is(thing, refusal)
    return None if changed == thing else changed


def called(thing: Thing) -> str:
    """Name a thing in a sentence."""
    return f"{'queue' if isinstance(thing, Queue) else 'exchange'} {thing.name!r}"


def _queue_as_it_is(queue: Queue, refusal: Refusal) -> Queue | None:
    if refusal.argument == "durable":
        return replace(queue, durable=refusal.actual == "true")
    if not refusal.argument.startswith("x-"):
        return None
    value = None if refusal.actual is None else _typed(refusal.actual, refusal.type, queue.argument(refusal.argument))
    return replace(queue, arguments=arguments({**dict(queue.arguments), refusal.argument: value}))


def _exchange_as_it_is(exchange: Exchange, refusal: Refusal) -> Exchange | None:
    if refusal.argument == "type":
        return replace(exchange, kind=cast("ExchangeKind", refusal.actual))
    if refusal.argument == "durable":
        return replace(exchange, durable=refusal.actual == "true")
    if refusal.argument == "internal":
        return replace(exchange, internal=refusal.actual == "true")
    if refusal.argument == "alternate-exchange":
        return replace(exchange, alternate=refusal.actual)
    return None


def _typed(text: str, kind: str, wanted: Argument | None) -> Argument:
    """Return a value from the server's words; where it does not say its type, it is that of the wanted one."""
    if kind in _TEXT or (not kind and isinstance(wanted, str)):
        return text
    if kind == "bool" or (not kind and isinstance(wanted, bool)):
        return text == "true"
    return int(text) if re.fullmatch(r"-?[0-9]{1,19}", text) else text


def _value(words: str) -> tuple[str | None, str]:
    if words == "none":
        return None, ""
    typed = _TYPED.fullmatch(words)
    return (typed["value"], typed["type"]) if typed else (words[1:-1], "")


def _said(value: str | None) -> str:
    return "not set" if value is None else value
