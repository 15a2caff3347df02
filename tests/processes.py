"""Programs of a test's own: started, killed, started again when they end, and gone when the test is over.

Rule: what a program said is in a file beside it, and whoever waits for it in vain is shown the end of that.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from carom.runtime.clock import RealClock
from servers.server import HOST

CLOCK = RealClock()
POLL_MS = 20
SHOWN = 2_000


class Programs:
    """Processes by name. They are started in a folder, with additions to the environment."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = {**os.environ, **environment}
        self.kills: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self._commands: dict[str, tuple[str, ...]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill everything."""
        self._commands.clear()
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()

    def start(self, name: str, *words: object) -> None:
        """Start a module of Python with its arguments."""
        self._commands[name] = (sys.executable, "-m", *(str(word) for word in words))
        self._start(name)

    def _start(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                self._commands[name], cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )

    def kill(self, name: str) -> None:
        """Kill one with ``kill -9``, and start it again."""
        self.kills[name] += 1
        self._running[name].kill()
        self._running[name].wait()
        self._start(name)

    def supervise(self) -> None:
        """Start again what has ended by itself."""
        for name, process in tuple(self._running.items()):
            if process.poll() is not None:
                self.ends[name] += 1
                self._start(name)

    def name_of(self, pid: int) -> str | None:
        """Return which program has this process id."""
        return next((name for name, process in self._running.items() if process.pid == pid), None)

    def stop(self, name: str, within_s: float = 30) -> int:
        """End one with SIGTERM, and return its exit code."""
        process = self._running.pop(name)
        process.terminate()
        try:
            return process.wait(within_s)
        finally:
            process.kill()
            process.wait()

    def said(self, name: str) -> str:
        """Return what a program said so far."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def story(self) -> str:
        """Return the end of what everybody said, for a test that fails."""
        return "\n".join(f"--- {name}\n{self.said(name)[-SHOWN:]}" for name in self._running)


def answers(port: int) -> bool:
    """Tell whether somebody listens at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def await_answer(port: int, programs: Programs, within_s: float = 30) -> None:
    """Wait until somebody listens at a port."""
    deadline = time.monotonic() + within_s
    waiting = socket.socketpair()
    try:
        waiting[0].settimeout(POLL_MS / 1000)
        while not answers(port):
            assert time.monotonic() < deadline, f"nobody listens at {port}\n{programs.story()}"
            try:
                waiting[0].recv(1)
            except TimeoutError:
                continue
    finally:
        for one in waiting:
            one.close()
