"""The content header of AMQP 0-9-1: a message's properties and headers, to bytes and back.

The client library decodes doubles into whole numbers and fails on a time beyond the year 9999, which would
end the connection that brought it, again and again. Here every value that RabbitMQ accepts survives, and what is
not UTF-8 comes back byte for byte.

Rule: reading is total up to `DEPTH_LIMIT`; what was read is written so that another reader sees the same value.
"""

from __future__ import annotations

import calendar
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from carom.core.message import Message
from carom.errors import DecodeError

DEPTH_LIMIT = 64
"""How deep tables may be nested. The broker has no limit of its own, and a stack has."""

_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _DELIVERY_MODE = 1 << 15, 1 << 14, 1 << 13, 1 << 12
_PRIORITY, _CORRELATION_ID, _REPLY_TO, _EXPIRATION = 1 << 11, 1 << 10, 1 << 9, 1 << 8
_MESSAGE_ID, _TIMESTAMP, _TYPE, _USER_ID = 1 << 7, 1 << 6, 1 << 5, 1 << 4
_APP_ID, _CLUSTER_ID, _MORE = 1 << 3, 1 << 2, 1
_PERSISTENT = 2
_INT32, _INT64 = 1 << 31, 1 << 63
_LAST_SECOND = 253_402_300_799

