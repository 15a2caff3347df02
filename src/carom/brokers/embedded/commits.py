"""Group commit: what the event loop asks of a broker file gathers while a commit runs, and shares the next one.

Rule: the journal is used in one thread of its own, and the answers come back to the event loop in the order of asking.
Rule: a settlement is never given up. When a commit fails, settlements wait and are tried again; whatever else was
asked is answered with the failure, because somebody waits for that answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

import msgspec

from carom.brokers.embedded import sessions
from carom.brokers.embedded.commands import Command, End, Get, Settle
from carom.brokers.embedded.engine import Engine, Handed, Verb
from carom.brokers.embedded.journal import Change, Journal, Look, Request
from carom.brokers.embedded.sessions import Session
from carom.errors import BrokerError, BrokerUnavailable, CaromError
from carom.ports import Clock

RETRY_S = 0.5
"""How long after a failed commit the settlements in it are tried again."""
SNAPSHOT_RETRY_S = 30.0
_T = TypeVar("_T")
_Asked: TypeAlias = tuple[Request, "asyncio.Future[Any] | None"]


class Commits:
    """The way from the event loop to the journal and back.

    ``take`` gets each change after its COMMIT; ``trouble`` gets a sentence when commits fail and None when they work
    again. Both are called on the event loop.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        take: Callable[[Change], None],
        trouble: Callable[[str | None], None],
    ) -> None:
        """Start the thread. `stop` ends it."""
        self.journal = journal
        self._clock = clock
        self._take = take
        self._trouble = trouble
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="carom-file")
        self._asked: list[_Asked] = []
        self._settling: Settle | None = None
        self._scheduled = False
        self._running = False
        self._wanted = False
        self._sweep = False
        self._failing = False
        self._no_snapshot_before = 0.0
        self._retry: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Tell whether nothing is under way."""
        return not (self._asked or self._scheduled or self._running or self._wanted)

    def ask(self, command: Command | Look, encoded: msgspec.Raw | None = None) -> asyncio.Future[Any]:
        """Ask for a command; the future gets the engine's answer after the COMMIT, or what went wrong."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._asked.append((Request(command, encoded), future))
        self._settling = None
        self._schedule()
        return future

    def look(self, question: Callable[[Engine], _T]) -> asyncio.Future[_T]:
        """Ask the engine something; it sees all that was asked before."""
        return self.ask(Look(question))

    def settle(self, session: str, tag: int, verb: Verb) -> None:
        """Settle a delivery. Those that follow one another the same way make one command."""
        settling = self._settling
        if settling is not None and settling.verb == verb and settling.session == session:
            settling.tags.append(tag)
            return
        self._settling = Settle(session, verb, [tag])
        self._asked.append((Request(self._settling), None))
        self._schedule()

    def nudge(self, *, sweep: bool = False) -> None:
        """Look at what others did and at what is due; with ``sweep`` also for sessions whose process has died."""
        self._wanted = True
        self._sweep = self._sweep or sweep
        self._schedule()

    async def opened(self) -> None:
        """Open the file, in its thread."""
        await self._loop.run_in_executor(self._thread, self.journal.open)

    async def entered(self) -> Session:
        """Enter with a new session, after what is under way."""
        return await self._loop.run_in_executor(self._thread, self.journal.enter)

    async def closed(self) -> None:
        """Close the file, after what is under way."""
        await self._loop.run_in_executor(self._thread, self.journal.close)

    def abandon(self, session: str) -> None:
        """Fail what is still to be asked for a session that is over; its settlements are of no use any more."""
        kept: list[_Asked] = []
        for request, future in self._asked:
            if getattr(request.command, "session", None) != session:
                kept.append((request, future))
            elif future is not None and not future.done():
                future.set_exception(BrokerUnavailable("the connection to the broker file was lost while waiting"))
        self._asked = kept
        self._settling = None

    def stop(self) -> None:
        """Close the journal and end the thread. What is still to be asked is answered as unavailable."""
        if self._retry is not None:
            self._retry.cancel()
        for _, future in self._asked:
            if future is not None and not future.done():
                future.set_exception(BrokerUnavailable("the broker file was closed"))
        self._asked = []
        self._settling = None
        with contextlib.suppress(RuntimeError):
            self._thread.submit(self.journal.close)
        self._thread.shutdown(wait=False)

    def _schedule(self) -> None:
        if not self._scheduled and not self._running:
            self._scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Send all that was asked so far to the thread, as one turn."""
        self._scheduled = False
        asked, self._asked, self._settling = self._asked, [], None
        sweep, self._sweep, self._wanted = self._sweep, False, False
        self._running = True
        with contextlib.suppress(RuntimeError):  # stopped meanwhile
            self._thread.submit(self._work, asked, sweep, self._clock.now_ms())

    def _work(self, asked: list[_Asked], sweep: bool, now_ms: int) -> None:  # noqa: FBT001 - a job of the thread
        """In the thread: one turn, then a snapshot if the log has grown enough."""
        journal = self.journal
        try:
            change: Change | CaromError = self._turn(asked, sweep, now_ms)
        except CaromError as error:
            change = error
        except Exception as error:  # noqa: BLE001 - a defect must not end the thread in silence
            change = BrokerError(f"the broker file {journal.path} failed unexpectedly: {error!r}")
            change.__cause__ = error
        self._back(self._done, asked, change)
        if (
            not isinstance(change, CaromError)
            and journal.snapshot_is_due
            and time.monotonic() > self._no_snapshot_before
        ):
            try:
                self._back(self._take, journal.snapshot())
            except CaromError:  # the log only grows longer; if there is more to it, the next turn says so
                self._no_snapshot_before = time.monotonic() + SNAPSHOT_RETRY_S

    def _turn(self, asked: list[_Asked], sweep: bool, now_ms: int) -> Change:  # noqa: FBT001 - a job of the thread
        journal = self.journal
        requests = [request for request, _ in asked]
        if not sweep:
            return journal.turn(requests, now_ms)
        graves = sessions.graves(journal.folder, journal.registered(), journal.session)
        try:
            change = journal.turn([*requests, *(Request(End(grave.session)) for grave in graves)], now_ms)
            for grave in graves:
                grave.bury()
        finally:
            for grave in graves:
                grave.shut()
        return change

    def _back(self, action: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is there to be told
            self._loop.call_soon_threadsafe(action, *arguments)

    def _done(self, asked: list[_Asked], change: Change | CaromError) -> None:
        """On the loop again: answer, then pass the change on."""
        self._running = False
        more = bool(self._asked) or self._wanted
        if isinstance(change, CaromError):
            self._failed(asked, change)
        else:
            if self._failing:
                self._failing = False
                self._trouble(None)
            for (request, future), answer in zip(asked, change.answers, strict=False):  # the sweep's are at the end
                self._tell(request, future, answer)
            self._take(change)
            more = bool(self._asked) or self._wanted
        if more:
            self._schedule()

    def _tell(self, request: Request, future: asyncio.Future[Any] | None, answer: object) -> None:
        if future is None:
            return
        if not future.done():
            if isinstance(answer, CaromError):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        elif isinstance(request.command, Get) and isinstance(answer, Handed):
            self.settle(answer.session, answer.tag, "hand_back")  # who wanted it was cancelled meanwhile

    def _failed(self, asked: list[_Asked], error: CaromError) -> None:
        kept: list[_Asked] = []
        for request, future in asked:
            if isinstance(request.command, Settle):
                kept.append((request, None))
            elif future is not None and not future.done():
                future.set_exception(error)
        self._asked[:0] = kept
        if not self._failing:
            self._failing = True
            self._trouble(str(error))
        if self._retry is not None:
            self._retry.cancel()
        self._retry = self._loop.call_later(RETRY_S, self.nudge)
