"""Who has a broker file open, and whose turn it is to write to it.

A session is a named pipe in the folder beside the file, locked for as long as its process lives. The kernel
drops the lock of a dead process, kill -9 included, so a lock that can be taken is the proof of a death; and a
byte written to the pipe wakes its owner. Nothing here reads or writes a message.

Rule: what keeps messages safe is the database's own lock. These files only make the broker quick and fair: if
somebody deletes them, messages come back to their queues and are delivered again, and none is lost.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

from carom.errors import BrokerUnavailable, Unsupported

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has neither flock nor named pipes
    fcntl = None  # type: ignore[assignment] # `check_platform` refuses before anybody uses it

PATIENCE_S = 10.0
"""How long to wait for another process that is writing, before saying so."""
_POLL_S = 0.0005
_LEFTOVER_S = 60.0
_NEW = ".new-"


def check_platform() -> None:
    """Refuse systems without file locks and named pipes, with a sentence."""
    if fcntl is None or not hasattr(os, "mkfifo"):  # pragma: no cover - no such system runs the tests
        raise Unsupported(
            "a broker file needs flock and named pipes, which this operating system does not have: "
            "use embedded:// (memory) or a RabbitMQ server"
        )


def folder_of(path: Path) -> Path:
    """Return the folder beside a broker file in which its sessions are."""
    return path.with_name(path.name + "-sessions")


class Session:
    """This process, present at a broker file: a locked pipe that wakes it."""

    def __init__(self, folder: Path) -> None:
        """Enter. The pipe gets its name only when it is locked, so nobody can take it for a dead one."""
        self.id = uuid.uuid4().hex
        self._path = folder / self.id
        draft = folder / (_NEW + self.id)
        os.mkfifo(draft, 0o600)
        self.fd = os.open(draft, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.rename(self._path)
        _inherited.add(self)

    def leave(self, *, settled: bool) -> None:
        """Let go. When the end is not in the log (``settled`` is false) the pipe stays, for others to find."""
        if settled:
            self._path.unlink(missing_ok=True)
        self.shut()

    def shut(self) -> None:
        """Close the pipe, which drops the lock."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Turn:
    """Whose turn it is to write: a lock that processes take one after another.

    It is two locks. Whoever wants to write takes the first, waits with it for the second, and lets go of the
    first; so a busy process cannot pass one that already waits, however often it comes back. SQLite's own lock
    would do for safety, but its waiters sleep for up to 100 ms and starve each other.
    """

    def __init__(self, folder: Path) -> None:
        """Open the two lock files."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._next = os.open(folder / ".next", flags, 0o600)
        self._turn = os.open(folder / ".turn", flags, 0o600)
        _inherited.add(self)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn and hold it. Raises BrokerUnavailable when another process holds it for too long."""
        deadline = time.monotonic() + PATIENCE_S
        _take(self._next, deadline)
        try:
            _take(self._turn, deadline)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    def shut(self) -> None:
        """Close the lock files."""
        if self._turn >= 0:
            os.close(self._next)
            os.close(self._turn)
            self._next = self._turn = -1


class Grave:
    """A session whose process is dead. We hold its lock, so nobody else deals with it now."""

    def __init__(self, session: str, path: Path, fd: int) -> None:
        """Keep the lock until `bury` or `shut`."""
        self.session = session
        self._path = path
        self._fd = fd

    def bury(self) -> None:
        """Remove the pipe; its end is in the log."""
        self._path.unlink(missing_ok=True)
        self.shut()

    def shut(self) -> None:
        """Let go of the lock, if it is held."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def graves(folder: Path, registered: Iterable[str], mine: str) -> list[Grave]:
    """Find the dead among the registered sessions and among the pipes, and lock them.

    A registered session without a pipe is dead too: a pipe is removed only after the end is in the log. Pipes
    that never got their name, left by a process killed in between, are removed here when they are old.
    """
    found = []
    names = {entry.name for entry in os.scandir(folder)}
    for name in sorted((names | set(registered)) - {mine}):
        if name.startswith("."):
            if name.startswith(_NEW):
                _remove_leftover(folder / name)
            continue
        fd = _lock_of_the_dead(folder / name)
        if fd is not None:
            found.append(Grave(name, folder / name, fd))
    return found


def wake(folder: Path, sessions: Iterable[str]) -> None:
    """Wake the owners of these sessions. One that is gone, or has wake-ups enough waiting, is left alone."""
    for session in sessions:
        with contextlib.suppress(OSError):
            fd = os.open(folder / session, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(fd, b"!")
            finally:
                os.close(fd)


def _take(fd: int, deadline: float) -> None:
    """Poll for a lock: a blocking flock could not be given a deadline in a thread."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"another process has been writing to the broker file for more than {PATIENCE_S:g} s: "
                    "look for one that is stopped or hangs"
                ) from None
            time.sleep(_POLL_S)
        else:
            return


def _lock_of_the_dead(path: Path) -> int | None:
    """Return the lock of a dead session; -1 when not even its pipe is left; None when it lives."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _remove_leftover(path: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _LEFTOVER_S:
            path.unlink()


_inherited: weakref.WeakSet[Session | Turn] = weakref.WeakSet()


def _close_inherited() -> None:
    """In a forked child: close what the parent has open, or a child would keep a dead parent's session alive."""
    for held in list(_inherited):
        held.shut()


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows cannot fork
    os.register_at_fork(after_in_child=_close_inherited)
