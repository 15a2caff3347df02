"""The gate: handlers run side by side, and a message that may have killed a worker runs alone.

When a process dies, the broker counts a return for every message it held, the guilty one and its neighbours
alike. A suspect is therefore started only when nothing else of this process runs, so that the next death is
blamed on it and on nobody who was merely near.

Rule: being alone has an end. A suspect that runs for long is no crash on arrival, and others may join it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from carom.ports import Clock

ALONE_MS = 10_000


class Gate:
    """One for all consumers of an app."""

    def __init__(self, clock: Clock) -> None:
        """Open."""
        self._clock = clock
        self._running = 0
        self._alone = False
        self._suspects: deque[Callable[[], None]] = deque()
        self._consumers: list[Callable[[], None]] = []
        self._relax: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        """Tell whether an ordinary message may start now."""
        return not self._alone and not self._suspects

    def wake(self, consumer: Callable[[], None]) -> None:
        """Call this whenever the gate has opened."""
        self._consumers.append(consumer)

    def enter(self) -> None:
        """Count somebody who has started. Ask `is_open` first."""
        self._running += 1

    def leave(self) -> None:
        """Count somebody who has ended."""
        self._running -= 1
        if self._running == 0 and (self._alone or self._suspects):
            self._end_alone()
            self._next()

    def ask(self, start: Callable[[], None]) -> None:
        """Start a suspect as soon as it can be alone. It leaves like everybody else."""
        self._suspects.append(start)
        if self._running == 0:
            self._next()

    def forget(self) -> None:
        """Forget suspects that have not been started: the app stops."""
        self._suspects.clear()

    def _next(self) -> None:
        if self._suspects:
            self._alone = True
            self._relax = self._clock.call_later(ALONE_MS, self._give_up)
            self._running += 1
            self._suspects.popleft()()
        else:
            self._open()

    def _give_up(self) -> None:
        """One suspect has been alone for long enough: whoever waits, suspect or not, may start."""
        waiting, self._suspects = self._suspects, deque()
        for start in waiting:
            self._running += 1
            start()
        self._open()

    def _end_alone(self) -> None:
        self._alone = False
        if self._relax is not None:
            self._relax()
            self._relax = None

    def _open(self) -> None:
        self._end_alone()
        for wake in self._consumers:
            wake()