_U8, _U16, _U32, _U64 = struct.Struct(">B"), struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_I32, _I64, _F64 = struct.Struct(">ci"), struct.Struct(">cq"), struct.Struct(">cd")
_TAGGED_U32, _TAGGED_U64 = struct.Struct(">cI"), struct.Struct(">cQ")
_DECIMAL = struct.Struct(">cBi")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _data(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# -- writing ---------------------------------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    """Return a message's property list as bytes. Raises ValueError for a value AMQP has no form for."""
    flags = _DELIVERY_MODE
    pieces = [b""]
    if message.content_type:
        flags |= _CONTENT_TYPE
        pieces.append(_short(message.content_type))
    if message.content_encoding:
        flags |= _CONTENT_ENCODING
        pieces.append(_short(message.content_encoding))
    if message.headers:
        flags |= _HEADERS
        table = bytearray()
        _write_table(table, message.headers)
        pieces.append(bytes(table))
    pieces.append(b"\x01" if message.delivery_mode != _PERSISTENT else b"\x02")
    if message.priority is not None:
        flags |= _PRIORITY
        pieces.append(_U8.pack(message.priority))
    for flag, value in (
        (_CORRELATION_ID, message.correlation_id),
        (_REPLY_TO, message.reply_to),
        (_EXPIRATION, message.expiration),
        (_MESSAGE_ID, message.id),
    ):
        if value:
            flags |= flag
            pieces.append(_short(value))
    if message.timestamp is not None:
        flags |= _TIMESTAMP
        pieces.append(_U64.pack(message.timestamp))
    for flag, value in ((_TYPE, message.type), (_USER_ID, message.user_id), (_APP_ID, message.app_id)):
        if value:
            flags |= flag
            pieces.append(_short(value))
    pieces[0] = _U16.pack(flags)
    return b"".join(pieces)


def _short(text: str) -> bytes:
    data = _data(text)
    return _U8.pack(len(data)) + data


def _write_table(into: bytearray, table: Mapping[str, object]) -> None:
    place = len(into)
    into += b"\0\0\0\0"
    for key, value in table.items():
        into += _short(key)
        _write(into, value)
    _U32.pack_into(into, place, len(into) - place - 4)


def _write(into: bytearray, value: object) -> None:
    writer = _WRITERS.get(type(value))
    if writer is None:
        writer = next((write for kind, write in _WRITERS.items() if isinstance(value, kind)), None)
    if writer is None:
        raise ValueError(f"a header cannot hold a {type(value).__qualname__}")
    writer(into, value)


def _write_bytes(into: bytearray, value: bytes) -> None:
    into += _TAGGED_U32.pack(b"x", len(value))
    into += value


def _write_text(into: bytearray, value: str) -> None:
    data = _data(value)
    into += _TAGGED_U32.pack(b"S", len(data))
    into += data


def _write_int(into: bytearray, value: int) -> None:
    if -_INT32 <= value < _INT32:
        into += _I32.pack(b"I", value)
    elif -_INT64 <= value < _INT64:
        into += _I64.pack(b"l", value)
    else:
        raise ValueError(f"a header cannot hold an integer beyond 64 bits: {str(value)[:30]}")


def _write_list(into: bytearray, value: list[object] | tuple[object, ...]) -> None:
    into += b"A"
    place = len(into)
    into += b"\0\0\0\0"
    for item in value:
        _write(into, item)
    _U32.pack_into(into, place, len(into) - place - 4)


def _write_map(into: bytearray, value: Mapping[str, object]) -> None:
    into += b"F"
    _write_table(into, value)


def _write_time(into: bytearray, value: datetime) -> None:
    into += _TAGGED_U64.pack(b"T", max(0, calendar.timegm(value.utctimetuple())))


def _write_decimal(into: bytearray, value: Decimal) -> None:
    sign, digits, exponent = value.normalize().as_tuple()
    if not isinstance(exponent, int) or not -_DECIMAL_PLACES <= exponent <= _DECIMAL_DIGITS:
        raise ValueError(f"a header cannot hold the decimal {value}")
    whole = int("".join(map(str, digits))) * 10 ** max(0, exponent) * (-1 if sign else 1)
    if not -_INT32 <= whole < _INT32:
        raise ValueError(f"a header cannot hold the decimal {value}: it has too many digits")
    into += _DECIMAL.pack(b"D", max(0, -exponent), whole)


_DECIMAL_DIGITS = 10
_DECIMAL_PLACES = 255
_WRITERS: dict[type, Callable[[bytearray, Any], None]] = {
    str: _write_text,
    bool: lambda into, value: into.extend(b"t\x01" if value else b"t\x00"),
    int: _write_int,
    float: lambda into, value: into.extend(_F64.pack(b"d", value)),
    bytes: _write_bytes,
    type(None): lambda into, _: into.extend(b"V"),
    list: _write_list,
    tuple: _write_list,
    dict: _write_map,
    datetime: _write_time,
    Decimal: _write_decimal,
    Mapping: _write_map,
}


# -- reading ---------------------------------------------------------------------------------------------------


def decode(data: bytes, body: bytes, exchange: str, routing_key: str) -> Message:  # noqa: C901 - a property a branch
    """Return the message of a property list. Raises DecodeError when its headers are nested beyond any use."""
    flags = _U16.unpack_from(data)[0]
    at = 2
    more = flags
    while more & _MORE:  # nobody defines properties beyond the first fifteen; their flags are skipped
        more = _U16.unpack_from(data, at)[0]
        at += 2
    found: dict[str, Any] = {"delivery_mode": 1}
    if flags & _CONTENT_TYPE:
        found["content_type"], at = _read_short(data, at)
    if flags & _CONTENT_ENCODING:
        found["content_encoding"], at = _read_short(data, at)
    if flags & _HEADERS:
        found["headers"], at = _read_table(data, at, 0)
    if flags & _DELIVERY_MODE:
        found["delivery_mode"] = data[at]
        at += 1
    if flags & _PRIORITY:
        found["priority"] = data[at]
        at += 1
    for flag, name in _BEFORE_TIMESTAMP:
        if flags & flag:
            found[name], at = _read_short(data, at)
    if flags & _TIMESTAMP:
        found["timestamp"] = _U64.unpack_from(data, at)[0]
        at += 8
    for flag, name in _AFTER_TIMESTAMP:
        if flags & flag:
            found[name], at = _read_short(data, at)
    return Message(body=body, exchange=exchange, routing_key=routing_key, **found)


_BEFORE_TIMESTAMP = (
    (_CORRELATION_ID, "correlation_id"),
    (_REPLY_TO, "reply_to"),
    (_EXPIRATION, "expiration"),
    (_MESSAGE_ID, "id"),
)
_AFTER_TIMESTAMP = ((_TYPE, "type"), (_USER_ID, "user_id"), (_APP_ID, "app_id"))


def _read_short(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return _text(data[at + 1 : end]), end


def _read_table(data: bytes, at: int, depth: int) -> tuple[dict[str, object], int]:
    at += 4
    end = at + _U32.unpack_from(data, at - 4)[0]
    table: dict[str, object] = {}
    while at < end:
        key, at = _read_short(data, at)
        table[key], at = _read(data, at, depth)
    return table, at


def _read(data: bytes, at: int, depth: int) -> tuple[object, int]:
    kind = data[at]
    at += 1
    if kind in _LONG:
        end = at + 4 + _U32.unpack_from(data, at)[0]
        value = data[at + 4 : end]
        return (_text(value) if kind == _STRING else value), end
    if kind in _FIXED:
        form, make = _FIXED[kind]
        return make(*form.unpack_from(data, at)), at + form.size
    if depth >= DEPTH_LIMIT:
        raise DecodeError(f"the headers are nested more than {DEPTH_LIMIT} deep")
    if kind == _TABLE:
        return _read_table(data, at, depth + 1)
    if kind == _ARRAY:
        at += 4
        end = at + _U32.unpack_from(data, at - 4)[0]
        items: list[object] = []
        while at < end:
            item, at = _read(data, at, depth + 1)
            items.append(item)
        return items, at
    if kind == _VOID:
        return None, at
    raise DecodeError(f"a header is of the type {chr(kind)!r}, which AMQP 0-9-1 does not have")


def _time(seconds: int) -> object:
    """Return a time; one beyond what a calendar has stays a number."""
    return datetime.fromtimestamp(seconds, UTC) if seconds <= _LAST_SECOND else seconds


def _decimal(places: int, whole: int) -> Decimal:
    return Decimal(whole).scaleb(-places)


def _number(value: int) -> int:
    return value


_LONG = frozenset(b"Sx")
_STRING, _TABLE, _ARRAY, _VOID = b"SFAV"
_FIXED: dict[int, tuple[struct.Struct, Callable[..., object]]] = {
    ord("t"): (_U8, bool),
    ord("b"): (struct.Struct(">b"), _number),
    ord("B"): (_U8, _number),
    ord("s"): (struct.Struct(">h"), _number),
    ord("U"): (struct.Struct(">h"), _number),
    ord("u"): (_U16, _number),
    ord("I"): (struct.Struct(">i"), _number),
    ord("i"): (_U32, _number),
    ord("l"): (struct.Struct(">q"), _number),
    ord("L"): (struct.Struct(">q"), _number),
    ord("f"): (struct.Struct(">f"), float),
    ord("d"): (struct.Struct(">d"), float),
    ord("D"): (struct.Struct(">Bi"), _decimal),
    ord("T"): (_U64, _time),
}
