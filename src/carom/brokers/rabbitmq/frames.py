"""The client library's connection, with its frames read and written in fewer steps.

The library cuts every frame off the front of its buffer, which copies the rest each time; it looks for whoever waits
for a delivery, its header and its body one by one before it puts them together; it decodes each content header with
a decoder that can fail (see `content`); it reads at most four kilobytes at a time; and it sends each frame with a
system call of its own, three of them for a message. Here a buffer is read in one pass, a delivery that is there as a
whole goes to its channel in one step, content headers stay bytes, and what is written in one turn of the loop is sent
together. The protocol remains the library's own: whatever is not as usual takes its way.

Rule: what arrives is either a whole frame, handed on in its order, or stays in the buffer; what is written goes out
in the order it was written, before the turn is over or, when there is much of it, sooner.
"""

from __future__ import annotations

import asyncio
import struct
from functools import lru_cache

from pika import exceptions, frame, spec
from pika.adapters.asyncio_connection import AsyncioConnection

RECEIVE_BYTES = 128 * 1024
SEND_BYTES = 64 * 1024
_HEAD = struct.Struct(">BHL")
_CONTENT = struct.Struct(">HHQ")
_METHOD = struct.Struct(">I")
_PROTOCOL = b"AMQP"
_END = bytes([spec.FRAME_END])
_BASIC = spec.BasicProperties.INDEX
_PUBLISH = _METHOD.pack(spec.Basic.Publish.INDEX)
_DELIVER = _METHOD.pack(spec.Basic.Deliver.INDEX)
_TAG = struct.Struct(">QB")
_MANDATORY = b"\x01"
_ADDRESSES_KEPT = 1024
_SHORT = 255


