"""Frames: however the bytes arrive the frames are the same, and what is written goes out in its order."""

import asyncio
import struct
from itertools import pairwise

import pika
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pika import exceptions, frame, spec
from pika.channel import Channel

from carom.brokers.rabbitmq.consuming import name
from carom.brokers.rabbitmq.content import encode
from carom.brokers.rabbitmq.frames import SEND_BYTES, Connection
from carom.core.message import Message

PROPERTIES = encode(Message(id="7", headers={"a": 1.5}))


class Wire:
    """A transport that keeps what is written."""

    def __init__(self):
        self.written = []

    def write(self, data):
        self.written.append(data)

    def get_write_buffer_size(self):
        return sum(map(len, self.written))


class Told(Connection):
    """A connection that is not connected and keeps its frames."""

    def __init__(self, **parameters):
        super().__init__(
            pika.ConnectionParameters(**parameters),
            custom_ioloop=asyncio.get_running_loop(),
            internal_connection_workflow=False,
        )
        self.told = []
        self._body_max_length = self._get_body_frame_max_length()

    def _process_frame(self, one):
        self.told.append((type(one).__name__, one.channel_number, content(one)))


def content(one):
    if isinstance(one, frame.Method):
        return one.method
    if isinstance(one, frame.Header):
        return one.body_size, one.properties
    return one.fragment if isinstance(one, frame.Body) else None


def header_bytes(channel, body_size):
    payload = struct.pack(">HHQ", 60, 0, body_size) + PROPERTIES
    return struct.pack(">BHL", 2, channel, len(payload)) + payload + b"\xce"


CHANNELS = st.integers(1, 2047)
FRAMES = st.one_of(
    st.builds(
        lambda channel, tag: frame.Method(channel, spec.Basic.Ack(tag, True)).marshal(), CHANNELS, st.integers(1, 2**40)
    ),
    st.builds(
        lambda channel, key: frame.Method(channel, spec.Basic.Deliver("tag", 5, True, "exchange", key)).marshal(),
        CHANNELS,
        st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    ),
    st.builds(header_bytes, CHANNELS, st.integers(0, 2**40)),
    st.builds(
        lambda channel, body, times: frame.Body(channel, body * times).marshal(),
        CHANNELS,
        st.binary(min_size=1, max_size=50),
        st.sampled_from([1, 2000]),
    ),
    st.just(frame.Heartbeat().marshal()),
)


@given(st.lists(FRAMES, min_size=1, max_size=8), st.data())
async def test_any_way_of_cutting_the_stream_gives_the_same_frames(frames, data):
    stream = b"".join(frames)
    whole, cut = Told(), Told()
    whole._on_data_available(stream)
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    for start, end in zip([0, *places], [*places, len(stream)], strict=True):
        if start < end:
            cut._on_data_available(stream[start:end])
    assert cut.told == whole.told
    assert len(whole.told) == len(frames)
    assert cut._frame_buffer == whole._frame_buffer == b""
    assert cut.bytes_received == len(stream)


@given(st.lists(FRAMES, min_size=1, max_size=3))
@settings(max_examples=20)
async def test_one_byte_at_a_time_is_enough(frames):
    frames = [one[:5000] if len(one) < 5000 else frame.Heartbeat().marshal() for one in frames]
    connection = Told()
    for byte in b"".join(frames):
        connection._on_data_available(bytes([byte]))
    assert len(connection.told) == len(frames)


class Consuming(Connection):
    """A connection that is not connected, with a consumer on channel 1; it hands on deliveries in one step or never."""

    def __init__(self, *, in_one_step):
        super().__init__(
            pika.ConnectionParameters(frame_max=4096),
            custom_ioloop=asyncio.get_running_loop(),
            internal_connection_workflow=False,
        )
        self.in_one_step = in_one_step
        self.steps = 0
        self.taken = []
        channel = Channel(self, 1, lambda _channel: None)
        channel._consumers["tag"] = lambda _channel, *delivery: self.taken.append(told(*delivery))
        self._channels[1] = channel
        self._body_max_length = self._get_body_frame_max_length()

    def _deliver(self, *place):
        after = super()._deliver(*place) if self.in_one_step else 0
        self.steps += after > 0
        return after


def told(method, properties, body):
    address = name(method.exchange), name(method.routing_key)
    return method.consumer_tag, method.delivery_tag, method.redelivered, *address, properties, body


def delivery_bytes(channel, tag, key, body):
    method = spec.Basic.Deliver("tag", tag, tag % 2 == 0, "exchange", key)
    parts = [body[start : start + 4088] for start in range(0, len(body), 4088)]
    frames = [frame.Body(channel, part).marshal() for part in parts]
    return b"".join([frame.Method(channel, method).marshal(), header_bytes(channel, len(body)), *frames])


BODIES = st.one_of(st.binary(max_size=40), st.integers(4000, 9000).map(bytes))
DELIVERIES = st.lists(
    st.builds(delivery_bytes, st.just(1), st.integers(1, 2**40), st.text("kéy", max_size=40), BODIES),
    min_size=1,
    max_size=5,
)


def outcome(connection, pieces):
    """Return what was delivered, and what it ended with."""
    try:
        for piece in pieces:
            connection._on_data_available(piece)
    except (exceptions.AMQPError, struct.error, LookupError, AttributeError, TypeError) as error:
        return connection.taken, type(error)
    return connection.taken, None


