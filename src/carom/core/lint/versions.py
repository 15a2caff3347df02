"""Versions of RabbitMQ, and what they change under a queue.

Rule: a version that nobody said is (0, 0); whoever asks decides what it means not to know.
"""

from __future__ import annotations

import re
from typing import TypeAlias

Version: TypeAlias = tuple[int, int]

UNKNOWN: Version = (0, 0)
OLDEST: Version = (3, 10)
TYPED_POLICIES: Version = (3, 12)
"""From here on a policy can be for one kind of queue alone."""
FLAGLESS: Version = (3, 12)
"""From here on at-least-once dead lettering asks for no feature flag."""
LIMITED: Version = (4, 0)
"""From here on a quorum queue has a delivery limit that nobody gave it, and nothing is mirrored."""
DEFAULT_LIMIT = 20
LATEST: Version = (4, 3)
"""What refuses transient queues and ``x-queue-mode``, and delays in the queue itself."""

IGNORED_BEFORE: dict[str, Version] = {
    "x-consumer-timeout": (3, 12),
    "x-consumer-disconnected-timeout": LATEST,
    "x-delayed-retry-type": LATEST,
    "x-delayed-retry-min": LATEST,
    "x-delayed-retry-max": LATEST,
}
"""Arguments of queues that older servers keep and do not understand."""


def version_of(said: str) -> Version:
    """Return the first two numbers of a version; (0, 0) when there are none."""
    numbers = re.match(r"(\d{1,4})\.(\d{1,4})", said)
    return (int(numbers[1]), int(numbers[2])) if numbers else UNKNOWN


def shown(version: Version) -> str:
    """Return a version as people write it."""
    return f"{version[0]}.{version[1]}"
