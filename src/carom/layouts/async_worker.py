"""gojekfarm/async-worker (Clojure): one queue for all jobs of a namespace, delays that double, settings that travel.

    shop_exchange (direct) ──▶ shop_instant_queue ◀──(expired)── shop_delay_queue_1000_ms, shop_delay_queue_2000_ms …
                          └──▶ shop_dead_letter_queue ◀── published by any worker, with the payload and nothing else

A message is a map, frozen by Nippy: the job's name, its arguments, how often it was tried, and how often and how long
it is to be retried. These settings rule, and not the worker's: it was published by somebody who said so. The wait
before attempt n + 1 is the timeout times two to the power of n - 1, and a queue for each such wait has to exist; one
that does not is rounded up to the next that does.

A handler sees the job's name as the routing key and the arguments as the payload. There is one listener a namespace,
on ``<namespace>_instant_queue``. What is put back from the dead set by Carom's tools starts anew; with
``replay_keeps_iteration`` it goes on from where it was, as theirs does, and an exhausted one has one attempt.

Rule: their queues are declared without arguments. The instant queue has no dead letter exchange, so nothing is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from carom.core import message as names
from carom.core.durations import LONGEST_MS
from carom.core.foreign import Foreign
from carom.core.freezing import freeze
from carom.core.message import Message
from carom.core.nippy import Keyword, thaw
from carom.core.retry import DELAYS_LIMIT, RetryPolicy
from carom.core.settlement import Plan
from carom.core.topology import Binding, Exchange, Queue, Topology, arguments, validate
from carom.core.wire import Address, Arrival, Wire, span
from carom.errors import ConfigurationError, DecodeError
from carom.layouts.beside import Beside

JOB, ARGS = Keyword("job-name"), Keyword("args")
ITERATION, RETRY_MAX, TIMEOUT = Keyword("current-iteration"), Keyword("retry-max"), Keyword("retry-timeout-ms")
FROZEN = "application/x-nippy"
_STEPS = 38
"""Doubled so often, a millisecond is longer than any broker waits."""


@dataclass(frozen=True, slots=True)
class Job:
    """How a job is retried: how often after its first attempt, and the first wait; the others double."""

    retry_max: int
    retry_timeout_ms: int


@dataclass(frozen=True, slots=True)
class AsyncWorkerWire(Foreign):
    """How its producers and workers write. ``fallback`` is for jobs that have no settings of their own."""

    namespace: str
    policy_of: RetryPolicy
    jobs: Mapping[str, Job]
    fallback: Job | None
    keeps_iteration: bool

    def read(
        self, message: Message, queue: str, *, redelivered: bool = False, counts: bool = True, alone: bool = False
    ) -> Arrival:
        """Read a delivery; the iteration is in the payload, be it a dead letter that was put back."""
        arrival = Foreign.read(self, message, queue, redelivered=redelivered, counts=counts, alone=alone)
        return replace(arrival, attempt=self.attempt(message)) if self.keeps_iteration else arrival

    def attempt(self, message: Message) -> int:
        """Return one more than the iterations that are counted in the payload."""
        return min(names.count((_job(message.body) or {}).get(ITERATION)) + 1, names.COUNT_LIMIT)

    def origin(self, message: Message, queue: str) -> tuple[str, str]:  # noqa: ARG002 - it is in the payload
        """Return the one exchange and the job's name."""
        job = _job(message.body)
        return f"{self.namespace}_exchange", message.routing_key if job is None else names.name(str(job[JOB]))

    def theirs(self, arrival: Arrival, attempt: int) -> Mapping[str, object]:  # noqa: ARG002 - it is in the payload
        """Return nothing: theirs has no headers."""
        return {}

    def policy(self, message: Message) -> RetryPolicy | None:
        """Return the policy a job brings with it; it says when and how often, the worker's which errors."""
        job = _job(message.body)
        if job is None:
            return None
        timeout = max(1, min(span(job.get(TIMEOUT)), LONGEST_MS))
        return _brought(min(names.count(job.get(RETRY_MAX)), DELAYS_LIMIT), timeout, self.policy_of)

    def written(
        self, arrival: Arrival, to: Address, attempt: int, notes: Mapping[str, object], *, trim: bool = False
    ) -> Message | None:
        """Return a copy whose payload knows the iteration; one that is no job keeps its payload."""
        copy = Foreign.written(self, arrival, to, attempt, notes, trim=trim)
        job = _job(arrival.message.body)
        if copy is None or job is None:
            return copy
        return replace(copy, body=freeze({**job, ITERATION: attempt - 1}))

    def seen(self, arrival: Arrival) -> Message:
        """Return the message with the job's arguments as its payload."""
        message = Foreign.seen(self, arrival)
        job = _job(message.body)
        return message if job is None else replace(message, body=freeze(job.get(ARGS)), content_type=FROZEN)

    def outgoing(self, message: Message) -> Message:
        """Return a job: the routing key is its name, the payload its arguments, with keywords for keys."""
        settings = self.jobs.get(message.routing_key, self.fallback)
        job = {
            JOB: Keyword(message.routing_key),
            ARGS: _arguments(message),
            ITERATION: 0,
            RETRY_MAX: settings.retry_max if settings else None,
            TIMEOUT: settings.retry_timeout_ms if settings else None,
        }
        return replace(
            message,
            body=freeze(job),
            exchange=f"{self.namespace}_exchange",
            routing_key=f"{self.namespace}_instant_queue",
            content_type="application/octet-stream",
        )


