"""What the servers have in common: they are started, waited for until they answer, killed, and started again.

Rule: starting does not wait; whoever needs the server waits, as late as possible. A server that does not come up
says why, with the end of its log.
"""

from __future__ import annotations

import contextlib
import random
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .keeper import Keeper

HOST = "127.0.0.1"
POLL_SECONDS, ASK_SECONDS = 0.05, 2.0
TRIES = 3
# Below where systems take the ports of outgoing connections from. A client that tries to reach a port of that range
# on its own machine, while the server is away, may be given the same port and be connected to itself.
PORTS = range(20_000, 32_000)


class NotReady(Exception):
    """A server did not come up; the message has the end of its log."""


@dataclass(frozen=True)
class Recipe:
    """How to start a server: a command that stays in the foreground, and the signal that ends it without a trace."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    end: int = signal.SIGKILL


class Server:
    """A private server under a keeper. Subclasses say how it is started and when it is ready."""

    name: str
    patience_s: float = 90
    """How long its start may take on a slow machine."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.port = 0
        self.started_at = 0.0
        self._is_ready = self._was_ready = False

    # --- what a server is

    def prepare(self) -> None:
        """Choose ports and write what the server reads."""
        raise NotImplementedError

    def recipe(self) -> Recipe:
        """Return how it is started: the first time, and again after it was killed."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Return whether it serves its clients now."""
        raise NotImplementedError

    # --- what is done with it

    def start(self) -> None:
        """Start it, waiting for nothing."""
        if self.port == 0:
            self.prepare()
        recipe = self.recipe()
        self.started_at, self._is_ready = time.monotonic(), False
        self.keeper.ask("start", self.name, [*recipe.command], {**recipe.environment}, recipe.user, int(recipe.end))

    def await_ready(self) -> None:
        """Return when it answers. A first start that fails is tried again: somebody may have taken one of its ports."""
        tries = 1 if self._was_ready else TRIES
        while not self._is_ready:
            if self.answers():
                self._is_ready = self._was_ready = True
            elif (code := self.keeper.ask("exited", self.name)) is not None:
                tries -= 1
                if tries == 0:
                    raise NotReady(f"{self.name} exited with {code} instead of starting; it said:\n{self.log()}")
                self.prepare()
                self.start()
            elif time.monotonic() - self.started_at > self.patience_s:
                raise NotReady(f"{self.name} does not answer after {self.patience_s:.0f} s; it said:\n{self.log()}")
            else:
                select.select([], [], [], POLL_SECONDS)

    def kill(self) -> None:
        """Kill it and all its processes at once, as with ``kill -9``; return when they are gone."""
        self.keeper.ask("kill", self.name)

    def restart(self) -> None:
        """Start it again, on the same ports and files, killing it first if it runs; return when it answers."""
        if self.runs:
            self.kill()
        self.start()
        self.await_ready()

    def heal(self) -> None:
        """Undo what a test did to it."""
        if not self.runs:
            self.restart()

    @property
    def runs(self) -> bool:
        """Whether its process is there."""
        return self.keeper.ask("exited", self.name) is None

    @property
    def folder(self) -> Path:
        """Its own part of the scratch directory."""
        return self.keeper.scratch / self.name

    def log(self, size: int = 4_000) -> str:
        """Return the end of what it said."""
        return (self.keeper.scratch / f"{self.name}.log").read_text(encoding="utf-8", errors="replace")[-size:]


def free_port() -> int:
    """Return a port of this machine that nobody has now."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port
    raise OSError(f"every port of {HOST} from {PORTS.start} to {PORTS.stop} is taken")


def converse(port: int, request: bytes, size: int) -> bytes:
    """Connect, send, and return the first bytes of the answer; nothing when there is no such server yet."""
    try:
        with socket.create_connection((HOST, port), ASK_SECONDS) as connection:
            connection.settimeout(ASK_SECONDS)
            connection.sendall(request)
            return connection.recv(size)
    except OSError:
        return b""
