"""Beside: the queues of Carom's own that stand beside another system's, and the ways that go by a queue's name.

A suspect is published to a queue of the app's own, a dead letter where it stays until people have seen to it. No
other system binds, declares or reads these queues.

Rule: everything here is reached through the default exchange or an exchange of that system, so that nothing of theirs
is declared otherwise than they do it.
"""

from __future__ import annotations

from carom.core.retry import RetryPolicy
from carom.core.settlement import Plan
from carom.core.topology import DEFAULT_EXCHANGE, Queue, at_least_once, quorum
from carom.core.wire import Address
from carom.layouts.shared import DELIVERY_LIMIT, UNLIMITED


class Beside:
    """What a layout of another system needs besides: `suspects`, and how to reach a queue by its name."""

    __slots__ = ()
    namespace: str
    app: str

    @property
    def suspects(self) -> str:
        """Return the app's queue of suspects."""
        return f"{self.namespace}.suspects.{self.app}"

    def suspect_address(self, queue: str) -> Address:  # noqa: ARG002 - the message says which queue it is for
        """Return the queue of the suspects by its name."""
        return Address(DEFAULT_EXCHANGE, self.suspects)

    def queue_address(self, queue: str) -> Address:
        """Return the queue by its name."""
        return Address(DEFAULT_EXCHANGE, queue)

    def suspect_queues(self, plans: tuple[Plan, ...]) -> tuple[Queue, ...]:
        """Return the queue of the suspects and that of its dead letters; none for an app without listeners."""
        dead = f"{self.suspects}.dlq"
        watched = quorum(self.suspects, delivery_limit=DELIVERY_LIMIT, **at_least_once(DEFAULT_EXCHANGE, dead))
        return (watched, kept(dead)) if plans else ()


def kept(name: str) -> Queue:
    """Return a queue of dead letters that nothing ever leaves by itself."""
    return quorum(name, delivery_limit=UNLIMITED)


def attempts(policy: RetryPolicy) -> int:
    """Return how many attempts a policy, or an override of it, allows at most."""
    return max(policy.attempts, *(attempts(retry) for _, retry in policy.overrides), 1)
