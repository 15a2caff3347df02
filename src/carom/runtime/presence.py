"""Presence: whether the database is there.

Rule: told once when it goes and once when it is back, however many wait for it.
"""

from __future__ import annotations

from collections.abc import Callable

from carom.ports import StoreDown, StoreUp


class Presence:
    """What the consumers of one app know together of their database."""

    def __init__(self, database: str = "", notify: Callable[[object], None] | None = None) -> None:
        """It is there until somebody meets that it is not."""
        self._database = database
        self._notify = notify
        self._is_lost = False

    def lost(self, reason: str, retry_in_ms: int) -> None:
        """Hear from somebody that it does not answer."""
        if not self._is_lost:
            self._is_lost = True
            if self._notify is not None:
                self._notify(StoreDown(self._database, reason, retry_in_ms))

    def found(self) -> None:
        """Hear from somebody that it answers."""
        if self._is_lost:
            self._is_lost = False
            if self._notify is not None:
                self._notify(StoreUp(self._database))
