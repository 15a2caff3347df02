"""An engine's whole state as bytes and back.

Rule: an engine that was restored answers every further call exactly as the one it was taken from would, deliveries
and their tags included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from carom.brokers.embedded.deaths import Reason
from carom.brokers.embedded.packing import extension, pack, unpack
from carom.brokers.embedded.queues import Consumer, Entry, Letter, QueueState
from carom.core.topology import Topology
from carom.errors import ConfigurationError

if TYPE_CHECKING:
    from carom.brokers.embedded.engine import Engine

VERSION = 1


class _Entry(msgspec.Struct, array_like=True):
    message: list[object]
    expires: int | None
    position: int
    returns: int


class _Letter(msgspec.Struct, array_like=True):
    entry: _Entry
    reason: Reason
    died_ms: int
    due_ms: int
    settled: tuple[str, ...]


class _Queue(msgspec.Struct, array_like=True):
    """What a queue holds besides its declaration; ``turn`` are serial numbers of consumers."""

    name: str
    ready: list[_Entry]
    returned: list[_Entry]
    waiting: list[_Letter]
    pinned: list[_Letter]
    next_position: int
    blocked: bool
    turn: list[int]


class _Consumer(msgspec.Struct, array_like=True):
    serial: int
    session: str
    name: str
    queue: str
    room: int


class _Held(msgspec.Struct, array_like=True):
    """A delivery; ``serial`` is 0 when its consumer is gone, or there was none and it has no ``name``."""

    tag: int
    queue: str
    serial: int
    name: str
    entry: _Entry


class _State(msgspec.Struct, array_like=True):
    version: int
    topology: Topology
    last_tag: int
    last_serial: int
    queues: list[_Queue]
    consumers: list[_Consumer]
    held: dict[str, list[_Held]]
    timed: list[str]


_decoder = msgspec.msgpack.Decoder(_State, ext_hook=extension)


def freeze(engine: Engine) -> bytes:
    """Return an engine's state as bytes; costs time and memory in proportion to all that is in the queues."""
    state = _State(
        VERSION,
        engine.topology(),
        engine.last_tag,
        engine.last_serial,
        [_queue(queue) for queue in engine.queues.values()],
        [_Consumer(one.serial, one.session, one.name, one.queue.name, one.room) for one in engine.consumers.values()],
        {
            session: [_held(tag, queue, consumer, entry) for tag, (queue, consumer, entry) in held.items()]
            for session, held in engine.held.items()
        },
        list(engine.timed),
    )
    return msgspec.msgpack.encode(state)


def thaw(engine: Engine, data: bytes) -> None:
    """Put a state into a new engine. Raises ConfigurationError for bytes that are none, or of a newer version."""
    try:
        state = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigurationError(f"this is no state of an embedded broker: {error}") from error
    if state.version != VERSION:
        raise ConfigurationError(f"the broker's state has version {state.version} and this program reads {VERSION}")
    engine.last_tag, engine.last_serial = state.last_tag, state.last_serial
    engine.queues.update((queue.name, QueueState(queue)) for queue in state.topology.queues)
    engine.router.add(state.topology.exchanges, state.topology.bindings)
    consumers = {one.serial: _consumer(engine, one) for one in state.consumers}
    for frozen in state.queues:
        _fill(engine.queues[frozen.name], frozen, consumers)
    for session, held in state.held.items():
        mine = engine.held.setdefault(session, {})
        for one in held:
            queue = engine.queues[one.queue]
            queue.unacked += 1
            consumer = consumers.get(one.serial) or _cancelled(session, one.name, queue)
            mine[one.tag] = (queue, consumer, _thawed(one.entry))
    engine.timed.update((name, engine.queues[name]) for name in state.timed)


def _queue(queue: QueueState) -> _Queue:
    return _Queue(
        queue.name,
        [_entry(entry) for entry in queue.ready],
        [_entry(entry) for entry in queue.returned],
        [_letter(letter) for letter in queue.waiting],
        [_letter(letter) for letter in queue.pinned],
        queue.next_position,
        queue.blocked,
        [consumer.serial for consumer in queue.turn],
    )


def _entry(entry: Entry) -> _Entry:
    return _Entry(pack(entry.message), entry.expires, entry.position, entry.returns)


def _letter(letter: Letter) -> _Letter:
    return _Letter(_entry(letter.entry), letter.reason, letter.died_ms, letter.due_ms, letter.settled)


def _held(tag: int, queue: QueueState, consumer: Consumer | None, entry: Entry) -> _Held:
    serial = consumer.serial if consumer is not None and consumer.active else 0
    return _Held(tag, queue.name, serial, "" if consumer is None else consumer.name, _entry(entry))


def _cancelled(session: str, name: str, queue: QueueState) -> Consumer | None:
    """Return a consumer that is no more, for the deliveries it left; None if there never was one."""
    if not name:
        return None
    consumer = Consumer(0, session, name, queue, 0)
    consumer.active = False
    return consumer


def _consumer(engine: Engine, one: _Consumer) -> Consumer:
    queue = engine.queues[one.queue]
    consumer = Consumer(one.serial, one.session, one.name, queue, one.room)
    engine.consumers[one.session, one.name] = queue.consumers[one.session, one.name] = consumer
    return consumer


def _fill(queue: QueueState, frozen: _Queue, consumers: dict[int, Consumer]) -> None:
    queue.ready.extend(_thawed(entry) for entry in frozen.ready)
    queue.returned.extend(_thawed(entry) for entry in frozen.returned)
    queue.ready_bytes = sum(len(entry.message.body) for entry in (*queue.ready, *queue.returned))
    queue.waiting.extend(_thawed_letter(letter) for letter in frozen.waiting)
    queue.pinned = [_thawed_letter(letter) for letter in frozen.pinned]
    queue.next_position, queue.blocked = frozen.next_position, frozen.blocked
    queue.turn.extend(consumers[serial] for serial in frozen.turn)


def _thawed(entry: _Entry) -> Entry:
    return Entry(unpack(entry.message), entry.expires, entry.position, entry.returns)


def _thawed_letter(letter: _Letter) -> Letter:
    return Letter(_thawed(letter.entry), letter.reason, letter.died_ms, letter.due_ms, letter.settled)
