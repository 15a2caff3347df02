"""What can be asked of an engine, as values: what the log of a broker file is made of.

Each command mirrors one call of `Engine`. Applied in the order of the log, with the times of the log, the same
commands give the same state in every process; that is what lets many processes share one file.

Rule: a command changes the engine through `apply` alone, and what `decode` returns does what `encode` was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from carom.brokers.embedded.engine import Engine, Handed, Verb
from carom.brokers.embedded.packing import extension, pack, unpack
from carom.core.effects import PublishResult
from carom.core.message import Message
from carom.core.topology import Topology


class Batch:
    """Messages as they travel in a command: a list whose wire form has no field names."""

    __slots__ = ("messages",)

    def __init__(self, messages: Sequence[Message]) -> None:
        """Keep the messages."""
        self.messages = messages


class Command(msgspec.Struct, array_like=True, frozen=True):
    """One call of the engine, without its time."""

    def apply(self, engine: Engine, now_ms: int) -> object:
        """Make the call; what it returns is the answer to whoever asked."""
        raise NotImplementedError


class Declare(Command, tag="declare", frozen=True):
    """Make a topology exist."""

    topology: Topology

    def apply(self, engine: Engine, now_ms: int) -> None:
        """Declare it; raises TopologyMismatch or Unsupported and changes nothing."""
        engine.declare(self.topology, now_ms)


class Publish(Command, tag="publish", frozen=True):
    """Publish a batch."""

    batch: Batch

    def apply(self, engine: Engine, now_ms: int) -> list[PublishResult]:
        """Publish one after another."""
        return [engine.publish(message, now_ms) for message in self.batch.messages]


class Consume(Command, tag="consume", frozen=True):
    """Start a consumer."""

    session: str
    consumer: str
    queue: str
    prefetch: int

    def apply(self, engine: Engine, now_ms: int) -> None:
        """Start it; raises BrokerError for a queue that is not there."""
        engine.consume(self.session, self.consumer, self.queue, self.prefetch, now_ms)


class Cancel(Command, tag="cancel", frozen=True):
    """Stop a consumer; its deliveries stay valid."""

    session: str
    consumer: str

    def apply(self, engine: Engine, now_ms: int) -> None:
        """Stop it."""
        engine.cancel(self.session, self.consumer, now_ms)


class Get(Command, tag="get", frozen=True):
    """Take one message."""

    session: str
    queue: str

    def apply(self, engine: Engine, now_ms: int) -> Handed | None:
        """Take it, if there is one."""
        return engine.get(self.session, self.queue, now_ms)


class Settle(Command, tag="settle", frozen=True):
    """Settle deliveries of a session, all the same way. The list may grow until the command is sent."""

    session: str
    verb: Verb
    tags: list[int]

    def apply(self, engine: Engine, now_ms: int) -> None:
        """Settle them; a tag that is settled already does nothing."""
        session, verb = self.session, self.verb
        for tag in self.tags:
            engine.settle(session, tag, verb, now_ms)


class End(Command, tag="end", frozen=True):
    """A session is over: what it had unsettled returns to its queues."""

    session: str

    def apply(self, engine: Engine, now_ms: int) -> None:
        """End it."""
        engine.end(self.session, now_ms)


class Tick(Command, tag="tick", frozen=True):
    """Time has passed: what is due expires."""

    def apply(self, engine: Engine, now_ms: int) -> None:
        """Expire what is due."""
        engine.tick(now_ms)


class DeleteQueue(Command, tag="delete", frozen=True):
    """Delete a queue with what is in it."""

    queue: str

    def apply(self, engine: Engine, now_ms: int) -> int:
        """Delete it and return how many messages went with it."""
        return engine.delete_queue(self.queue, now_ms)


class Purge(Command, tag="purge", frozen=True):
    """Forget what is ready in a queue."""

    queue: str

    def apply(self, engine: Engine, now_ms: int) -> int:
        """Empty it and return how many messages went."""
        return engine.purge(self.queue, now_ms)


AnyCommand: TypeAlias = Declare | Publish | Consume | Cancel | Get | Settle | End | Tick | DeleteQueue | Purge


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """What one commit adds to the log: commands that happened at one time."""

    now_ms: int
    commands: list[AnyCommand]


class _Draft(msgspec.Struct, array_like=True, frozen=True):
    """An entry whose commands are encoded already."""

    now_ms: int
    commands: list[msgspec.Raw]


def encode(command: Command) -> msgspec.Raw:
    """Return the wire form of a command. Raises TypeError, ValueError or OverflowError for what has none."""
    return msgspec.Raw(_encoder.encode(command))


def encode_entry(now_ms: int, commands: list[msgspec.Raw]) -> bytes:
    """Return the wire form of an entry of encoded commands."""
    return _encoder.encode(_Draft(now_ms, commands))


def decode_entry(data: bytes) -> Entry:
    """Read an entry. Raises msgspec.DecodeError for bytes that are none."""
    return _decoder.decode(data)


def _encoded(batch: object) -> object:
    if not isinstance(batch, Batch):
        raise TypeError(f"a command of the broker file cannot hold {type(batch).__name__}")
    return [pack(message) for message in batch.messages]


def _decoded(kind: type, rows: Any) -> object:
    if kind is not Batch:
        raise TypeError(f"a command of the broker file cannot hold {kind.__name__}")
    return Batch([unpack(row) for row in rows])


_encoder = msgspec.msgpack.Encoder(enc_hook=_encoded)
_decoder = msgspec.msgpack.Decoder(Entry, dec_hook=_decoded, ext_hook=extension)
