"""Freezing: values written as Nippy 2.14 writes them, for Clojure programs to thaw; `nippy` says what becomes of what.

Rule: the shortest form there is, as Nippy itself chooses it; what has none is refused, never written as another thing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias
from uuid import UUID

from carom.core.nippy import DEPTH_LIMIT, EPOCH, MAGIC, PACKED, PLAIN, Keyword, Symbol
from carom.errors import ConfigurationError

PACKS_ABOVE = 8192
"""From how many bytes on Nippy packs what it froze."""

_INTEGERS = ((1 << 7, 0x64, 1), (1 << 15, 0x65, 2), (1 << 31, 0x66, 4), (1 << 63, 0x2B, 8))
_WIDTHS = ((1 << 7, 1), (1 << 15, 2), (1 << 31, 4))
_Kinds: TypeAlias = tuple[int | None, ...]
"""The types for up to 127 parts, up to 32,767, and more; None where Nippy has none."""


def freeze(value: object, pack: Callable[[bytes], bytes] | None = None) -> bytes:
    """Return a value as Nippy freezes it, packed by ``pack`` into an LZ4 block when it is large and that is given.

    Raises ConfigurationError for what has no form in it.
    """
    out = bytearray()
    try:
        _write(out, value, 0)
    except (UnicodeEncodeError, OverflowError, struct.error) as error:
        raise ConfigurationError(f"a value cannot be frozen: {error}") from error
    if pack is not None and len(out) > PACKS_ABOVE:
        return MAGIC + bytes((PACKED,)) + len(out).to_bytes(4) + pack(bytes(out))
    return MAGIC + bytes((PLAIN,)) + bytes(out)


def _write(out: bytearray, value: object, depth: int) -> None:
    if depth > DEPTH_LIMIT:
        raise ConfigurationError(f"a value that is nested more than {DEPTH_LIMIT} deep cannot be frozen")
    writer = next((write for kind, write in _WRITERS if isinstance(value, kind)), None)
    if writer is None:
        raise ConfigurationError(f"a {type(value).__qualname__} cannot be frozen: say plain values")
    writer(out, value, depth)


def _bool(out: bytearray, value: bool, _depth: int) -> None:  # noqa: FBT001 - it is the value to write
    out.append(0x08 if value else 0x09)


def _none(out: bytearray, _value: None, _depth: int) -> None:
    out.append(0x03)


def _int(out: bytearray, value: int, _depth: int) -> None:
    known = next(((kind, size) for limit, kind, size in _INTEGERS if -limit <= value < limit), None)
    if value == 0:
        out.append(0x00)
    elif known is None:
        out += b"\x2c" + _big(value)
    else:
        out.append(known[0])
        out += value.to_bytes(known[1], signed=True)


def _float(out: bytearray, value: float, _depth: int) -> None:
    data = struct.pack(">d", value)
    out += b"\x3d" + data if any(data) else b"\x37"


def _keyword(out: bytearray, value: Keyword, _depth: int) -> None:
    _counted(out, value.encode(), (0x6A, None, 0x0E))


def _symbol(out: bytearray, value: Symbol, _depth: int) -> None:
    _counted(out, value.encode(), (0x38, None, None))


def _str(out: bytearray, value: str, _depth: int) -> None:
    _counted(out, value.encode(), (0x69, 0x10, 0x0D), empty=0x22)


def _bytes(out: bytearray, value: bytes, _depth: int) -> None:
    _counted(out, value, (0x07, 0x0F, 0x02), empty=0x35)


def _datetime(out: bytearray, value: datetime, _depth: int) -> None:
    if value.tzinfo is None:
        raise ConfigurationError(f"{value} cannot be frozen: it is a time nowhere, give it a time zone")
    out += b"\x5a" + ((value - EPOCH) // timedelta(milliseconds=1)).to_bytes(8, signed=True)


def _uuid(out: bytearray, value: UUID, _depth: int) -> None:
    out += b"\x5b" + value.bytes


def _decimal(out: bytearray, value: Decimal, _depth: int) -> None:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ConfigurationError(f"{value} cannot be frozen: it is no number")
    out += b"\x3e" + _big(int(Decimal((sign, digits, 0)))) + struct.pack(">i", -exponent)


def _fraction(out: bytearray, value: Fraction, _depth: int) -> None:
    out += b"\x46" + _big(value.numerator) + _big(value.denominator)


def _dict(out: bytearray, value: dict[object, object], depth: int) -> None:
    _count(out, len(value), (0x70, 0x21, 0x1E), 0x13)
    _parts(out, (part for pair in value.items() for part in pair), depth)


def _list(out: bytearray, value: list[object], depth: int) -> None:
    exact = {2: 0x71, 3: 0x72}.get(len(value))
    if exact is None:
        _count(out, len(value), (0x6E, 0x45, 0x15), 0x11)
    else:
        out.append(exact)
    _parts(out, value, depth)


def _tuple(out: bytearray, value: tuple[object, ...], depth: int) -> None:
    _count(out, len(value), (0x24, 0x45, 0x15), 0x23)  # a long one is a vector: there are no long lists here
    _parts(out, value, depth)


def _set(out: bytearray, value: Iterable[object], depth: int) -> None:
    members = list(value)
    _count(out, len(members), (0x6F, None, None), 0x12)
    _parts(out, members, depth)


def _parts(out: bytearray, parts: Iterable[object], depth: int) -> None:
    for part in parts:
        _write(out, part, depth + 1)


def _big(value: int) -> bytes:
    magnitude = value if value >= 0 else ~value
    data = value.to_bytes(magnitude.bit_length() // 8 + 1, signed=True)
    return len(data).to_bytes(4) + data


def _count(out: bytearray, count: int, kinds: _Kinds, empty: int | None) -> None:
    if not count and empty is not None:
        out.append(empty)
        return
    for kind, (limit, width) in zip(kinds, _WIDTHS, strict=True):
        if kind is not None and count < limit:
            out.append(kind)
            out += count.to_bytes(width)
            return
    raise ConfigurationError(f"a value of {count} parts cannot be frozen: Nippy has no form for so many of its kind")


def _counted(out: bytearray, data: bytes, kinds: _Kinds, empty: int | None = None) -> None:
    _count(out, len(data), kinds, empty)
    out += data


_WRITERS: tuple[tuple[type | tuple[type, ...], Callable[[bytearray, Any, int], None]], ...] = (
    (type(None), _none),
    (bool, _bool),
    (int, _int),
    (float, _float),
    (Keyword, _keyword),
    (Symbol, _symbol),
    (str, _str),
    (bytes, _bytes),
    (dict, _dict),
    (list, _list),
    (tuple, _tuple),
    ((frozenset, set), _set),
    (datetime, _datetime),
    (UUID, _uuid),
    (Decimal, _decimal),
    (Fraction, _fraction),
)
"""Special kinds of text before text."""
