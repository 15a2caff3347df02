"""Messages as MessagePack, with every header value coming back as it was.

Rule: what AMQP can carry survives exactly: Decimal, datetime with its zone, integers of any size, bytes as bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal

from msgspec.msgpack import Ext

from carom.core.message import Headers, Message

_DECIMAL, _DATETIME, _INTEGER = 1, 2, 3
_INT64 = 1 << 63
_PLAIN = frozenset({str, bool, float, bytes, type(None)})


def pack(message: Message) -> list[object]:
    """Return the fields of a message as values that MessagePack keeps."""
    return [
        message.body,
        message.exchange,
        message.routing_key,
        message.id,
        message.correlation_id,
        message.content_type,
        message.content_encoding,
        message.type,
        message.app_id,
        message.reply_to,
        message.user_id,
        message.expiration,
        message.timestamp,
        message.priority,
        message.delivery_mode,
        pack_headers(message.headers),
    ]


def unpack(fields: list[object]) -> Message:
    """Return the message that `pack` was given."""
    return Message(**dict(zip(_FIELDS, fields, strict=True)))  # type: ignore[arg-type] # the types `pack` wrote


def pack_headers(headers: Headers) -> Headers:
    """Return headers as MessagePack keeps them; nearly always that is how they are, and then nothing is copied."""
    for value in headers.values():
        if type(value) not in _PLAIN:
            return {name: _packed(item) for name, item in headers.items()}
    return headers if type(headers) is dict else dict(headers)


def extension(code: int, data: memoryview) -> object:
    """Read a value that MessagePack has no type for."""
    text = bytes(data).decode()
    if code == _DECIMAL:
        return Decimal(text)
    if code == _DATETIME:
        return datetime.fromisoformat(text)
    if code == _INTEGER:
        return int(text)
    raise ValueError(f"a value of unknown kind {code}: it was written by a newer version")


def _packed(value: object) -> object:
    match value:
        case int() if not isinstance(value, bool):
            packed: object = int(value) if -_INT64 <= value < _INT64 else Ext(_INTEGER, str(value).encode())
        case None | bool() | float() | str() | bytes():
            packed = value
        case bytearray() | memoryview():
            packed = bytes(value)
        case Decimal():
            packed = Ext(_DECIMAL, str(value).encode())
        case datetime():
            packed = Ext(_DATETIME, value.isoformat().encode())
        case Mapping():
            packed = {key: _packed(item) for key, item in value.items()}
        case list() | tuple():
            packed = [_packed(item) for item in value]
        case _:
            raise TypeError(f"a header cannot hold {type(value).__name__}: AMQP has no such value")
    return packed


_FIELDS = (
    "body",
    "exchange",
    "routing_key",
    "id",
    "correlation_id",
    "content_type",
    "content_encoding",
    "type",
    "app_id",
    "reply_to",
    "user_id",
    "expiration",
    "timestamp",
    "priority",
    "delivery_mode",
    "headers",
)
