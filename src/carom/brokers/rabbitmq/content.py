"""The content header of AMQP 0-9-1: a message's properties and headers, to bytes and back.

The client library decodes doubles into whole numbers and fails on a time beyond the year 9999, which would
end the connection that brought it, again and again. Here every value that RabbitMQ accepts survives, and what is
not UTF-8 comes back byte for byte. RabbitMQ itself closes the connection over a double that is no number, or over a
table it cannot read, so none is written.

Rule: reading ends, with a message or with DecodeError, whatever the bytes; writing, with bytes or with ValueError.
What was read is written so that another reader sees the same value.
"""

from __future__ import annotations

import calendar
import math
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from carom.core.message import Int64, Message
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
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "surrogateescape")


def _data(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")


class Seconds(int):
    """A time beyond what a calendar has, in seconds since 1970: a number that is written as a time again."""


# -- writing ---------------------------------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    """Return a message's property list as bytes. Raises ValueError for a value AMQP has no form for."""
    try:
        return _encode(message)
    except (struct.error, TypeError, AttributeError, OverflowError, ArithmeticError) as error:
        raise ValueError(f"a property or header has no form in AMQP: {error}") from error


def _encode(message: Message) -> bytes:
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
        _write_table(table, message.headers, 0)
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
    if len(data) > _SHORT:
        raise ValueError(f"{text[:40]!r}… is longer than {_SHORT} bytes, what a property or a header's name may have")
    return _U8.pack(len(data)) + data


@lru_cache(maxsize=1024)
def _name(text: str) -> bytes:
    """Return the name of a header, which is one of a few."""
    return _short(text)


def _write_table(into: bytearray, table: Mapping[str, object], depth: int) -> None:
    place = len(into)
    into += b"\0\0\0\0"
    for key, value in table.items():
        into += _name(key)
        if type(value) is str:  # nearly every header is: it saves two calls
            data = _data(value)
            into += _TAGGED_U32.pack(b"S", len(data))
            into += data
        else:
            _write(into, value, depth)
    _U32.pack_into(into, place, len(into) - place - 4)


def _write(into: bytearray, value: object, depth: int) -> None:
    writer = _WRITERS.get(type(value))
    if writer is None:
        writer = next((write for kind, write in _WRITERS.items() if isinstance(value, kind)), None)
    if writer is None:
        raise ValueError(f"a header cannot hold a {type(value).__qualname__}")
    writer(into, value, depth)


def _write_bytes(into: bytearray, value: bytes, _depth: int) -> None:
    into += _TAGGED_U32.pack(b"x", len(value))
    into += value


def _write_text(into: bytearray, value: str, _depth: int) -> None:
    data = _data(value)
    into += _TAGGED_U32.pack(b"S", len(data))
    into += data


def _write_bool(into: bytearray, value: bool, _depth: int) -> None:  # noqa: FBT001 - it is the value to write
    into += b"t\x01" if value else b"t\x00"


def _write_int(into: bytearray, value: int, _depth: int) -> None:
    if -_INT32 <= value < _INT32:
        into += _I32.pack(b"I", value)
    else:
        _write_long(into, value, _depth)


def _write_long(into: bytearray, value: int, _depth: int) -> None:
    if not -_INT64 <= value < _INT64:
        raise ValueError("a header cannot hold an integer beyond 64 bits")
    into += _I64.pack(b"l", value)


def _write_float(into: bytearray, value: float, _depth: int) -> None:
    if not math.isfinite(value):
        raise ValueError(f"a header cannot hold the float {value}: RabbitMQ closes the connection over it")
    into += _F64.pack(b"d", value)


def _write_void(into: bytearray, _value: None, _depth: int) -> None:
    into += b"V"


def _write_list(into: bytearray, value: list[object] | tuple[object, ...], depth: int) -> None:
    deeper = _deeper(depth)
    into += b"A"
    place = len(into)
    into += b"\0\0\0\0"
    for item in value:
        _write(into, item, deeper)
    _U32.pack_into(into, place, len(into) - place - 4)


def _write_map(into: bytearray, value: Mapping[str, object], depth: int) -> None:
    deeper = _deeper(depth)
    into += b"F"
    _write_table(into, value, deeper)


def _deeper(depth: int) -> int:
    if depth >= DEPTH_LIMIT:
        raise ValueError(f"the headers are nested more than {DEPTH_LIMIT} deep")
    return depth + 1


def _write_time(into: bytearray, value: datetime, _depth: int) -> None:
    seconds = calendar.timegm(value.utctimetuple())
    if seconds < 0:
        raise ValueError(f"a header cannot hold the time {value}: those before 1970 have no form in AMQP")
    into += _TAGGED_U64.pack(b"T", seconds)


def _write_seconds(into: bytearray, value: Seconds, _depth: int) -> None:
    into += _TAGGED_U64.pack(b"T", value)


def _write_decimal(into: bytearray, value: Decimal, _depth: int) -> None:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"a header cannot hold the decimal {value}")  # noqa: TRY004 - its type is right, it is not finite
    text = "".join(map(str, digits)).lstrip("0")
    significant = text.rstrip("0")
    exponent = exponent + len(text) - len(significant) if significant else 0
    if len(significant) > _DECIMAL_DIGITS or not -_DECIMAL_PLACES <= exponent <= _DECIMAL_DIGITS:
        raise ValueError(f"a header cannot hold the decimal {value}: it has too many digits")
    whole = int(significant or "0") * 10 ** max(0, exponent) * (-1 if sign else 1)
    if not -_INT32 <= whole < _INT32:
        raise ValueError(f"a header cannot hold the decimal {value}: it has too many digits")
    into += _DECIMAL.pack(b"D", max(0, -exponent), whole)