@given(DELIVERIES, st.data())
async def test_deliveries_in_one_step_are_those_of_the_library_however_they_are_cut(deliveries, data):
    stream = b"".join(deliveries)
    places = [0, *sorted(data.draw(st.lists(st.integers(1, len(stream) - 1), max_size=6))), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(places) if start < end]
    ours, theirs = Consuming(in_one_step=True), Consuming(in_one_step=False)
    assert outcome(ours, pieces) == outcome(theirs, pieces)
    assert len(ours.taken) == len(deliveries)
    assert ours.frames_received == theirs.frames_received


@given(st.integers(0, 10_000), st.integers(1, 255), st.sampled_from([b"", b"body", bytes(5000)]))
@settings(max_examples=400)
async def test_a_delivery_with_a_wrong_byte_ends_as_it_does_in_the_library(place, change, body):
    stream = bytearray(delivery_bytes(1, 5, "key", body) + delivery_bytes(1, 6, "key", b"next"))
    stream[place % len(stream)] ^= change
    ours, theirs = Consuming(in_one_step=True), Consuming(in_one_step=False)
    assert outcome(ours, [bytes(stream)]) == outcome(theirs, [bytes(stream)])


async def test_a_delivery_that_is_there_as_a_whole_is_handed_on_in_one_step():
    connection = Consuming(in_one_step=True)
    connection._on_data_available(delivery_bytes(1, 5, "key", b"a") + delivery_bytes(1, 6, "key", b"b"))
    assert connection.steps == len(connection.taken) == 2


async def test_the_library_reads_the_same_methods_as_we():
    stream = frame.Method(3, spec.Basic.Deliver("tag", 5, True, "exchange", "key")).marshal()
    connection = Told()
    connection._on_data_available(stream)
    _, expected = frame.decode_frame(stream)
    assert connection.told == [("Method", 3, expected.method)]


@pytest.mark.parametrize(
    ("hostile", "words"),
    [
        (struct.pack(">BHL", 3, 1, 2**31), "longer than was agreed on"),
        (struct.pack(">BHL", 3, 1, 131_073), "longer than was agreed on"),
        (struct.pack(">BHL", 3, 1, 1) + b"xy", "does not end where it says"),
        (struct.pack(">BHL", 9, 1, 1) + b"x\xce", "which AMQP 0-9-1 does not have"),
    ],
)
async def test_what_is_no_frame_closes_the_connection_and_fills_no_buffer(hostile, words):
    connection = Told()
    with pytest.raises(exceptions.InvalidFrameError, match=words):
        connection._on_data_available(hostile)


@pytest.mark.parametrize("cuts", [(8,), (3, 8), (1, 2, 3, 4, 5, 6, 7, 8)])
async def test_another_protocol_is_recognised_however_it_is_cut(cuts):
    class Protocol(Told):
        def _process_frame(self, one):
            self.told.append(one)

    connection, greeting = Protocol(), b"AMQP\x00\x01\x00\x00"
    for start, end in zip([0, *cuts], cuts, strict=False):
        connection._on_data_available(greeting[start:end])
    assert [type(one) for one in connection.told] == [frame.ProtocolHeader]


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 10_000])
async def test_a_large_body_goes_out_in_as_many_frames_as_it_needs(size):
    sender, receiver = Told(frame_max=4096), Told(frame_max=4096)
    sender._transport = Wire()
    body = bytes(index % 251 for index in range(size))
    sender.publish(1, "exchange", "key", PROPERTIES, body)
    await asyncio.sleep(0)
    for data in sender._transport.written:
        receiver._on_data_available(data)
    (_, _, method), (_, _, header), *bodies = receiver.told
    assert (method.exchange, method.routing_key, method.mandatory) == ("exchange", "key", True)
    assert header == (size, PROPERTIES)
    assert b"".join(fragment for _, _, fragment in bodies) == body
    assert len(bodies) == -(-size // 4088)


async def test_headers_that_fit_no_frame_are_refused_before_anything_is_written():
    connection = Told(frame_max=4096)
    connection._transport = Wire()
    with pytest.raises(ValueError, match="do not fit a frame"):
        connection.publish(1, "exchange", "key", b"x" * 4096, b"")
    with pytest.raises(ValueError, match="255 bytes"):
        connection.publish(1, "exchange", "k" * 256, PROPERTIES, b"")
    await asyncio.sleep(0)
    assert connection._transport.written == []


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30_000)), min_size=1, max_size=20))
async def test_what_is_written_keeps_its_order_and_leaves_in_few_pieces(writes):
    connection, receiver = Told(), Told()
    connection._transport = wire = Wire()
    connection._set_connection_state(connection.CONNECTION_OPEN)
    for number, (is_publish, size) in enumerate(writes, 1):
        if is_publish:
            connection.publish(number, "exchange", "key", PROPERTIES, b"x" * size)
        else:
            connection._send_method(number, spec.Basic.Ack(number, False))
    await asyncio.sleep(0)
    receiver._on_data_available(b"".join(wire.written))
    channels = [channel for name, channel, _ in receiver.told if name == "Method"]
    assert channels == list(range(1, len(writes) + 1))
    assert all(len(piece) >= SEND_BYTES for piece in wire.written[:-1])
    assert connection.unsent == sum(map(len, wire.written))
