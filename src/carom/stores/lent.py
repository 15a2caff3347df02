"""Sessions that are lent to handlers: everything a `Session` does, but the end of its transaction is not theirs.

A handler that committed by itself would record its message as handled before it has handled it, one that rolled back
would go on in a transaction without the record. Both would be noticed when it is too late, so both are refused at once.

Rule: whoever lends a session ends it. A handler that wants to undo a part uses ``begin_nested()``; one that wants
nothing kept raises.
"""

from __future__ import annotations

from typing import Never

from sqlalchemy.orm import Session

from carom.errors import ConfigurationError


class LentSession(Session):
    """A session in the hands of a handler."""

    def commit(self) -> Never:
        """Refuse: the transaction is committed when the handler has returned."""
        raise _refused("commit")

    def rollback(self) -> Never:
        """Refuse: the transaction is rolled back when the handler raises."""
        raise _refused("rollback")

    def close(self) -> Never:
        """Refuse: the session is closed when the handler has ended."""
        raise _refused("close")

    def reset(self) -> Never:
        """Refuse, as with `close`."""
        raise _refused("reset")

    def invalidate(self) -> Never:
        """Refuse, as with `close`."""
        raise _refused("invalidate")

    def commit_loan(self) -> None:
        """Commit; for whoever has lent it."""
        super().commit()

    def close_loan(self) -> None:
        """Roll back what was not committed, and close; for whoever has lent it."""
        super().close()


def _refused(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"a handler called {what}() on the session it was lent, whose transaction also records the message: it is "
        "committed when the handler returns and rolled back when it raises. To undo a part use begin_nested()"
    )
