"""Rows: a message as the columns of an outbox, and back.

Properties and headers are JSON in text: readable by people and by every database, and the same for all of them. What
JSON has no form for is an object with one name that begins with a dollar: ``{"$bytes": "3q2+7w=="}``.

Rule: what comes back is what was given, type for type; what could not come back is refused when it is written.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from carom.core.message import NAME_LIMIT, Headers, Message
from carom.core.relaying import Entry, Row
from carom.errors import ConfigurationError

COLUMNS = ("id", "exchange", "routing_key", "body", "content_type", "properties", "headers", "ordering_key")
"""What is written of a message, in the order of `values`; behind it come ``wait_ms`` and ``at_ms``."""
CLAIMED = ("seq", *COLUMNS, "attempts")
"""What a relay reads, in the order of `row`."""

DEPTH_LIMIT = 64
_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder()
_PLAIN = frozenset({str, int, bool, type(None)})
_TEXTS = ("correlation_id", "content_encoding", "type", "app_id", "reply_to", "user_id", "expiration")
_PERSISTENT = 2
_BYTES, _TIME, _DECIMAL, _MAP = "$bytes", "$time", "$decimal", "$map"


def values(entry: Entry) -> tuple[object, ...]:
    """Return an entry as the values of a row: `COLUMNS`, the wait, the time of day. Raises ConfigurationError."""
    message = entry.message
    for name in (message.id, message.exchange, message.routing_key, message.content_type, entry.ordering_key):
        if len(name) > _SHORT or not name.isascii() or "\0" in name:
            _check(name, message)
    wait_ms = entry.wait_ms if entry.wait_ms > 0 and entry.at_ms is None else None
    return (
        message.id,
        message.exchange,
        message.routing_key,
        message.body,
        message.content_type,
        _properties(message),
        _headers(message),
        entry.ordering_key,
        wait_ms,
        entry.at_ms,
    )


def row(found: Sequence[Any]) -> Row:
    """Return what a relay takes, from the values of `CLAIMED`. Raises ValueError for what nobody here wrote."""
    seq, identity, exchange, routing_key, body, content_type, properties, headers, ordering_key, attempts = found
    if properties or headers:
        message = Message(
            body=bytes(body),
            exchange=exchange,
            routing_key=routing_key,
            id=identity,
            content_type=content_type,
            headers=_read_map(_loads(headers)) if headers else {},
            **(_loads(properties) if properties else {}),
        )
    else:
        message = Message(
            body=bytes(body), exchange=exchange, routing_key=routing_key, id=identity, content_type=content_type
        )
    return Row(seq, message, ordering_key, attempts)


_SHORT = NAME_LIMIT // 4
"""A text of so many characters fits for certain."""


def _check(name: str, message: Message) -> None:
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        length = -1
    if not 0 <= length <= NAME_LIMIT or "\0" in name:
        raise ConfigurationError(
            f"the message {message.id} to {message.routing_key[:80]!r} cannot be kept in an outbox: {name[:80]!r} is "
            f"longer than {NAME_LIMIT} bytes, or no text of UTF-8 without a zero byte"
        )


def _properties(message: Message) -> str:
    found: dict[str, object] = {name: text for name in _TEXTS if (text := getattr(message, name))}
    if message.timestamp is not None:
        found["timestamp"] = message.timestamp
    if message.priority is not None:
        found["priority"] = message.priority
    if message.delivery_mode != _PERSISTENT:
        found["delivery_mode"] = message.delivery_mode
    return _dumps(found) if found else ""


def _headers(message: Message) -> str:
    headers = message.headers
    if not headers:
        return ""
    try:
        for name, value in headers.items():
            if type(value) not in _PLAIN or name[:1] == "$":
                return _dumps(_map_written(headers, 0))
        return _dumps(headers if type(headers) is dict else dict(headers))
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigurationError(
            f"the headers of message {message.id} to {message.routing_key[:80]!r} cannot be kept in an outbox: {error}"
        ) from error


def _dumps(value: object) -> str:
    try:
        return _ENCODER.encode(value).decode()
    except (UnicodeEncodeError, OverflowError):  # half a character, an integer beyond 64 bits
        return json.dumps(value, separators=(",", ":"))


def _loads(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


def _written(value: object, depth: int) -> object:
    if depth > DEPTH_LIMIT + 1:  # what is in the innermost list
        raise ValueError(f"they are nested more than {DEPTH_LIMIT} deep")
    for kind, write in _WRITERS:
        if isinstance(value, kind):
            return write(value, depth)
    raise TypeError(f"AMQP has no such value as {type(value).__name__}")


def _finite(value: float, _depth: int) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} has no form in AMQP")
    return float(value)


def _map_written(value: Mapping[Any, object], depth: int) -> object:
    if not all(isinstance(name, str) for name in value):
        raise TypeError("a header's name is no text")
    plain = {str(name): _written(item, depth + 1) for name, item in value.items()}
    return {_MAP: plain} if any(name.startswith("$") for name in plain) else plain


def _read(value: object) -> object:
    if isinstance(value, dict):
        if len(value) == 1:
            (name,) = value
            if name in _READERS:
                return _READERS[name](value[name])
        return {name: _read(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_read(item) for item in value]
    return value


def _read_map(value: object) -> Headers:
    if type(value) is dict and not any(type(item) in {dict, list} for item in value.values()):
        return value
    found = _read(value)
    if not isinstance(found, dict):
        raise ValueError("the headers are no object")  # noqa: TRY004 - what is written there is wrong, not a caller
    return found


_READERS: dict[str, Callable[[Any], object]] = {
    _BYTES: b64decode,
    _TIME: datetime.fromisoformat,
    _DECIMAL: Decimal,
    _MAP: lambda value: {name: _read(item) for name, item in value.items()},
}

_WRITERS: tuple[tuple[Any, Callable[[Any, int], object]], ...] = (
    ((bool, type(None)), lambda value, _: value),
    (str, lambda value, _: str(value)),
    (int, lambda value, _: int(value)),
    (float, _finite),
    ((bytes, bytearray, memoryview), lambda value, _: {_BYTES: b64encode(value).decode()}),
    (datetime, lambda value, _: {_TIME: value.isoformat()}),
    (Decimal, lambda value, _: {_DECIMAL: str(value)}),
    (Mapping, _map_written),
    ((list, tuple), lambda value, depth: [_written(item, depth + 1) for item in value]),
)
