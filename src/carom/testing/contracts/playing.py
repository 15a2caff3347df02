"""Playing: what every contract plays its tests with: a loop of their own, a deadline, time that passes.

Rule: a test knows of time only through `wait` and `now_ms`, so that the same test runs on virtual and on real time.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Protocol

import pytest

POLL_MS = 5


class _Test(Protocol):
    def __call__(self, stage: Any, /, **given: object) -> Coroutine[Any, Any, None]: ...


class Playing:
    """Runs the async tests of subclasses, each in an event loop of its own and on a fresh instance."""

    deadline_s: float = 60
    """A test that takes longer in real time has failed."""

    _open: AsyncExitStack

    async def wait(self, ms: int) -> None:
        """Let time pass. Whoever has virtual time moves its clock instead; 0 only lets others run."""
        await asyncio.sleep(ms / 1000)

    def now_ms(self) -> float:
        """Return the time that `wait` moves, in milliseconds from anywhere."""
        return time.monotonic() * 1000

    async def set_up(self) -> None:
        """Prepare a test, in its event loop."""

    def __init_subclass__(cls, **given: object) -> None:
        """Let plain pytest run the async tests of every subclass, an adapter's own included."""
        super().__init_subclass__(**given)
        for name, test in list(vars(cls).items()):
            if name.startswith("test") and inspect.iscoroutinefunction(test):
                setattr(cls, name, _played(test))

    async def play(self, test: Callable[[], Awaitable[None]]) -> None:
        """Run one test after `set_up`; what it opened is closed, in reverse order, whether it failed or not."""
        self._begin()
        await self.set_up()
        try:
            async with asyncio.timeout(self.deadline_s), AsyncExitStack() as self._open:
                await test()
        finally:
            await self._end()

    def _begin(self) -> None:
        """Prepare the instance."""

    async def _end(self) -> None:
        """Clean up; everything is closed by then."""

    async def until(
        self, came: Callable[[], bool | Awaitable[bool]], what: str, within_ms: int = 10_000, every_ms: int = POLL_MS
    ) -> None:
        """Let time pass until something came, looking every few milliseconds; fail when it has not come in time."""
        deadline = self.now_ms() + within_ms
        await self.wait(0)
        while True:
            answer = came()
            if answer if isinstance(answer, bool) else await answer:
                return
            if self.now_ms() > deadline:
                pytest.fail(f"waited {within_ms} ms in vain for {what}")
            await self.wait(every_ms)


def _played(test: _Test) -> Callable[..., None]:
    @functools.wraps(test)
    def run(stage: Playing, **given: object) -> None:
        asyncio.run(stage.play(lambda: test(stage, **given)))

    return run
