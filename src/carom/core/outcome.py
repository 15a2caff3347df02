"""What a handler said of its message. An outcome is a value; `settlement` decides what follows from it.

Rule: every way a handler can end is exactly one of these, and nothing else is passed on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Done:
    """The handler returned: the message is handled."""


@dataclass(frozen=True, slots=True)
class Discard:
    """The handler wants the message acknowledged and kept nowhere."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Retry:
    """The handler wants another attempt, after a while of its choosing or the policy's."""

    after_ms: int | None = None
    reason: str = ""
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """The message can never succeed. ``why`` becomes its reason header, such as ``malformed``."""

    reason: str = ""
    why: str = "rejected"
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised; the policy decides by the error and the attempt."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The worker is stopping: the message goes back and no attempt is counted."""


Outcome: TypeAlias = Done | Discard | Retry | Reject | Failed | Interrupted
