"""A delivery of the embedded broker, whatever it keeps its messages in.

Rule: a delivery knows nothing but its way back: a link, which is open as long as the session that brought it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from carom.brokers.embedded.engine import Handed, Verb

T = TypeVar("T")


class Link(Protocol):
    """What the deliveries of one session have in common. Settling over a link that is not open does nothing."""

    open: bool

    def settle(self, tag: int, verb: Verb) -> None:
        """Settle one of them."""


class EmbeddedDelivery:
    """A message in our hands; see `carom.ports.Delivery`."""

    __slots__ = ("_link", "_settled", "_tag", "message", "queue", "redelivered")

    def __init__(self, link: Link, handed: Handed) -> None:
        """Keep what was handed over, and the link it belongs to."""
        self._link = link
        self._settled = False
        self._tag = handed.tag
        self.message = handed.message
        self.queue = handed.queue
        self.redelivered = handed.redelivered

    @property
    def stale(self) -> bool:
        """Tell whether the connection that brought it is gone."""
        return not self._link.open

    def ack(self) -> None:
        """Settle it: the broker may forget the message."""
        if not self._settled:
            self._settled = True
            self._link.settle(self._tag, "ack")

    def hand_back(self) -> None:
        """Put it back into its queue."""
        if not self._settled:
            self._settled = True
            self._link.settle(self._tag, "hand_back")

    def refuse(self) -> None:
        """Let the broker make it a dead letter."""
        if not self._settled:
            self._settled = True
            self._link.settle(self._tag, "refuse")

    def fail(self) -> None:
        """Put it back into its queue; it has no queues that delay by themselves."""
        self.hand_back()


def guarded(receive: Callable[[T], None], value: T) -> None:
    """Call back; an exception goes to the event loop's handler and the others are called all the same."""
    try:
        receive(value)
    except Exception as error:  # noqa: BLE001 - a callback's fault must not keep messages from the others
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": "a callback of the embedded broker failed", "exception": error})
