"""Nippy 2.14, the form in which Clojure programs freeze their values: what is data in it, and nothing else.

    nil, booleans, longs, doubles, bigints, bigdecs, ratios      None, bool, int, float, Decimal, Fraction
    strings, keywords, symbols, characters, bytes                str, Keyword, Symbol, str, bytes
    maps, vectors, lists, sets, dates, uuids                     dict, list, tuple, frozenset, datetime, UUID

Nippy can also freeze Java objects and what only the Clojure reader can read; thawing these runs code that the message
names. They are refused by their type, whatever they hold. Metadata of a value is left out.

Rule: reading ends, with a value or with DecodeError, whatever the bytes; it never makes more than was announced.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from uuid import UUID

from carom.core.blocks import unpacked
from carom.errors import DecodeError

MAGIC = b"NPY"
PLAIN, PACKED = 0x00, 0x08
SIZE_LIMIT = 16 * 1024 * 1024
"""What a packed value may announce: a few bytes can unpack to anything."""
DEPTH_LIMIT = 64

_DANGEROUS = frozenset({5, 6, *range(46, 53), 75, 76, 80, 82, *range(128, 256)})
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Keyword(str):
    """A Clojure keyword, without its colon."""

    __slots__ = ()


class Symbol(str):
    """A Clojure symbol."""

    __slots__ = ()


def thaw(data: bytes) -> object:
    """Return the value that was frozen. Raises DecodeError."""
    if data[:3] != MAGIC or len(data) < 5:  # noqa: PLR2004 - the head and a type
        raise DecodeError("the body is not frozen by Nippy: it does not begin with NPY")
    if data[3] == PLAIN:
        frozen = data[4:]
    elif data[3] == PACKED:
        size = int.from_bytes(data[4:8])
        if size > SIZE_LIMIT:
            raise DecodeError(f"a frozen value announces {size} bytes; {SIZE_LIMIT} is the limit")
        frozen = unpacked(data[8:], size)
    else:
        raise DecodeError(f"Nippy froze the body in the manner {data[3]:#04x}, compressed otherwise or encrypted")
    thawing = _Thawing(frozen)
    try:
        value = thawing.value(0)
    except (struct.error, UnicodeDecodeError, OverflowError, ArithmeticError) as error:
        raise DecodeError(f"a frozen value is broken: {error}") from error
    if thawing.at != len(frozen):
        raise DecodeError(f"{len(frozen) - thawing.at} bytes are left over after a frozen value")
    return value


class _Thawing:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def value(self, depth: int) -> object:
        if depth > DEPTH_LIMIT:
            raise DecodeError(f"a frozen value is nested more than {DEPTH_LIMIT} deep")
        kind = self.number(1, signed=False)
        if kind in _DANGEROUS:
            raise DecodeError(f"type {kind} of Nippy runs code when it is thawed: it is refused")
        if kind in _MANY:
            many, width = _MANY[kind]
            return self.many(many, self.count(width) if width > 0 else -width, depth)
        if kind in _SINGLE:
            return _SINGLE[kind](self)
        if kind != _META:
            raise DecodeError(f"type {kind} of Nippy is not one that is read")
        self.value(depth + 1)
        return self.value(depth + 1)

    def take(self, size: int) -> bytes:
        taken = self.data[self.at : self.at + size]
        if len(taken) != size:
            raise DecodeError("a frozen value ends before it is complete")
        self.at += size
        return taken

    def number(self, size: int, *, signed: bool = True) -> int:
        return int.from_bytes(self.take(size), signed=signed)

    def count(self, width: int) -> int:
        count = self.number(width)
        if not 0 <= count <= len(self.data) - self.at:
            raise DecodeError(f"a frozen value announces {count} more parts than it has bytes")
        return count

    def counted(self, width: int) -> bytes:
        return self.take(self.count(width))

    def big(self) -> int:
        return int.from_bytes(self.counted(4), signed=True)

    def many(self, make: type, count: int, depth: int) -> object:
        if make is not dict:
            items = [self.value(depth + 1) for _ in range(count)]
            if make is not frozenset:
                return make(items)
            members = frozenset(map(_key, items))
            if len(members) != count:
                raise DecodeError("a frozen set has a member twice, as Python sees it")
            return members
        found: dict[Hashable, object] = {}
        for _ in range(count):
            key = _key(self.value(depth + 1))
            if key in found:
                raise DecodeError(f"a frozen map has the key {key!r} twice, as Python sees it")
            found[key] = self.value(depth + 1)
        return found

    def decimal(self) -> Decimal:
        whole = self.big()
        return Decimal((int(whole < 0), Decimal(whole).as_tuple().digits, -self.number(4)))

    def ratio(self) -> Fraction:
        return Fraction(self.big(), self.big())


def _key(value: object) -> Hashable:
    """Return a value as a key of a map or a member of a set: a vector becomes a tuple."""
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    if not isinstance(value, Hashable):
        raise DecodeError("a frozen value has a map as a key or in a set, which Python cannot have")
    return value


def _date(thawing: _Thawing) -> datetime:
    return EPOCH + timedelta(milliseconds=thawing.number(8))


_META = 0x19
_MANY: dict[int, tuple[type, int]] = {
    0x13: (dict, -0),
    0x70: (dict, 1),
    0x21: (dict, 2),
    0x1E: (dict, 4),
    0x11: (list, -0),
    0x71: (list, -2),
    0x72: (list, -3),
    0x6E: (list, 1),
    0x45: (list, 2),
    0x15: (list, 4),
    0x12: (frozenset, -0),
    0x6F: (frozenset, 1),
    0x23: (tuple, -0),
    0x24: (tuple, 1),
    0x26: (tuple, 1),
}
"""What there are many of: what becomes of them, and how wide the count is; one that is not positive is the count."""


def _constant(value: object) -> Callable[[_Thawing], object]:
    return lambda _: value


def _number(size: int) -> Callable[[_Thawing], object]:
    return lambda thawing: thawing.number(size)


def _text(make: type[str], width: int) -> Callable[[_Thawing], object]:
    return lambda thawing: make(thawing.counted(width).decode())


def _data(width: int) -> Callable[[_Thawing], object]:
    return lambda thawing: thawing.counted(width)


_SINGLE: dict[int, Callable[[_Thawing], object]] = {
    0x03: _constant(None),
    0x08: _constant(True),
    0x09: _constant(False),
    0x00: _constant(0),
    0x37: _constant(0.0),
    0x22: _constant(""),
    0x35: _constant(b""),
    0x64: _number(1),
    0x65: _number(2),
    0x66: _number(4),
    0x2A: _number(4),
    0x2B: _number(8),
    0x69: _text(str, 1),
    0x10: _text(str, 2),
    0x0D: _text(str, 4),
    0x6A: _text(Keyword, 1),
    0x0E: _text(Keyword, 4),
    0x38: _text(Symbol, 1),
    0x07: _data(1),
    0x0F: _data(2),
    0x02: _data(4),
    0x3D: lambda thawing: struct.unpack(">d", thawing.take(8))[0],
    0x3C: lambda thawing: struct.unpack(">f", thawing.take(4))[0],
    0x2C: _Thawing.big,
    0x3E: _Thawing.decimal,
    0x46: _Thawing.ratio,
    0x0A: lambda thawing: thawing.take(2).decode("utf-16-be"),
    0x5A: _date,
    0x5B: lambda thawing: UUID(bytes=thawing.take(16)),
}