@dataclass(frozen=True, slots=True)
class AsyncWorker(Beside):
    """The layout of a namespace; its exchange is named for it, whatever the app's is called.

    ``jobs`` are settings by a job's name, for those who publish, and for the delay queues that have to exist. Other
    jobs get what the listener's policy says, which has to double; without a listener, nothing.
    """

    namespace: str = "carom"
    exchange: str = ""
    plans: tuple[Plan, ...] = ()
    app: str = "app"
    jobs: tuple[tuple[str, Job], ...] = ()
    replay_keeps_iteration: bool = False
    topology: Topology = field(init=False)
    _delays: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Work out delays and topology once. Raises ConfigurationError for what this system does not have."""
        for plan in self.plans:
            if plan.queue != self.instant:
                raise ConfigurationError(
                    f"queue {plan.queue!r} is not in the layout async_worker: a namespace has one queue for all jobs, "
                    f"so say @app.listen(queue={self.instant!r}), and leave delays= out"
                )
        settings = [job for _, job in self.jobs] + [job for job in (self._fallback(),) if job is not None]
        delays = {delay for job in settings for delay in _doubling(job.retry_max, job.retry_timeout_ms)}
        object.__setattr__(self, "_delays", tuple(sorted(delays)))
        object.__setattr__(self, "topology", validate(self._topology()))

    @property
    def instant(self) -> str:
        """Return the queue that all jobs come from."""
        return f"{snake(self.namespace)}_instant_queue"

    @property
    def wire(self) -> Wire:
        """Return its payloads."""
        policy = self.plans[0].retry if self.plans else RetryPolicy.delays()
        return AsyncWorkerWire(
            snake(self.namespace), policy, dict(self.jobs), self._fallback(), self.replay_keeps_iteration
        )

    def delays(self, queue: str) -> tuple[int, ...]:  # noqa: ARG002 - there is one
        """Return the delays that exist, ascending."""
        return self._delays

    def delay_address(self, queue: str, delay_ms: int) -> Address:  # noqa: ARG002 - there is one
        """Return the delay queue, by its name as key."""
        return self._address(f"delay_queue_{delay_ms}_ms")

    def queue_address(self, queue: str) -> Address:  # noqa: ARG002 - there is one
        """Return the instant queue, by its name as key."""
        return self._address("instant_queue")

    def dead_address(self, queue: str) -> Address:  # noqa: ARG002 - there is one
        """Return the dead set, by its name as key."""
        return self._address("dead_letter_queue")

    def _address(self, name: str) -> Address:
        namespace = snake(self.namespace)
        return Address(f"{namespace}_exchange", f"{namespace}_{name}")

    def _fallback(self) -> Job | None:
        if not self.plans:
            return None
        delays = self.plans[0].retry.possible_delays()
        if not delays:
            return Job(0, 1)
        job = Job(len(delays), delays[0])
        if self.plans[0].retry.delays_ms != _doubling(job.retry_max, job.retry_timeout_ms):
            raise ConfigurationError(
                f"{self.plans[0].retry!r} is not how async-worker waits: its waits double, so say "
                "RetryPolicy.exponential('1s', attempts=4, max_delay='10d'), with no overrides and no jitter"
            )
        return job

    def _topology(self) -> Topology:
        namespace = snake(self.namespace)
        exchange = f"{namespace}_exchange"
        dead = f"{namespace}_dead_letter_queue"
        back = {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": self.instant}
        waits = [
            Queue(f"{namespace}_delay_queue_{delay}_ms", arguments=arguments({**back, "x-message-ttl": delay}))
            for delay in self._delays
        ]
        queues = (Queue(self.instant), Queue(dead), *waits)
        return Topology(
            exchanges=(Exchange(exchange, "direct", public=True),),
            queues=(*queues, *self.suspect_queues(self.plans)),
            bindings=tuple(Binding(exchange, queue.name, queue.name) for queue in queues),
        )


def snake(name: str) -> str:
    """Return a name as this system's library writes it: ``my-app`` is my_app, ``myApp`` my_app, ``app2`` app_2."""
    kinds = ["-" if char in "-_ \t\n\r" else "0" if char.isdigit() else "A" if char.isupper() else "a" for char in name]
    words, start = [], 0
    for at, kind in enumerate(kinds):
        after, beyond = (*kinds[at + 1 : at + 3], "", "")[:2]
        if kind == "-":
            words.append(name[start:at])
            start = at + 1
        elif (
            (kind != "A" and after == "A")
            or (kind != "0" and after == "0")
            or (kind + after + beyond).startswith("AAa")
        ):
            words.append(name[start : at + 1])
            start = at + 1
    return "_".join(word.lower() for word in (*words, name[start:]) if word)


def _doubling(most: int, timeout_ms: int) -> tuple[int, ...]:
    return tuple(min(timeout_ms << min(step, _STEPS), LONGEST_MS) for step in range(most))


@lru_cache(maxsize=64)
def _brought(most: int, timeout_ms: int, ours: RetryPolicy) -> RetryPolicy:
    delays = _doubling(most, timeout_ms)
    return RetryPolicy(
        attempts=len(delays) + 1, delays_ms=delays, permanents=ours.permanents, transients=ours.transients
    )


@lru_cache(maxsize=16)
def _job(body: bytes) -> dict[object, object] | None:
    """Return the map that a job is, or None."""
    try:
        found = thaw(body)
    except DecodeError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get(JOB), str) else None


def _arguments(message: Message) -> object:
    try:
        return thaw(message.body) if message.content_type == FROZEN else _with_keywords(json.loads(message.body))
    except (DecodeError, ValueError, RecursionError):
        return message.body


def _with_keywords(value: object) -> object:
    if isinstance(value, dict):
        return {Keyword(key): _with_keywords(item) for key, item in value.items()}
    return [_with_keywords(item) for item in value] if isinstance(value, list) else value
