"""One attempt: call a handler, and reduce whatever comes of it to an outcome.

Rule: every way a handler can end becomes an outcome. Only the cancellation of the worker itself, by somebody
other than its app, is passed on; nothing a handler raises ends the worker, be it SystemExit.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from carom.core import outcome
from carom.core.durations import milliseconds, text
from carom.core.outcome import Outcome
from carom.errors import ConfigurationError, DecodeError, Discard, HandlerTimeout, Reject, Retry, Verdict
from carom.ports import Clock
from carom.runtime.threads import Threads

Invoke: TypeAlias = Callable[[], Awaitable[Any]]

DONE = outcome.Done()
INTERRUPTED = outcome.Interrupted()
STUCK_AFTER_MS = 5_000
"""How long a handler that was cancelled may take to end before it is called stuck."""


class Loan:
    """What a handler is lent: a session, which is its own until it has ended, also when nobody waits for it any more.

    ``thread`` is where it runs, if it runs in one; ``lost`` says that the session's connection broke.
    """

    __slots__ = ("lost", "session", "thread")

    def __init__(self, session: object = None) -> None:
        """Lend a session."""
        self.session = session
        self.thread: asyncio.Future[Any] | None = None
        self.lost = False


class Attempt:
    """The state of one call: whether its time is over, whether the app stops, where it is."""

    __slots__ = (
        "_clock",
        "_on_stuck",
        "_task",
        "_timeout_ms",
        "_timer",
        "expired",
        "in_thread",
        "interrupted",
        "loan",
        "stuck",
    )

    def __init__(
        self, clock: Clock, timeout_ms: int | None, on_stuck: Callable[[bool], None], loan: Loan | None = None
    ) -> None:
        """Prepare; ``on_stuck`` hears True when the handler cannot be stopped, and False when it ended after all."""
        self.loan = loan
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._on_stuck = on_stuck
        self._task: asyncio.Task[Any] | None = None
        self._timer: Callable[[], None] | None = None
        self.expired = False
        self.interrupted = False
        self.in_thread = False
        self.stuck = False

    async def run(self, invoke: Invoke) -> Outcome:
        """Call the handler in the current task and return its outcome."""
        self._task = asyncio.current_task()
        if self._timeout_ms is not None:
            self._timer = self._clock.call_later(self._timeout_ms, self._expire)
        try:
            await invoke()
        except asyncio.CancelledError as error:
            return self._cancelled(error)
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not self._is_running():
                raise  # the loop is closed and this coroutine with it: there is nobody left to hear an outcome
            return self._raised(error)
        else:
            return DONE
        finally:
            self._end()

    async def in_threads(self, threads: Threads, call: Callable[[], Any]) -> Any:
        """Call a handler that is not a coroutine. Its thread cannot be stopped, only waited for."""
        self.in_thread = True
        try:
            if self.loan is None:
                fine, value = await threads.run(call)
            else:
                self.loan.thread = threads.run(call)
                fine, value = await asyncio.shield(self.loan.thread)
        finally:
            self.in_thread = False
        if not fine:
            raise value
        if not inspect.isawaitable(value):
            return value
        if self.expired and inspect.iscoroutine(value):  # the thread took all of its time: it is not begun
            value.close()
            raise HandlerTimeout("the handler's thread returned a coroutine when its time was over")
        return await value

    def interrupt(self) -> None:
        """Stop the call because the app stops; its outcome will be Interrupted."""
        if self._task is not None and not self.interrupted:
            self.interrupted = True
            self._task.cancel()

    def _cancelled(self, error: asyncio.CancelledError) -> Outcome:
        task = self._task
        if task is None or (task.cancelling() and not self.interrupted and not self.expired):
            raise error
        return self._raised(error)

    def _raised(self, error: BaseException) -> Outcome:
        """Return the outcome; what a handler makes of its cancellation is that, and no failure of its own."""
        found = outcome_of(error)
        if not isinstance(found, outcome.Failed):
            return found
        if self.interrupted:
            return INTERRUPTED
        if self.expired and not self.stuck:
            late = HandlerTimeout(f"the handler was stopped after its timeout of {text(self._timeout_ms or 0)}")
            late.__cause__ = None if isinstance(error, asyncio.CancelledError) else error
            return outcome.Failed(late)
        return found

    def _is_running(self) -> bool:
        try:
            return asyncio.current_task() is self._task
        except RuntimeError:  # no loop runs here
            return False

    def _expire(self) -> None:
        self.expired = True
        if self.in_thread:
            self._say_stuck()
        elif self._task is not None:
            self._task.cancel()
            self._timer = self._clock.call_later(STUCK_AFTER_MS, self._say_stuck)

    def _say_stuck(self) -> None:
        self.stuck = True
        self._on_stuck(True)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer()
        task, self._task = self._task, None
        while task is not None and (self.interrupted or self.expired) and task.cancelling():
            task.uncancel()
        if self.stuck:
            self.stuck = False
            self._on_stuck(False)


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome that an exception from a handler stands for."""
    if isinstance(error, BaseExceptionGroup):
        return _of_group(error)
    if isinstance(error, Reject):
        return outcome.Reject(error.reason, error=error.__cause__)
    if isinstance(error, Discard):
        return outcome.Discard(error.reason)
    if isinstance(error, DecodeError):
        return outcome.Reject(why="malformed", error=error)
    if isinstance(error, Retry):
        return _retry(error)
    return outcome.Failed(error)


def _retry(error: Retry) -> Outcome:
    if error.after is None:
        return outcome.Retry(None, error.reason, error.__cause__)
    try:
        return outcome.Retry(milliseconds(error.after), error.reason, error.__cause__)
    except ConfigurationError as nonsense:
        return outcome.Failed(nonsense)


def _of_group(group: BaseExceptionGroup[BaseException]) -> Outcome:
    """A group with verdicts in it: one rejection rejects; otherwise all have to agree."""
    leaves = list(_leaves(group))
    outcomes = [outcome_of(leaf) for leaf in leaves if isinstance(leaf, Verdict | DecodeError)]
    for one in outcomes:
        if isinstance(one, outcome.Reject):
            return one
    if len(outcomes) < len(leaves):
        return outcome.Failed(group)
    retries = [one for one in outcomes if isinstance(one, outcome.Retry)]
    if not retries:
        return outcomes[0]
    return max(retries, key=lambda one: one.after_ms or 0)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Sequence[BaseException]:
    found: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop()
        if isinstance(error, BaseExceptionGroup):
            pending.extend(error.exceptions)
        else:
            found.append(error)
    return found
