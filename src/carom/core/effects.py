"""Effects: what is to be done with a delivery, and what came of a publish. Values; only brokers do anything.

Rule: a settlement is a sequence of effects whose last one, and only that one, settles the delivery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from carom.core.message import Message


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish a message to its address, mandatory and confirmed, before anything that follows."""

    message: Message


@dataclass(frozen=True, slots=True)
class Ack:
    """The delivery is settled: the broker may forget it."""


@dataclass(frozen=True, slots=True)
class HandBack:
    """The delivery goes back to its queue, to be delivered again."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The broker itself makes the delivery a dead letter, through the queue's dead letter exchange."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The delivery goes back as a failed attempt, which its queue counts and delays by itself (RabbitMQ from 4.3)."""


Settling: TypeAlias = Ack | HandBack | Refuse | Fail
Effect: TypeAlias = Publish | Settling


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The broker has taken the message over: every queue it was routed to has it safely."""


@dataclass(frozen=True, slots=True)
class Returned:
    """No queue wanted the message. Nothing holds it."""

    code: int = 312
    text: str = "NO_ROUTE"


@dataclass(frozen=True, slots=True)
class Nacked:
    """The broker refused the message: a queue is full or broken, or, ``lasting``, it takes no such message ever."""

    why: str = ""
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody knows: no answer in time, or the connection went. Publish it again with the same id."""

    why: str = ""


PublishResult: TypeAlias = Confirmed | Returned | Nacked | Unknown

CONFIRMED = Confirmed()
NACKED = Nacked()

LASTING_CODES = frozenset({311, 406, 502, 540})
"""Returns that say something about the message itself: too large, not acceptable, not writable, not implemented."""


def lasts(result: PublishResult) -> bool:
    """Tell whether publishing the same message again would end the same way, for ever."""
    return (isinstance(result, Nacked) and result.lasting) or (
        isinstance(result, Returned) and result.code in LASTING_CODES
    )
