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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from carom.brokers.embedded import sessions
from carom.brokers.embedded.commands import Batch, Cancel, Consume, Declare, DeleteQueue, End, Get, Publish, Purge
from carom.brokers.embedded.commits import Commits
from carom.brokers.embedded.deliveries import EmbeddedDelivery, guarded
from carom.brokers.embedded.engine import Ended, Handed, Verb
from carom.brokers.embedded.journal import Change, Journal
from carom.brokers.embedded.parts import Window, detached, divided
from carom.core.effects import PublishResult
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
LATE_MS = 10
WINDOW = 64 * 1024 * 1024
"""How much may be unconfirmed, in bytes; further publishers wait."""


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
        self.cancelled = False

    async def cancel(self) -> None:
        """Stop taking messages; deliveries already in our hands stay valid. Afterwards ``receive`` is not called."""
        await self.broker.stop(self)

    async def settled(self) -> None:
        """Return when everything that was settled so far is on disk."""
        await self.broker.written()


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
        self._name = f"embedded:///{self.path}"
        self._clock = clock
        self._report: Report = report or (lambda _event: None)
        self._observe = observe
        self._pid = os.getpid()
        self._commits: Commits | None = None
        self._link: FileLink | None = None
        self._subscriptions: dict[str, FileSubscription] = {}
        self._numbers = itertools.count(1)
        self._undelivered = 0
        self._window = Window(WINDOW)
        self._timer: tuple[int, Callable[[], None]] | None = None
        self._poll: asyncio.TimerHandle | None = None
        self._polls = 0
        self._reader = -1
        self._lost: list[FileSubscription] = []
        self._restoring: asyncio.Task[None] | None = None

    # -- the port

    async def open(self) -> None:
        """Open the file, or create it. Raises ConfigurationError, BrokerUnavailable or NotPermitted, with a sentence.

        Whatever a dead process held goes back to its queues. A second time does nothing.
        """
        if self._commits is not None:
            return
        sessions.check_platform()
        self._pid = os.getpid()
        # One journal for each opening: the thread of the last one may still be closing its own.
        commits = Commits(Journal(self.path, observe=self._observe), self._clock, self._take, self._trouble)
        try:
            await commits.opened()
            if not self._observe:
                await self._enter(commits)
        except BaseException:
            self._stop_reading()
            commits.stop()
            raise
        self._commits = commits
        self._report(ConnectionUp(self._name))
        if not self._observe:
            self._look_around()
            await commits.look(lambda _engine: None)  # answered when that look is over, and the dead are known

    async def close(self) -> None:
        """Write what was settled, end the session, and close the file. A second time does nothing."""
        commits, self._commits = self._commits, None
        if commits is None:
            return
        if self._restoring is not None:
            self._restoring.cancel()
            self._restoring = None
        if self._poll is not None:
            self._poll.cancel()
        self._disarm()
        self._stop_reading()
        link, self._link = self._link, None
        self._subscriptions.clear()
        self._lost.clear()
        try:
            if link is not None:
                link.open = False
                with suppress(BrokerError):  # then others end it, when they find that nobody holds its lock any more
                    await commits.ask(End(link.session))
            await commits.closed()
        finally:
            commits.stop()

    async def declare(self, topology: Topology, mode: Mode = "apply") -> None:
        """Make the topology exist, or compare it. Raises TopologyMismatch or Unsupported; then nothing is changed."""
        if mode == "apply":
            await self._writing().ask(Declare(topology))
        elif mode == "verify" and (missing := await self._looking().look(lambda engine: engine.compare(topology))):
            raise TopologyMismatch(missing)

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Publish, mandatory and confirmed; the results come in the order of the messages, when they are on disk.

        A message that no log can hold (a header of no AMQP type, more than 128 MiB) is Returned with the reason.
        Messages whose commit failed are Unknown. Waits while too much is unconfirmed.
        """
        commits = self._writing()
        parts = []
        for part in divided(messages):
            if part.size:
                await self._window.enter(part.size)
                part.answer = commits.ask(Publish(Batch(part.messages)), part.encoded)
                part.answer.add_done_callback(partial(self._window.leave, part.size))
            parts.append(part)
        results: list[PublishResult] = []
        for part in parts:
            results += await part.results()
        return results

    async def consume(
        self, queue: str, receive: Callable[[Delivery], None], *, prefetch: int, ended: Callable[[str], None]
    ) -> FileSubscription:
        """Deliver messages of a queue to ``receive``. Raises BrokerError for a queue that does not exist."""
        subscription = FileSubscription(self, queue, receive, prefetch, ended)
        await self._start(await self._linked(), subscription)
        return subscription

    async def get(self, queue: str) -> EmbeddedDelivery | None:
        """Take one message if there is one ready. Raises BrokerError for a queue that does not exist."""
        link = await self._linked()
        handed: Handed | None = await self._writing().ask(Get(link.session, queue))
        if handed is None:
            return None
        handed.message = detached(handed.message)
        return EmbeddedDelivery(link, handed)

    async def depths(self, queues: Iterable[str]) -> dict[str, Depth | None]:
        """Return how deep the queues are; None for one that does not exist. Writes nothing."""
        names = tuple(queues)
        return await self._looking().look(lambda engine: engine.depths(names))

    # -- beyond the port

    async def contents(self, queue: str) -> tuple[Message, ...]:
        """Return what is ready in a queue, in the order of delivery. Raises BrokerError for an unknown one."""
        return await self._looking().look(lambda engine: engine.contents(queue))

    async def delete_queue(self, queue: str) -> int:
        """Delete a queue with all that is in it; its consumers are told. Returns how much was ready."""
        count: int = await self._writing().ask(DeleteQueue(queue))
        return count

    async def purge(self, queue: str) -> int:
        """Forget what is ready in a queue and return how much it was."""
        count: int = await self._writing().ask(Purge(queue))
        return count

    async def disconnect(self) -> None:
        """Lose the session and enter with a new one, for tests: what was unsettled goes back and is counted."""
        link = await self._linked()
        await self._writing().ask(End(link.session))
        self._lose("disconnected on request")
        await self._linked()

    async def written(self) -> None:
        """Return when everything that was asked for so far is on disk."""
        if self._commits is not None:
            with suppress(BrokerError):
                await self._commits.look(lambda _engine: None)

    async def stop(self, subscription: FileSubscription) -> None:
        """Cancel a subscription; what was handed to it before is passed on first. A second time does nothing."""
        subscription.cancelled = True
        if self._commits is None or self._link is None or subscription.consumer not in self._subscriptions:
            return
        with suppress(BrokerUnavailable):  # what comes nevertheless is handed back, and the cancelling repeated
            await self._commits.ask(Cancel(self._link.session, subscription.consumer))
        await asyncio.sleep(0)
        self._subscriptions.pop(subscription.consumer, None)

    @property
    def idle(self) -> bool:
        """Tell whether nothing is under way: until time passes or others act, nothing comes by itself."""
        return not self._undelivered and (self._commits is None or self._commits.idle)

    def pending(self) -> bool:
        """Tell whether something is under way."""
        return not self.idle

    # -- inside: the state of the connection

    def _looking(self) -> Commits:
        if os.getpid() != self._pid:
            raise BrokerError(
                f"{self.path} was opened by the parent of this forked process: open a broker of your own after forking"
            )
        if self._commits is None:
            raise BrokerUnavailable(f"the broker file {self.path} is not open: call open() first")
        return self._commits

    def _writing(self) -> Commits:
        commits = self._looking()
        if self._observe:
            raise BrokerError(f"the broker file {self.path} is open for looking only: open it without observe=True")
        return commits

    async def _linked(self) -> FileLink:
        """Return the link of the session, after it was restored if need be."""
        self._writing()
        while self._restoring is not None:
            await asyncio.wait({self._restoring})
        if self._link is None:
            raise BrokerUnavailable(f"the broker file {self.path} is not open: call open() first")
        return self._link

    async def _enter(self, commits: Commits) -> None:
        session = await commits.entered()
        self._link = FileLink(commits, session.id)
        self._reader = session.fd
        asyncio.get_running_loop().add_reader(session.fd, self._woken)

    def _woken(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._reader, 65536)
        if self._commits is not None:
            self._commits.nudge()

    def _stop_reading(self) -> None:
        if self._reader >= 0:
            asyncio.get_running_loop().remove_reader(self._reader)
            self._reader = -1

    def _look_around(self) -> None:
        """Wake-ups can be lost, and the dead do not report: look from time to time, in real time."""
        self._polls += 1
        if self._commits is not None:
            self._commits.nudge(sweep=self._polls % 2 == 1)
            self._poll = asyncio.get_running_loop().call_later(POLL_S, self._look_around)

    def _lose(self, reason: str) -> None:
        """Our session is over and what it held is back in its queues: enter anew."""
        link, commits = self._link, self._commits
        if link is None or commits is None:
            return
        link.open = False
        self._link = None
        commits.abandon(link.session)
        self._stop_reading()
        self._report(ConnectionDown(self._name, reason, 0))
        self._lost += self._subscriptions.values()
        self._subscriptions = {}
        if self._restoring is None:
            self._restoring = asyncio.get_running_loop().create_task(self._restore(commits))

    async def _restore(self, commits: Commits) -> None:
        """Enter and start the subscriptions again, for as long as it takes."""
        while self._link is None or self._lost:
            try:
                if self._link is None:
                    await self._enter(commits)
                    self._report(ConnectionUp(self._name))
                await self._start_again()
            except BrokerError:
                await asyncio.sleep(RESTORE_S)
        self._restoring = None

    async def _start_again(self) -> None:
        while self._lost and (link := self._link) is not None:
            subscription = self._lost[0]
            try:
                if not subscription.cancelled:
                    await self._start(link, subscription)
            except BrokerUnavailable:
                raise
            except CaromError as error:
                self._report(ConsumerEnded(subscription.queue, str(error)))
                guarded(subscription.ended, str(error))
            self._lost.pop(0)

    # -- inside: what comes from the log

    async def _start(self, link: FileLink, subscription: FileSubscription) -> None:
        subscription.consumer = consumer = f"consumer-{next(self._numbers)}"
        self._subscriptions[consumer] = subscription
        try:
            await self._writing().ask(Consume(link.session, consumer, subscription.queue, subscription.prefetch))
        except BaseException:
            # Should it have started all the same, what comes is handed back and the consumer cancelled.
            self._subscriptions.pop(consumer, None)
            raise

    def _take(self, change: Change) -> None:
        if self._commits is None:
            return
        self._arm(change.due_ms)
        link = self._link
        if link is None or change.session != link.session:
            return
        if change.lost:
            self._lose("another process took this one for dead and ended its session")
            return
        if change.handed or change.ended:
            self._undelivered += 1
            asyncio.get_running_loop().call_soon(self._deliver, link, change.handed, change.ended)

    def _deliver(self, link: FileLink, handed: list[Handed], ended: list[Ended]) -> None:
        """Call everybody for whom something came. What a dead link brought is back in its queue."""
        self._undelivered -= 1
        subscriptions = self._subscriptions
        unwanted = set()
        for one in handed:
            if not link.open:
                return
            subscription = subscriptions.get(one.consumer)
            if subscription is None:
                unwanted.add(one.consumer)
                link.settle(one.tag, "hand_back")
            else:
                one.message = detached(one.message)
                guarded(subscription.receive, EmbeddedDelivery(link, one))
        for consumer in sorted(unwanted - {""}):
            self._looking().ask(Cancel(link.session, consumer)).add_done_callback(_forget)
        for gone in ended:
            subscription = subscriptions.pop(gone.consumer, None)
            if subscription is not None and link.open:
                self._report(ConsumerEnded(gone.queue, gone.reason))
                guarded(subscription.ended, gone.reason)

    def _trouble(self, reason: str | None) -> None:
        if reason is None:
            self._report(ConnectionUnblocked(self._name))
        else:
            self._report(ConnectionBlocked(self._name, reason))

    def _arm(self, due_ms: int | None) -> None:
        """Set the timer to when something is due. Whoever's fires first in any process does it for all."""
        if self._timer is not None and self._timer[0] == due_ms:
            return
        self._disarm()
        if due_ms is not None:
            delay_ms = due_ms - self._clock.now_ms()
            # What is late although a turn has just been looks the same as what cannot be done: no hot loop.
            self._timer = (due_ms, self._clock.call_later(delay_ms if delay_ms > 0 else LATE_MS, self._due))

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer[1]()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        if self._commits is not None:
            self._commits.nudge()


def _forget(answer: asyncio.Future[object]) -> None:
    """Nobody waits for this answer; an error in it is told by the next turn too."""
    if not answer.cancelled():
        answer.exception()
