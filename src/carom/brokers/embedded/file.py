"""FileBroker: the embedded broker in one SQLite file, shared by all processes that have it open.

What is confirmed is on disk, and survives kill -9 at any moment; what a process held when it died comes back to its
queue within about half a second and is counted. Several processes may publish and consume at once: `journal` keeps
their states the same, `sessions` tells who lives, `commits` lets all that is asked while a commit runs share the next.

Costs: a confirm, and an acknowledgement, is one fsync shared by all that wait for it; each process holds all messages
in memory. POSIX only, and one machine: the locks do not reach across a network file system.

Rule: the event loop never waits for the disk, and the engine is never touched from the event loop.
Rule: nobody learns of an effect before the COMMIT that made it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from carom.brokers.embedded import commands as wire
from carom.brokers.embedded import sessions
from carom.brokers.embedded.commands import Batch, Cancel, Consume, Declare, DeleteQueue, End, Get, Publish, Purge
from carom.brokers.embedded.commits import Commits
from carom.brokers.embedded.deliveries import EmbeddedDelivery
from carom.brokers.embedded.engine import Ended, Handed, Verb
from carom.brokers.embedded.journal import Change, Journal
from carom.core.effects import PublishResult, Returned, Unknown
from carom.core.message import Message
from carom.core.topology import Topology
from carom.errors import BrokerError, BrokerUnavailable, CaromError, TopologyMismatch
from carom.ports import (
    BrokerEvent,
    Clock,
    ConnectionBlocked,
    ConnectionDown,
    ConnectionUnblocked,
    ConnectionUp,
    ConsumerEnded,
    Delivery,
    Depth,
    Mode,
    Report,
)

POLL_S = 0.25
"""How often to look what others did, should a wake-up be lost; every second time also for who has died."""
RESTORE_S = 0.5
WINDOW = 64 * 1024 * 1024
"""How much may be unconfirmed, in bytes; further publishers wait."""
LARGEST = 128 * 1024 * 1024
"""The largest message, in bytes, as on RabbitMQ."""
_BATCH = 500
_BATCH_BYTES = 4 * 1024 * 1024


class FileSubscription:
    """A running consumer of one queue; see `carom.ports.Subscription`."""

    def __init__(
        self,
        broker: FileBroker,
        queue: str,
        receive: Callable[[Delivery], None],
        prefetch: int,
        ended: Callable[[str], None],
    ) -> None:
        """Keep what is needed to start it, again after each loss of the session."""
        self.broker = broker
        self.queue = queue
        self.receive = receive
        self.prefetch = prefetch
        self.ended = ended
        self.consumer = ""

    async def cancel(self) -> None:
        """Stop taking messages; deliveries already in our hands stay valid. Afterwards ``receive`` is not called."""
        await self.broker.stop(self)


class FileLink:
    """The way back of the deliveries of one session."""

    __slots__ = ("_commits", "open", "session")

    def __init__(self, commits: Commits, session: str) -> None:
        """Start open."""
        self.open = True
        self.session = session
        self._commits = commits

    def settle(self, tag: int, verb: Verb) -> None:
        """Settle a delivery, unless the session is over and the broker has the message again."""
        if self.open:
            self._commits.settle(self.session, tag, verb)


class FileBroker:
    """A `carom.ports.Broker` in one file. An instance belongs to one event loop and one process.

    ``observe`` opens the file for looking only: `depths` and `contents`, beside whoever works with it, without a
    session and without writing anything.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Clock,
        report: Callable[[BrokerEvent], None] | None = None,
        *,
        observe: bool = False,
    ) -> None:
        """Prepare it; nothing happens before `open`."""
        self.path = Path(path).absolute()
        self._clock = clock
        self._report: Report = report or (lambda _event: None)
        self._observe = observe
        self._pid = 0
        self._commits: Commits | None = None
        self._journal = Journal(self.path, observe=observe)
        self._session: sessions.Session | None = None
        self._link: FileLink | None = None
        self._subscriptions: dict[str, FileSubscription] = {}
        self._numbers = itertools.count(1)
        self._undelivered = 0
        self._window = _Window(WINDOW)
        self._timer: tuple[int, Callable[[], None]] | None = None
        self._poll: asyncio.TimerHandle | None = None
        self._restoring: asyncio.Task[None] | None = None
        self._closing = False

    # -- the port

    async def open(self) -> None:
        """Open the file, or create it. Raises ConfigurationError, BrokerUnavailable or NotPermitted, with a sentence.

        Whatever a dead process held goes back to its queues. A second time does nothing.
        """
        if self._commits is not None:
            return
        sessions.check_platform()
        self._pid = os.getpid()
        self._closing = False
        self._commits = commits = Commits(self._journal, self._clock, self._take, self._trouble)
        try:
            await commits.in_thread(self._journal.open)
            if not self._observe:
                await self._enter(commits)
        except BaseException:
            self._commits = None
            commits.stop()
            raise
        self._report(ConnectionUp(self._name))
        self._look_around()

    async def close(self) -> None:
        """Write what was settled, end the session, and close the file. A second time does nothing."""
        commits, self._closing = self._commits, True
        if commits is None:
            return
        if self._restoring is not None:
            self._restoring.cancel()
        self._disarm()
        if self._poll is not None:
            self._poll.cancel()
        ended = self._observe
        try:
            if self._link is not None:
                self._link.open = False
                with suppress(BrokerError):  # others end it, when they find that nobody holds its lock any more
                    await commits.ask(End(self._link.session))
                    ended = True
        finally:
            self._commits = None
            commits.stop()
            self._subscriptions.clear()
            self._leave(settled=ended)

    async def declare(self, topology: Topology, mode: Mode = "apply") -> None:
        """Make the topology exist, or compare it. Raises TopologyMismatch or Unsupported; then nothing is changed."""
        if mode == "apply":
            await self._writing().ask(Declare(topology))
        elif mode == "verify" and (missing := await self._open().look(lambda engine: engine.compare(topology))):
            raise TopologyMismatch(missing)

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Publish, mandatory and confirmed; the results come in the order of the messages, when they are on disk.

        A message that no log can hold (a header of no AMQP type, more than 128 MiB) is Returned with the reason.
        Messages whose commit failed are Unknown. Waits while too much is unconfirmed.
        """
        commits = self._writing()
        waiting = []
        for part in _parts(messages):
            command, encoded, results = _publishing(part)
            size = len(bytes(encoded)) if encoded is not None else 0
            await self._window.enter(size)
            answer = commits.ask(command, encoded) if encoded is not None else None
            if answer is not None:
                answer.add_done_callback(lambda _answer, size=size: self._window.leave(size))
            waiting.append((answer, results))
        confirmed: list[PublishResult] = []
        for answer, results in waiting:
            confirmed += await _results(answer, results)
        return confirmed

    async def consume(
        self, queue: str, receive: Callable[[Delivery], None], *, prefetch: int, ended: Callable[[str], None]
    ) -> FileSubscription:
        """Deliver messages of a queue to ``receive``. Raises BrokerError for a queue that does not exist."""
        self._writing()
        subscription = FileSubscription(self, queue, receive, prefetch, ended)
        started = self._start(subscription)
        try:
            await started
        except BaseException:
            self._subscriptions.pop(subscription.consumer, None)
            raise
        return subscription

    async def get(self, queue: str) -> EmbeddedDelivery | None:
        """Take one message if there is one ready. Raises BrokerError for a queue that does not exist."""
        commits, link = self._writing(), self._link
        if link is None:
            raise BrokerUnavailable(f"the broker file {self.path} is being opened again: try again in a moment")
        handed: Handed | None = await commits.ask(Get(link.session, queue))
        return None if handed is None else EmbeddedDelivery(link, handed)

    async def depths(self, queues: Iterable[str]) -> dict[str, Depth | None]:
        """Return how deep the queues are; None for one that does not exist. Writes nothing."""
        names = tuple(queues)
        return await self._open().look(lambda engine: engine.depths(names))
