"""The stage of the demo: a broker, a worker process that is started again when it dies, and the play itself.

Rule: whatever ends the play, no process, no file and no message of it is left behind, unless it is to be kept.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from carom import adapters
from carom.cli.demo import shop
from carom.cli.demo.story import CHAPTERS, Board, Chapter, Evidence, Row, message_of
from carom.core.effects import Confirmed
from carom.core.routing import route
from carom.core.topology import union
from carom.errors import ConfigurationError
from carom.ports import Broker, Delivery
from carom.runtime.app import App
from carom.runtime.clock import RealClock
from carom.runtime.publisher import new_id, publish_error

LOOK_S = 0.1
RESTART_S = 0.3
"""How long a supervisor waits before it starts a worker again."""
STARTS = 12
"""A worker that dies more often than this has another trouble than the story's."""
STOP_S = 10.0
PATIENCE_S = 60.0
"""When the play is over even if not all has happened; twenty times what it takes on a slow machine."""
LETTERS = 1000
"""No more dead letters or receipts than this are looked through for ours."""


@dataclass(frozen=True, slots=True)
class Play:
    """How the demo is played: its app, as a reference and as a value, and the pause between two orders."""

    reference: str
    app: App
    pause: float
    keep: bool

    @classmethod
    def choose(cls, *, fast: bool, keep: bool) -> Play:
        """Return the play at the pace for people, or for tests."""
        if fast:
            return cls("carom.cli.demo.shop:fast", shop.fast, 0.0, keep)
        return cls("carom.cli.demo.shop:app", shop.app, 0.8, keep)


@contextmanager
def temporary_broker(*, keep: bool) -> Iterator[str]:
    """Yield the URL of a broker in a file of its own, which is gone afterwards unless it is to be kept."""
    directory = tempfile.mkdtemp(prefix="carom-demo-")
    try:
        yield f"embedded:///{Path(directory).resolve() / 'broker.db'}"
    finally:
        if not keep:
            shutil.rmtree(directory)


