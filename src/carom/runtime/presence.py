"""Presence: whether the database is there.

Rule: told once when it goes and once when it is back, however many wait for it.
"""

from __future__ import annotations

from collections.abc import Callable

from carom.ports import StoreDown, StoreUp


class Presence:
    """What all who need the database of one app know of it together."""

    def __init__(self, database: str = "", notify: Callable[[object], None] | None = None) -> None:
        """Take it to be there. ``database`` is how it is named to people, without its password."""
        self.database = database
        self._notify = notify
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        """Tell whether it did not answer whoever asked last."""
        return self._is_lost

    def lost(self, error: BaseException, retry_in_ms: int) -> None:
        """Hear from somebody that it does not answer, and when that one asks again."""
        if not self._is_lost:
            self._is_lost = True
            if self._notify is not None:
                self._notify(StoreDown(self.database, str(error) or type(error).__name__, retry_in_ms))

    def found(self) -> None:
        """Hear from somebody that it answers."""
        if self._is_lost:
            self._is_lost = False
            if self._notify is not None:
                self._notify(StoreUp(self.database))
