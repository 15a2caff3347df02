"""LZ4 blocks: raw, without a frame, as Nippy keeps what is larger than eight kilobytes.

Rule: total and bounded. No more is written than was announced, and what is no block is a DecodeError.
"""

from __future__ import annotations

from carom.errors import DecodeError

_LEAST_MATCH = 4
_MORE = 15


def unpacked(block: bytes, size: int) -> bytes:
    """Return the ``size`` bytes that a block holds. Raises DecodeError when it does not hold exactly these."""
    out = bytearray()
    at = 0
    try:
        while True:
            token = block[at]
            literals, at = _length(block, at + 1, token >> 4)
            if at + literals > len(block) or len(out) + literals > size:
                raise DecodeError("an LZ4 block holds more than it may")
            out += block[at : at + literals]
            at += literals
            if at == len(block):
                break
            distance = block[at] | block[at + 1] << 8
            match, at = _length(block, at + 2, token & _MORE)
            _repeat(out, distance, match + _LEAST_MATCH, size)
    except IndexError as error:
        raise DecodeError("an LZ4 block ends before it is complete") from error
    if len(out) != size:
        raise DecodeError(f"an LZ4 block holds {len(out)} bytes where {size} were announced")
    return bytes(out)


def _length(block: bytes, at: int, length: int) -> tuple[int, int]:
    if length == _MORE:
        while (more := block[at]) == 255:  # noqa: PLR2004 - a full byte, to be continued
            length += 255
            at += 1
        length += more
        at += 1
    return length, at


def _repeat(out: bytearray, distance: int, length: int, size: int) -> None:
    """Write again what was written so far back; it may reach into what it writes."""
    if not 0 < distance <= len(out) or len(out) + length > size:
        raise DecodeError("an LZ4 block repeats what it does not hold")
    start = len(out) - distance
    pattern = bytes(out[start : start + length])
    times, rest = divmod(length, len(pattern))
    out += pattern * times + pattern[:rest]