class Worker:
    """A worker process and its supervisor."""

    def __init__(self, reference: str, url: str, board: Board) -> None:
        """Start nothing yet."""
        self.ready = asyncio.Event()
        self.last_exit: int | None = None
        self._command = (sys.executable, "-m", "carom", "run", reference, "--log-format", "json", "-v", "--grace", "5s")
        # The URL may hold a password: other users see the arguments of a process, but not its environment.
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("CAROM_")}
        self._environment["CAROM_BROKER"] = url
        self.board = board
        self._process: asyncio.subprocess.Process | None = None
        self._last_lines: deque[str] = deque(maxlen=5)
        self._stopping = False

    async def supervise(self) -> None:
        """Run workers, one after the other, until `stop`."""
        while not self._stopping:
            if self.board.starts >= STARTS:
                raise ConfigurationError(
                    "\n  ".join([f"the worker died {STARTS} times; it last said:", *self._last_lines])
                )
            await self._run()
            if not self._stopping:
                await asyncio.sleep(RESTART_S)

    async def stop(self) -> None:
        """Ask the worker to stop, wait until it has, and make it stop if it does not."""
        self._stopping = True
        process = self._process
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            self.kill()
            await process.wait()
        self.last_exit = process.returncode

    def kill(self) -> None:
        """End the worker at once."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _run(self) -> None:
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the demo; what becomes of its worker is the demo's to decide
            limit=1024 * 1024,
        )
        self.board.started(process.pid)
        if process.stderr is not None:
            async for line in process.stderr:
                self._read(line)
        code = await process.wait()
        if not self._stopping:
            self.board.died(process.pid, code)

    def _read(self, line: bytes) -> None:
        try:
            event: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError:
            self._last_lines.append(line.decode(errors="replace").rstrip())
            return
        if event.get("event") == "Started":
            self.ready.set()
        self.board.heard(event)


class Stage:
    """Everything the play needs, and the play."""

    def __init__(self, play: Play, url: str, board: Board) -> None:
        """Prepare; nothing happens before `perform`."""
        self.worker = Worker(play.reference, url, board)
        self._play = play
        self.board = board
        self._clock = RealClock()
        self._broker: Broker = adapters.broker(url, self._clock, lambda _event: None)
        self._topology = union(play.app.topology, shop.receipts())
        address = play.app.layout.dead_address(shop.QUEUE)
        (self._dead_queue,) = route(self._topology, address.exchange, address.routing_key)

    async def perform(self) -> Evidence:
        """Play it, and return what was found on the broker afterwards."""
        await self._broker.open()
        try:
            await self._broker.declare(self._topology)
            await self._acts()
            return await self._evidence()
        finally:
            await self._broker.close()

    async def _acts(self) -> None:
        supervising = asyncio.create_task(self.worker.supervise())
        ordering = asyncio.create_task(self._orders())
        watching = asyncio.create_task(self._watch(ordering))
        try:
            await asyncio.wait({supervising, watching}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ordering.cancel()
            watching.cancel()
            try:
                await self.worker.stop()
            finally:
                self.worker.kill()
                supervising.cancel()
                await asyncio.wait({supervising, ordering, watching})
        for task in (supervising, ordering, watching):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _orders(self) -> None:
        await self.worker.ready.wait()
        for identity, row in self.board.rows.items():
            message = message_of(row.chapter, identity, self._clock.now_ms())
            (result,) = await self._broker.publish((message,))
            if not isinstance(result, Confirmed):
                raise publish_error(message, result)
            self.board.sent(identity)
            if row.chapter.pause:
                await asyncio.sleep(self._play.pause)

    async def _watch(self, ordering: asyncio.Task[None]) -> None:
        """Look at the broker until every order has come to its end, and so does the broker say."""
        await self._look()
        while not self.board.settled or any(self._left().values()):
            if ordering.done():
                ordering.result()
            await asyncio.sleep(LOOK_S)
            await self._look()

    async def _look(self) -> None:
        depths = await self._broker.depths(one.name for one in self._topology.queues)
        self.board.depths = {
            queue: depth.ready + (depth.unacked or 0) for queue, depth in depths.items() if depth is not None
        }

    def _left(self) -> Mapping[str, int]:
        """Return what is in the queues that have to be empty in the end."""
        kept = {shop.RECEIPTS, self._dead_queue}
        return {queue: count for queue, count in self.board.depths.items() if queue not in kept}

    async def _evidence(self) -> Evidence:
        await self._look()
        dead = [one.message for one in await self._ours(self._dead_queue, lambda delivery: delivery.message.id)]
        receipts: dict[str, int] = {}
        for one in await self._ours(shop.RECEIPTS, lambda delivery: delivery.message.correlation_id):
            receipt = msgspec.json.decode(one.message.body, type=shop.Receipt)
            receipts[one.message.correlation_id] = receipt.attempt
        return Evidence(
            {message.id: message for message in dead},
            receipts,
            self._left(),
            self.board.crashes,
            self.worker.last_exit,
        )

    async def _ours(self, queue: str, identity: Callable[[Delivery], str]) -> list[Delivery]:
        """Take what belongs to this play from a queue; what does not goes back, and so does all that is to be kept."""
        taken: list[Delivery] = []
        while len(taken) < LETTERS and (delivery := await self._broker.get(queue)) is not None:
            taken.append(delivery)
        ours = [delivery for delivery in taken if identity(delivery) in self.board.rows]
        for delivery in taken:
            if self._play.keep or delivery not in ours:
                delivery.hand_back()
            else:
                delivery.ack()
        return ours


def new_board() -> Board:
    """Return a board on which nothing has happened, with an id for every order."""
    now_ms = RealClock().now_ms()
    return Board({new_id(now_ms): Row(chapter) for chapter in CHAPTERS})


def chapters(board: Board) -> dict[str, Chapter]:
    """Return the orders of a board by their ids."""
    return {identity: row.chapter for identity, row in board.rows.items()}
