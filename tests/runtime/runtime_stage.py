"""What the tests of the runtime share.

Rule: waiting has a deadline, and a test that needs one polls for what it waits for.
"""

from __future__ import annotations

import asyncio
import time

from carom.runtime import events

TERMINAL = (
    events.Handled,
    events.Duplicate,
    events.Retried,
    events.DeadLettered,
    events.Discarded,
    events.HandedBack,
    events.Postponed,
    events.Dropped,
)
DEADLINE_S = 20


async def until(came):
    """Let the loop and other threads go on until something came."""
    deadline = time.monotonic() + DEADLINE_S
    while not came():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0)


def told(found, *kinds):
    """Return the events of these kinds, in their order."""
    return [event for event in found if isinstance(event, kinds)]


def ends(found):
    """Name the terminal events of deliveries, in their order."""
    return [type(event).__name__ for event in told(found, *TERMINAL)]
