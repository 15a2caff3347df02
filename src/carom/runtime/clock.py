"""The real clock: the wall for what is written down, the event loop for what is waited for.

Rule: whoever needs the time is given a clock; nothing else in the runtime asks the system for it to decide by.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class RealClock:
    """Implements `carom.ports.Clock` on the running event loop."""

    def now_ms(self) -> int:
        """Return the time of day in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: int, action: Callable[[], None]) -> Callable[[], None]:
        """Run an action later on the running loop."""
        return asyncio.get_running_loop().call_later(delay_ms / 1000, action).cancel

    async def sleep(self, delay_ms: int) -> None:
        """Wait."""
        await asyncio.sleep(delay_ms / 1000)