_SHORT = 255
_DECIMAL_DIGITS = 10
_DECIMAL_PLACES = 255
_WRITERS: dict[type, Callable[[bytearray, Any, int], None]] = {
    str: _write_text,
    bool: _write_bool,
    Seconds: _write_seconds,
    Int64: _write_long,
    int: _write_int,
    float: _write_float,
    bytes: _write_bytes,
    bytearray: _write_bytes,
    type(None): _write_void,
    list: _write_list,
    tuple: _write_list,
    dict: _write_map,
    datetime: _write_time,
    Decimal: _write_decimal,
    Mapping: _write_map,
}


# -- reading ---------------------------------------------------------------------------------------------------


def decode(data: bytes, body: bytes, exchange: str, routing_key: str) -> Message:
    """Return the message of a property list. Raises DecodeError when it is none, or nested beyond any use."""
    try:
        found = _properties(data)
    except (IndexError, struct.error) as error:
        raise DecodeError("the properties end before they are complete") from error
    return Message(body=body, exchange=exchange, routing_key=routing_key, **found)


def _properties(data: bytes) -> dict[str, Any]:  # noqa: C901 - a property a branch
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
    return found


_BEFORE_TIMESTAMP = (
    (_CORRELATION_ID, "correlation_id"),
    (_REPLY_TO, "reply_to"),
    (_EXPIRATION, "expiration"),
    (_MESSAGE_ID, "id"),
)
_AFTER_TIMESTAMP = ((_TYPE, "type"), (_USER_ID, "user_id"), (_APP_ID, "app_id"))


def _read_short(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    if end > len(data):
        raise IndexError
    return _text(data[at + 1 : end]), end


def _read_table(data: bytes, at: int, depth: int) -> tuple[dict[str, object], int]:
    at += 4
    end = at + _U32.unpack_from(data, at - 4)[0]
    table: dict[str, object] = {}
    while at < end:
        start = at + 1
        at = start + data[at]
        key = _key(data[start:at])
        if data[at] == _STRING:  # nearly every header is: it saves three calls
            start = at + 5
            at = start + _U32.unpack_from(data, at + 1)[0]
            table[key] = _text(data[start:at])
        else:
            table[key], at = _read(data, at, depth)
    if at > len(data):
        raise IndexError
    return table, at


@lru_cache(maxsize=1024)
def _key(data: bytes) -> str:
    """Return the name of a header, which is one of a few."""
    return _text(data)


def _read(data: bytes, at: int, depth: int) -> tuple[object, int]:
    kind = data[at]
    at += 1
    if kind in _LONG:
        end = at + 4 + _U32.unpack_from(data, at)[0]
        if end > len(data):
            raise IndexError
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
    return datetime.fromtimestamp(seconds, UTC) if seconds <= _LAST_SECOND else Seconds(seconds)


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
