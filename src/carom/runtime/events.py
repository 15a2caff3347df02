"""What happened: frozen events for observers. Ids, attempts, classifications and durations, never opinions.

Rule: every delivery ends in exactly one of Handled, Duplicate, Retried, DeadLettered, Discarded, HandedBack,
Postponed or Dropped. An event is made only when somebody observes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from carom.core.message import Message
from carom.ports import (
    ConnectionBlocked,
    ConnectionDown,
    ConnectionUnblocked,
    ConnectionUp,
    ConsumerEnded,
    StoreDown,
    StoreUp,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """The part that every event about a delivery has."""

    queue: str
    message: Message
    attempt: int
    crashes: int = 0

    @property
    def message_id(self) -> str:
        """Return the message's id."""
        return self.message.id

    @property
    def correlation_id(self) -> str:
        """Return the id that ties the message to what caused it."""
        return self.message.correlation_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(Delivered):
    """A message was handed to its handler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled(Delivered):
    """The handler returned and the message is settled."""

    duration_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate(Delivered):
    """The message was handled before, or goes on as another copy: it was acknowledged, and nothing was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Delivered):
    """The part that events about failures have."""

    duration_ms: float = 0.0
    classification: str = ""
    error_type: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried(Failure):
    """The attempt failed and the next one is scheduled; the broker has confirmed it."""

    delay_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettered(Failure):
    """The message is a dead letter now, for this reason; the broker has confirmed it."""

    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded(Delivered):
    """The handler wanted the message kept nowhere."""

    reason: str = ""
    duration_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedBack(Delivered):
    """The message went back to its queue because the worker stops; no attempt was counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postponed(Delivered):
    """The message went on waiting, its crash count was written down, or it was set apart; no attempt was counted."""

    delay_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(Delivered):
    """The connection that brought the message is gone, and so the broker has it; nothing was settled."""

    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSettled(Delivered):
    """The broker did not take over a retry or a dead letter. The original is kept and the publish tried again."""

    result: str = ""
    retry_in_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerStuck(Delivered):
    """A handler did not stop when its time was over. The message is kept, unacknowledged, until it does."""

    timeout_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerFreed(Delivered):
    """A stuck handler came to an end after all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The broker has confirmed a message."""

    message: Message
    duration_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPublished:
    """The broker returned or refused a message, or nobody knows."""

    message: Message
    result: str = ""
    duration_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Relayed:
    """The broker has confirmed messages of the outbox. One event for a batch, so that it costs nothing a message."""

    messages: tuple[Message, ...]
    duration_ms: float = 0.0

    @property
    def count(self) -> int:
        """Return how many they are."""
        return len(self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayFailure:
    """The part that events about a row that could not be published have; ``failures`` counts this one."""

    message: Message
    seq: int
    failures: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRetried(RelayFailure):
    """A message of the outbox was not taken over, and is published again after a while; others are not kept waiting."""

    delay_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayParked(RelayFailure):
    """A message of the outbox is given up: it stays there with its reason until somebody looks at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPaused:
    """The broker takes nothing at all; the outbox keeps everything, and the relay waits."""

    app: str
    reason: str = ""
    retry_in_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leading:
    """This process relays the outbox."""

    app: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingBy:
    """Another process relays the outbox, or may; this one takes over when there is none."""

    app: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The app consumes from these queues."""

    app: str
    queues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """The app takes no more messages and finishes what runs."""

    app: str
    running: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The app has stopped; ``abandoned`` handlers did not end within the grace."""

    app: str
    abandoned: int = 0


Event: TypeAlias = (
    Received
    | Handled
    | Duplicate
    | Retried
    | DeadLettered
    | Discarded
    | HandedBack
    | Postponed
    | Dropped
    | NotSettled
    | HandlerStuck
    | HandlerFreed
    | Published
    | NotPublished
    | Relayed
    | RelayRetried
    | RelayParked
    | RelayPaused
    | Leading
    | StandingBy
    | Started
    | Stopping
    | Stopped
    | StoreDown
    | StoreUp
    | ConnectionUp
    | ConnectionDown
    | ConnectionBlocked
    | ConnectionUnblocked
    | ConsumerEnded
)
