"""The client library's connection, reading its frames in one pass and leaving content headers undecoded.

The library cuts every frame off the front of its buffer, which copies the rest each time, and decodes each content
header with a decoder that can fail (see `content`). Both happen in one overridden method; everything else, the
protocol included, is the library's own.

Rule: what arrives is either a whole frame, handed on in its order, or stays in the buffer.
"""

from __future__ import annotations

import struct

from pika import exceptions, frame, spec
from pika.adapters.asyncio_connection import AsyncioConnection

_HEAD = struct.Struct(">BHL")
_CONTENT = struct.Struct(">HHQ")
_METHOD = struct.Struct(">I")
_PROTOCOL = b"AMQP"


class Connection(AsyncioConnection):  # type: ignore[misc]  # the library has no types
    """An AMQP connection whose deliveries carry their property list as bytes."""

    _frame_buffer: bytes

    def _on_data_available(self, data_in: bytes) -> None:
        buffer = self._frame_buffer + data_in if self._frame_buffer else data_in
        if buffer[:4] == _PROTOCOL:
            super()._on_data_available(data_in)
            return
        at, size = 0, len(buffer)
        while size - at >= _HEAD.size:
            kind, channel, length = _HEAD.unpack_from(buffer, at)
            start = at + _HEAD.size
            end = start + length
            if end >= size:
                break
            if buffer[end] != spec.FRAME_END:
                raise exceptions.InvalidFrameError("a frame does not end where it says")
            at = end + 1
            self._process_frame(_frame(kind, channel, buffer, start, end))
            if self.is_closed:
                return
        self._frame_buffer = buffer[at:]
        self.bytes_received += at


def _frame(kind: int, channel: int, buffer: bytes, start: int, end: int) -> frame.Frame:
    if kind == spec.FRAME_METHOD:
        method = spec.methods[_METHOD.unpack_from(buffer, start)[0]]()
        method.decode(buffer[start:end], 4)
        return frame.Method(channel, method)
    if kind == spec.FRAME_HEADER:
        body_size = _CONTENT.unpack_from(buffer, start)[2]
        return frame.Header(channel, body_size, buffer[start + _CONTENT.size : end])
    if kind == spec.FRAME_BODY:
        return frame.Body(channel, buffer[start:end])
    if kind == spec.FRAME_HEARTBEAT:
        return frame.Heartbeat()
    raise exceptions.InvalidFrameError(f"a frame is of the type {kind}, which AMQP 0-9-1 does not have")
