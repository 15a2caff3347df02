"""Every exception of Carom. This module imports nothing and everybody may import it.

    CaromError
    ├── ConfigurationError        what was declared cannot work (also a ValueError)
    │   ├── SignatureError        a handler asks for something nobody can give it
    │   ├── TopologyError         every contradiction of a topology, at once
    │   └── Unsupported           a broker was asked for what it does not do
    ├── DecodeError               a body is not what the handler was promised
    ├── HandlerTimeout            a handler did not end within its time (also a TimeoutError)
    ├── BatchFailure              raised by a batch handler: which of its messages failed
    ├── StoreError
    │   ├── DatabaseUnavailable   nobody answers, or the connection was lost
    │   └── SchemaMismatch        the tables are not those this version needs
    └── BrokerError
        ├── BrokerUnavailable     nobody answers, or the connection was lost
        ├── NotPermitted          the broker knows us and says no
        ├── TopologyMismatch      what is declared differs from what is there
        └── PublishError
            ├── Unroutable        no queue wanted the message
            └── NotConfirmed      the broker refused it, or nobody knows

    Verdict                       raised by handlers to say what becomes of a message
    ├── Reject                    a dead letter, now
    ├── Retry                     again, later
    └── Discard                   done with it; keep it nowhere

Rule: a message says what happened, to which queue or message, and what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta


class CaromError(Exception):
    """The root of everything Carom raises on its own account."""


class ConfigurationError(CaromError, ValueError):
    """Something was declared that cannot work; the text says what and how to say it instead."""


class SignatureError(ConfigurationError):
    """A handler's signature asks for something nobody can give it. Raised when it is declared."""


class TopologyError(ConfigurationError):
    """A topology contradicts itself. ``problems`` names every contradiction, not only the first."""

    def __init__(self, problems: Sequence[str]) -> None:
        """Keep the problems, one sentence each."""
        self.problems: tuple[str, ...] = tuple(problems)
        super().__init__("the topology cannot work:\n" + "\n".join(f"  - {problem}" for problem in self.problems))


class Unsupported(ConfigurationError):
    """A broker was asked for something it does not do, and refuses rather than pretend."""


class DecodeError(CaromError, ValueError):
    """A body is not what the handler was promised. Such a message becomes a dead letter, never a retry."""


class HandlerTimeout(CaromError, TimeoutError):
    """A handler did not end within its listener's timeout and was stopped. Transient, like every timeout."""


class BatchFailure(CaromError):
    """Raised by a batch handler to say which of its messages failed; the others are done.

    >>> raise BatchFailure({3: ValueError("no such account")})  # doctest: +SKIP
    """

    def __init__(self, errors: Mapping[int, BaseException]) -> None:
        """Map the index of each failed message in the batch to its error."""
        self.errors: dict[int, BaseException] = dict(errors)
        super().__init__(f"{len(self.errors)} of the batch failed, at {sorted(self.errors)}")


class StoreError(CaromError):
    """The database, or the way to it, did not do what was asked."""


class DatabaseUnavailable(StoreError):
    """Nobody answers at the database's address, or the connection was lost while waiting."""


class SchemaMismatch(StoreError):
    """The tables are missing, older or newer than this version of Carom needs; the text says which, and what to run."""


class BrokerError(CaromError):
    """The broker, or the way to it, did not do what was asked."""


class BrokerUnavailable(BrokerError):
    """Nobody answers at the broker's address, or the connection was lost while waiting."""


class NotPermitted(BrokerError):
    """The broker refused the credentials or the permission; trying again will not help."""


class TopologyMismatch(BrokerError):
    """What is declared and what the broker has differ. ``differences`` names each, with both values."""

    def __init__(self, differences: Sequence[str]) -> None:
        """Keep the differences, one sentence each."""
        self.differences: tuple[str, ...] = tuple(differences)
        super().__init__("the broker has something else:\n" + "\n".join(f"  - {line}" for line in self.differences))


class PublishError(BrokerError):
    """A message was not taken over by the broker. ``message_id`` says which one."""

    def __init__(self, text: str, message_id: str = "") -> None:
        """Keep the id of the message beside the sentence."""
        self.message_id = message_id
        super().__init__(text)


class Unroutable(PublishError):
    """The exchange exists and no queue wanted the message: nothing holds it now."""


class NotConfirmed(PublishError):
    """The broker refused the message, or nobody knows whether it has it. Publish it again with the same id."""


class Verdict(Exception):
    """What a handler raises to say what becomes of its message."""

    def __init__(self, reason: str = "") -> None:
        """Keep the reason; it is shown wherever the message is."""
        self.reason = reason
        super().__init__(reason)


class Reject(Verdict):
    """This message can never succeed: make it a dead letter now."""


class Discard(Verdict):
    """This message is of no use: acknowledge it, count it, keep it nowhere."""


class Retry(Verdict):
    """Try this message again, ``after`` a while (seconds, timedelta or ``"37s"``). It counts as an attempt.

    Without ``after`` the listener's policy chooses the delay. The attempts stay bounded by that policy.
    """

    def __init__(self, after: float | timedelta | str | None = None, reason: str = "") -> None:
        """Keep the wish; it is rounded up to the next delay that exists."""
        self.after = after
        super().__init__(reason)
