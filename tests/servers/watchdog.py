"""The watchdog: a process that owns the servers of a test run, and ends them when the run ends, however it ends.

It does what the lines of JSON on its standard input say, and answers each with a line. When that input ends, because
whoever held its other end closed it or died, it ends what it started and all that those started, undoes what was to
be undone, removes its scratch directory and exits. It is a session of its own: a Ctrl-C at the terminal reaches the
tests, which then close the pipe, and never the servers.

Rule: it knows nothing of any server, needs nothing but the standard library (it runs with -I -S, so that it is there
at once), and never leaves a process or a file behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

LOOK_SECONDS, POLL_SECONDS = 1.0, 0.02
END_SECONDS, KILL_SECONDS, UNDO_SECONDS = 2.0, 10.0, 30.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class Owned:
    """A server: its process, and the signal that ends it at once without leaving anything in the system."""

    process: subprocess.Popen[bytes]
    end: int


class Watchdog:
    """Starts processes and keeps hold of them, of their children, and of what these leave to themselves."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.owned: dict[str, Owned] = {}
        self.undoing: list[list[str]] = []

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Do one thing, and return what there is to say about it."""
        verbs: dict[str, Callable[..., Any]] = {
            "start": self.start,
            "kill": self.kill,
            "exited": self.exited,
            "undo": self.undoing.append,
        }
        try:
            return {"answer": verbs[order["verb"]](*order["given"])}
        except (OSError, subprocess.SubprocessError) as error:
            return {"error": f"{order['verb']}: {error}"}

    def start(self, name: str, command: list[str], environment: dict[str, str], user: str | None, end: int) -> int:
        """Start a process of this name, as this user; what it says is added to ``<scratch>/<name>.log``."""
        if name in self.owned and self.owned[name].process.poll() is None:
            raise OSError(f"{name} runs already")
        with (self.scratch / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.scratch,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                user=user,
                group=None if user is None else _group_of(user),
                extra_groups=None if user is None else [],
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - there is one thread here
            )
        self.owned[name] = Owned(process, end)
        return process.pid

    def kill(self, name: str) -> None:
        """Kill a server and all its children at once, as a power failure would; return when they are gone."""
        process = self.owned[name].process
        doomed = [] if process.poll() is not None else [process.pid, *_descendants(process.pid)]
        _kill(doomed)
        process.wait(KILL_SECONDS)
        _until(lambda: not set(doomed) & set(_descendants(os.getpid())), KILL_SECONDS)

    def exited(self, name: str) -> int | None:
        """Return how a server exited, or nothing while it runs."""
        return self.owned[name].process.poll()

    def end(self) -> None:
        """Leave nothing behind."""
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)
        running = [owned for owned in self.owned.values() if owned.process.poll() is None]
        for owned in running:
            with contextlib.suppress(ProcessLookupError):
                owned.process.send_signal(owned.end)
        _until(lambda: all(owned.process.poll() is not None for owned in running), END_SECONDS)
        _until(lambda: not _kill(_descendants(os.getpid())), KILL_SECONDS)
        for command in self.undoing:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(command, check=False, capture_output=True, timeout=UNDO_SECONDS)
        shutil.rmtree(self.scratch, ignore_errors=True)


def _group_of(user: str) -> int:
    import pwd

    return pwd.getpwnam(user).pw_gid


def _prctl(option: int, value: int) -> None:
    """Ask something of a Linux kernel; elsewhere the pipe alone has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _die_with_parent() -> None:
    """Have the kernel kill this process when the watchdog itself is killed."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill(pids: list[int]) -> list[int]:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return pids


def _until(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        select.select([], [], [], POLL_SECONDS)


def _descendants(pid: int) -> list[int]:
    """Return the processes that descend from one; on Linux also those that made themselves daemons."""
    children: dict[int, list[int]] = {}
    for child, parent in _processes():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    pids = [pid]
    while pids:
        born = children.get(pids.pop(), [])
        found += born
        pids += born
    return found


def _processes() -> Iterator[tuple[int, int]]:
    """Name every living process and its parent."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["ps", "-axo", "pid=,ppid=,stat="], check=False, capture_output=True, text=True)
        rows = (line.split() for line in listed.stdout.splitlines())
        yield from ((int(pid), int(parent)) for pid, parent, state in rows if not state.startswith("Z"))
        return
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            # The name of the program, in parentheses, may hold anything; behind it come the state and the parent.
            state, parent, *_ = (process / "stat").read_text().rpartition(")")[2].split()
            if state not in "ZX":
                yield int(process.name), int(parent)


def _lines(parent: int) -> Iterator[bytes]:
    """Yield the lines of the standard input until it ends or the parent is gone.

    A parent that is killed while a process it forked still holds the pipe leaves it open: hence the look.
    """
    rest = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], LOOK_SECONDS)[0]:
            continue
        read = os.read(0, 65_536)
        if not read:
            return
        *lines, rest = (rest + read).split(b"\n")
        yield from lines


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(1)


def main() -> None:
    """Be the watchdog of the process that started this one, whose id is given as the argument."""
    for each in _ENDING:
        signal.signal(each, _stop)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    watchdog = Watchdog(Path(tempfile.mkdtemp(prefix="carom-test-")))
    try:
        watchdog.scratch.chmod(0o711)  # a server that runs as another user has to pass through
        _say({"answer": str(watchdog.scratch)})
        for line in _lines(int(sys.argv[1])):
            _say(watchdog.obey(json.loads(line)))
    except BrokenPipeError:
        sys.stdout = None  # nobody listens: nothing is to be flushed at exit either
    finally:
        watchdog.end()


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
