"""Surroundings: what the consumers of one app share.

Rule: handed to each of them when it is made, and never changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from carom.core.settlement import Layout
from carom.ports import Broker, Clock, Inbox
from carom.runtime.gate import Gate
from carom.runtime.middleware import Middleware
from carom.runtime.presence import Presence
from carom.runtime.service import Backoff

Notify: TypeAlias = Callable[[object], None]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a consumer finds around it."""

    broker: Broker
    layout: Layout
    clock: Clock
    gate: Gate
    notify: Notify | None
    restore: Callable[[], Awaitable[None]]
    settled: Callable[[], Awaitable[None]]
    inbox: Inbox | None = None
    presence: Presence = field(default_factory=Presence)
    middleware: tuple[Middleware, ...] = ()
    host: str = ""
    backoff: Backoff = field(default_factory=Backoff)