class Connection(AsyncioConnection):  # type: ignore[misc]  # the library has no types
    """An AMQP connection whose deliveries carry their property list as bytes."""

    _frame_buffer: bytes
    _body_max_length: int

    def _init_connection_state(self) -> None:
        super()._init_connection_state()
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._addresses: dict[tuple[int, str, str], bytes] = {}
        self._is_given_up = False
        # Agreed on is the limit of either side or a lower one; what is longer would fill the buffer without end.
        self._frame_limit = int(self.params.frame_max or spec.FRAME_MAX_SIZE)

    @property
    def unsent(self) -> int:
        """Return how many bytes wait to be taken by the system."""
        transport = self._transport
        return self._outgoing_bytes + (0 if transport is None else int(transport.get_write_buffer_size()))

    def give_up(self, error: Exception) -> None:
        """Cut the connection without a word; it is closed with this error in a later turn of the loop."""
        self._is_given_up = True
        self._terminate_stream(error)

    @property
    def is_usable(self) -> bool:
        """Tell whether something can be asked on it."""
        return bool(self.is_open) and not self._is_given_up

    def read_more(self) -> None:
        """Read as much as there is at a time, up to `RECEIVE_BYTES`."""
        if self._transport is not None:
            self._transport._MAX_RECV_BYTES = RECEIVE_BYTES  # noqa: SLF001 - the library has no public way to say it

    def publish(self, channel: int, exchange: str, routing_key: str, properties: bytes, body: bytes) -> None:
        """Write a mandatory publish. Raises ValueError for what does not fit a frame or the protocol."""
        address = self._addresses.get((channel, exchange, routing_key))
        if address is None:
            address = self._address(channel, exchange, routing_key)
        size = _CONTENT.size + len(properties)
        if size > self._body_max_length:
            raise ValueError(f"its properties and headers of {size} bytes do not fit a frame of the broker")
        pieces = [address, _HEAD.pack(2, channel, size), _CONTENT.pack(_BASIC, 0, len(body)), properties, _END]
        for start in range(0, len(body), self._body_max_length):
            part = body[start : start + self._body_max_length]
            pieces += (_HEAD.pack(3, channel, len(part)), part, _END)
        self._adapter_emit_data(b"".join(pieces))

    def _address(self, channel: int, exchange: str, routing_key: str) -> bytes:
        """Return the method frame of a publish; kept, because most messages go where others went."""
        payload = b"".join((_PUBLISH, b"\0\0", _short(exchange), _short(routing_key), _MANDATORY))
        if len(self._addresses) >= _ADDRESSES_KEPT:
            self._addresses.clear()
        frame_bytes = _HEAD.pack(1, channel, len(payload)) + payload + _END
        self._addresses[channel, exchange, routing_key] = frame_bytes
        return frame_bytes

    def _on_connection_workflow_done(self, conn_or_exc: object) -> None:
        # Where a login is aborted, the library reports the class of an exception where it means to report one.
        super()._on_connection_workflow_done(conn_or_exc() if isinstance(conn_or_exc, type) else conn_or_exc)

    def _adapter_emit_data(self, data: bytes) -> None:
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._send_outgoing)
        self._outgoing.append(data)
        self._outgoing_bytes += len(data)
        if self._outgoing_bytes >= SEND_BYTES:
            self._send_outgoing()

    def _send_outgoing(self) -> None:
        if not self._outgoing:
            return
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        self._outgoing_bytes = 0
        if self._transport is not None:
            super()._adapter_emit_data(data)

    def _on_data_available(self, data_in: bytes) -> None:
        buffer = self._frame_buffer + data_in if self._frame_buffer else data_in
        if buffer[:4] == _PROTOCOL:
            super()._on_data_available(data_in)
            return
        at, size = 0, len(buffer)
        while size - at >= _HEAD.size:
            kind, channel, length = _HEAD.unpack_from(buffer, at)
            if length > self._frame_limit:
                raise exceptions.InvalidFrameError(f"a frame of {length} bytes is longer than was agreed on")
            start = at + _HEAD.size
            end = start + length
            if end >= size:
                break
            if buffer[end] != spec.FRAME_END:
                raise exceptions.InvalidFrameError("a frame does not end where it says")
            at = end + 1
            is_delivery = kind == spec.FRAME_METHOD and buffer.startswith(_DELIVER, start)
            if is_delivery and (after := self._deliver(channel, buffer, start, at)):
                at = after
            else:
                self._process_frame(_frame(kind, channel, buffer, start, end))
            if self.is_closed:
                return
        self._frame_buffer = buffer[at:]
        self.bytes_received += at

    def _deliver(self, channel: int, buffer: bytes, start: int, at: int) -> int:
        """Hand a delivery on when its header and its body, in one frame, follow; return where it ends, or 0."""
        receiver = self._channels.get(channel)
        header = at + _HEAD.size
        if receiver is None or len(buffer) < header + _CONTENT.size:
            return 0
        if receiver._content_assembler._body_fragments:  # noqa: SLF001 - the library is in the middle of a message
            return 0
        kind, header_channel, length = _HEAD.unpack_from(buffer, at)
        header_end = header + length
        body_size = _CONTENT.unpack_from(buffer, header)[2]
        body = header_end + 1 + _HEAD.size
        body_end = body + body_size
        if (
            (kind, header_channel) != (spec.FRAME_HEADER, channel)
            or length < _CONTENT.size
            or not 0 < body_size <= self._frame_limit
            or body_end >= len(buffer)
            or buffer[header_end] != spec.FRAME_END
            or buffer[body_end] != spec.FRAME_END
            or _HEAD.unpack_from(buffer, header_end + 1) != (spec.FRAME_BODY, channel, body_size)
        ):
            return 0
        method = _delivery(buffer, start, at - 1)
        if method is None:
            return 0
        delivered = _Delivered(method, buffer[header + _CONTENT.size : header_end])
        self.frames_received += 3
        receiver._on_deliver(delivered, delivered, buffer[body:body_end])  # noqa: SLF001 - what the library does last
        return int(body_end) + 1


class _Delivered:
    """What the library keeps in two frames: the method and the property list of a delivery."""

    __slots__ = ("method", "properties")

    def __init__(self, method: spec.Basic.Deliver, properties: bytes) -> None:
        self.method = method
        self.properties = properties


def _delivery(buffer: bytes, start: int, end: int) -> spec.Basic.Deliver | None:
    """Read the method; None when it is not exactly as long as its frame."""
    consumer_tag, at = _name(buffer, start + _METHOD.size)
    if at + _TAG.size >= end:
        return None
    delivery_tag, redelivered = _TAG.unpack_from(buffer, at)
    exchange, at = _name(buffer, at + _TAG.size)
    if at >= end:
        return None
    routing_key, at = _name(buffer, at)
    if at != end:
        return None
    return spec.Basic.Deliver(consumer_tag, delivery_tag, bool(redelivered & 1), exchange, routing_key)


def _name(buffer: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + buffer[at]
    return _text(buffer[at + 1 : end]), end


@lru_cache(maxsize=1024)
def _text(data: bytes) -> str:
    """Return a tag, an exchange or a key, which most deliveries share with others."""
    return data.decode("utf-8", "surrogateescape")


def _short(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > _SHORT:
        raise ValueError(f"the exchange or routing key {text[:40]!r}… is longer than {_SHORT} bytes")
    return bytes([len(data)]) + data


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
