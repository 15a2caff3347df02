"""A listener: what was declared with ``@app.listen``, checked.

Rule: everything that can be wrong with a declaration is found when it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from carom.codecs import Registry
from carom.core.durations import Duration, milliseconds
from carom.core.message import NAME_LIMIT, fits
from carom.core.retention import check_retention
from carom.core.retry import policy
from carom.core.settlement import Plan
from carom.errors import ConfigurationError
from carom.ports import Database
from carom.runtime.dispatch import Handler, read_handler

CRASH_LIMIT = 5
PREFETCH_PER_HANDLER = 4
"""Messages held for each that may be handled at once: enough that none waits for the network, few enough that
a crash or a hand-back concerns few."""
LINGER_MS = 50
"""How long an incomplete batch waits for more messages."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a listener runs, as it was asked for."""

    queue: str | None = None
    retry: object = None
    concurrency: int = 16
    prefetch: int | None = None
    timeout: Duration | None = None
    idempotent: bool = False
    batch: int | None = None
    crash_limit: int = CRASH_LIMIT


@dataclass(frozen=True, slots=True)
class Listener:
    """A handler, its queue's plan, and how it runs."""

    handler: Handler
    plan: Plan
    concurrency: int
    prefetch: int
    timeout_ms: int | None
    batch: int | None
    idempotent: bool = False

    @property
    def queue(self) -> str:
        """Return the queue it listens to."""
        return self.plan.queue

    @property
    def transactional(self) -> bool:
        """Tell whether its handler works in a transaction of ours."""
        return self.idempotent or self.handler.session is not None

    def check(self, database: Database | None) -> None:
        """Check that a database does what is asked of it. Raises ConfigurationError with the arithmetic."""
        if not self.idempotent:
            return
        if database is None:
            raise ConfigurationError(
                f"the listener of {self.queue} is to be idempotent, which takes a database to remember messages in; "
                "this app has none"
            )
        keep_seen_ms, replay_window_ms = milliseconds(database.keep_seen), milliseconds(database.replay_window)
        check_retention(self.queue, self.plan.retry, keep_seen_ms, replay_window_ms)


def listener(
    function: Callable[..., Any],
    keys: tuple[str, ...],
    options: Options,
    app_name: str,
    codecs: Registry,
    database: Database | None = None,
) -> Listener:
    """Return a checked listener. Raises ConfigurationError with a sentence about what cannot work."""
    handler = read_handler(function, codecs, batch=options.batch is not None, database=database is not None)
    queue = options.queue if options.queue is not None else f"{app_name}.{handler.name}"
    _check_name(queue, handler.name)
    _check_keys(keys, queue)
    for name in ("concurrency", "crash_limit", "batch", "prefetch"):
        _check_count(name, getattr(options, name), queue)
    declared = Listener(
        handler,
        Plan(queue, tuple(dict.fromkeys(keys)), policy(options.retry), options.crash_limit),  # type: ignore[arg-type]  # policy() refuses what it cannot read, with a sentence
        options.concurrency,
        _prefetch(options, queue),
        None if options.timeout is None else _timeout(options.timeout, queue),
        options.batch,
        options.idempotent,
    )
    declared.check(database)
    return declared


def _prefetch(options: Options, queue: str) -> int:
    if options.prefetch is None:
        wanted = 2 * options.batch if options.batch else PREFETCH_PER_HANDLER * options.concurrency
        return min(wanted, max(_PREFETCH_LIMIT, options.batch or 0))
    if options.batch is not None and options.prefetch < options.batch:
        raise ConfigurationError(
            f"the listener of {queue} takes batches of {options.batch} but prefetches {options.prefetch}: "
            "a batch could never be complete; prefetch at least as many"
        )
    return options.prefetch


_PREFETCH_LIMIT = 2000
"""A quorum queue hands out no more than this to one consumer, whatever is asked."""


def _timeout(timeout: Duration, queue: str) -> int:
    value = milliseconds(timeout)
    if value == 0:
        raise ConfigurationError(f"the listener of {queue} has a timeout of nothing; leave it out to have none")
    return value


_QUEUE_LIMIT = NAME_LIMIT - len(".delay_9999d23h59m59s999ms")


def _check_name(queue: object, handler: str) -> None:
    if not isinstance(queue, str) or not queue or not fits(queue, _QUEUE_LIMIT):
        shown = queue[:60] if isinstance(queue, str) else queue
        raise ConfigurationError(
            f"{shown!r} is no queue name for {handler}: say text of 1 to {_QUEUE_LIMIT} bytes in UTF-8, which leaves "
            "room for the names of its delay and dead letter queues"
        )
    if queue.startswith("amq."):
        raise ConfigurationError(f"{queue!r} is no queue name for {handler}: names in 'amq.' belong to the broker")


def _check_keys(keys: tuple[str, ...], queue: str) -> None:
    for key in keys:
        if not isinstance(key, str) or not fits(key, NAME_LIMIT):
            raise ConfigurationError(f"{key!r} is no binding key for {queue}: it is text of at most 255 bytes in UTF-8")


_COUNTED = 65_535
"""The largest number of messages that the protocol has a place for."""


def _check_count(name: str, value: object, queue: str) -> None:
    optional = name in {"batch", "prefetch"}
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name}={value!r} of the listener of {queue} is no count: say 1 or more")
    if optional and value > _COUNTED:
        raise ConfigurationError(
            f"{name}={value!r} of the listener of {queue} is more than a broker can be told: say 1 to {_COUNTED}"
        )
