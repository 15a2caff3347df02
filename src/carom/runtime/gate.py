"""The gate: handlers run side by side, and a message that may have killed a worker runs alone.

When a process dies, the broker counts a return for every message it held, the guilty one and its neighbours
alike. A suspect is therefore started only when nothing else of this process runs, so that the next death is
blamed on it and on nobody who was merely near.

Rule: being alone has an end, and so has waiting to be. A suspect that runs for long is no crash on arrival, and
others may join it; one that has waited long for others, which may hang, joins them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from carom.ports import Clock

ALONE_MS = 10_000
"""How long a suspect runs alone, and how long it waits for that."""


class Gate:
    """One for all consumers of an app."""

    def __init__(self, clock: Clock) -> None:
        """Open."""
        self._clock = clock
        self._running = 0
        self._alone = False
        self._suspects: deque[Callable[[], bool]] = deque()
        self._consumers: list[Callable[[], None]] = []
        self._patience: Callable[[], None] | None = None

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
            self._next()

    def ask(self, start: Callable[[], bool]) -> None:
        """Start a suspect as soon as it can be alone. It leaves like everybody else.

        ``start`` tells whether it has started one: by then the suspect may be gone, or have no place.
        """
        self._suspects.append(start)
        if self._running == 0:
            self._next()
        elif self._patience is None:
            self._be_patient()

    def forget(self) -> None:
        """Forget suspects that have not been started: the app stops, and their consumers hand them back."""
        self._suspects.clear()
        self._end_patience()

    def _next(self) -> None:
        """Start the next suspect alone, or open."""
        self._end_patience()
        self._alone = False
        while self._suspects:
            if self._suspects.popleft()():
                self._running += 1
                self._alone = True
                self._be_patient()
                return
        self._open()

    def _give_up(self) -> None:
        """Whoever waits, suspect or not, has waited for long enough and may start."""
        self._patience = None
        self._alone = False
        waiting, self._suspects = self._suspects, deque()
        for start in waiting:
            if start():
                self._running += 1
        self._open()

    def _be_patient(self) -> None:
        self._patience = self._clock.call_later(ALONE_MS, self._give_up)

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience()
            self._patience = None

    def _open(self) -> None:
        for wake in self._consumers:
            wake()
