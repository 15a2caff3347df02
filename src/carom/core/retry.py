"""Retry policies: which attempt has failed, and with what → how long to wait, or give up.

Rule: a policy is bounded. It never allows more than `ATTEMPTS_LIMIT` attempts, never asks for a delay above ten
years, and says beforehand every delay it can ask for (`possible_delays`), because each one is a queue.
Rule: nothing comes early. Jitter and rounding only make a delay longer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate, count, islice, repeat
from math import ceil
from types import UnionType
from typing import Literal, Self, TypeAlias

from carom.core.classify import Classification, headline, leaves, presumed, said, strictest
from carom.core.durations import LONGEST_MS, Duration, milliseconds, text
from carom.core.schedule import Step, table
from carom.errors import ConfigurationError

ATTEMPTS_LIMIT = 1000
"""No message is tried more often than this, whatever a policy says."""
DELAYS_LIMIT = 64
"""No policy asks for more distinct delays than this: each is a queue on the broker."""

Errors: TypeAlias = type[BaseException]
Choose: TypeAlias = Callable[[int, BaseException], Duration | None]
"""The function of a custom policy: the attempt that failed and its error → how long to wait; None gives up."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Try again, no earlier than in ``ms`` milliseconds."""

    ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further attempt: the message becomes a dead letter. ``note`` says what else people should know."""

    reason: Literal["exhausted", "permanent"]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RetryPolicy:
    """How often a message is tried, and how long it waits in between. A value; made by the class methods.

    ``attempts`` counts every try, the first included. Policies are equal when they decide alike, however written.

    ``jitter=0.2`` makes a delay up to 20 % longer, never shorter, in four even steps (0 is one) rather than
    continuously, because each distinct delay is a queue. It comes on top of ``max_delay``: messages that all
    reached the longest delay are the ones that need spreading most.
    """

    attempts: int
    delays_ms: tuple[int, ...] = ()
    jitter: float = 0.0
    choose: Choose | None = None
    overrides: tuple[tuple[Errors, RetryPolicy], ...] = ()
    permanents: tuple[Errors, ...] = ()
    transients: tuple[Errors, ...] = ()
    written: str = field(default="RetryPolicy(…)", compare=False)

    def __post_init__(self) -> None:
        """Refuse what is not bounded. Raises ConfigurationError."""
        _check_number("attempts", self.attempts, 1, ATTEMPTS_LIMIT, int)
        _check_number("jitter", self.jitter, 0, 1)
        if self.choose is None and len(self.delays_ms) != self.attempts - 1:
            raise ConfigurationError(f"{self.attempts} attempts need {self.attempts - 1} delays: use .delays(…)")
        for delay in set(self.delays_ms):
            _check_number("delays_ms", delay, 0, LONGEST_MS, int)
        if (distinct := len(self.possible_delays())) > DELAYS_LIMIT:
            raise ConfigurationError(
                f"{self!r} has {distinct} distinct delays; each is a queue on the broker, so {DELAYS_LIMIT} is the "
                "limit: say fewer attempts, a larger factor, a shorter max_delay or no jitter"
            )

    @classmethod
    def delays(cls, *delays: Duration, jitter: float = 0, max_delay: Duration | None = None) -> Self:
        """Wait exactly these, one after the other: one attempt more than there are delays."""
        steps = [milliseconds(delay) for delay in delays]
        return cls._climb("delays", [repr(text(step)) for step in steps], steps, jitter, max_delay)

    @classmethod
    def fixed(cls, delay: Duration, *, attempts: int, jitter: float = 0, max_delay: Duration | None = None) -> Self:
        """Wait the same before every further attempt."""
        steps = _first(repeat(milliseconds(delay)), attempts)
        return cls._climb("fixed", [repr(text(milliseconds(delay))), f"attempts={attempts}"], steps, jitter, max_delay)

    @classmethod
    def linear(cls, delay: Duration, *, attempts: int, jitter: float = 0, max_delay: Duration | None = None) -> Self:
        """Wait one, two, three … times the delay: ``linear("1s", attempts=5)`` waits 1s, 2s, 3s and 4s."""
        steps = _first(count(milliseconds(delay), milliseconds(delay)), attempts)
        return cls._climb("linear", [repr(text(milliseconds(delay))), f"attempts={attempts}"], steps, jitter, max_delay)

    @classmethod
    def exponential(
        cls, delay: Duration, *, attempts: int, factor: float = 2, max_delay: Duration = "1h", jitter: float = 0
    ) -> Self:
        """Wait ``factor`` times longer before every further attempt, but never longer than ``max_delay``."""
        _check_number("factor", factor, 1, 1_000_000)
        steps = _first(_growing(milliseconds(delay), factor), attempts)
        shown = [repr(text(milliseconds(delay))), f"factor={factor!r}", f"attempts={attempts}"]
        return cls._climb("exponential", shown, steps, jitter, max_delay)

    @classmethod
    def custom(cls, choose: Choose, *, attempts: int) -> Self:
        """Ask a function how long to wait after each failed attempt (1 is the first); None gives up.

        Its delays are not known beforehand, so no queue is made for them: each is rounded up to the next delay
        that exists. When it raises or returns what is no duration, the message becomes a dead letter whose note
        says so: that can be seen and replayed, where a delay nobody chose could repeat the mistake for days.
        """
        if not callable(choose):
            raise ConfigurationError(f"RetryPolicy.custom needs a function of (attempt, error), not {choose!r}")
        name = getattr(choose, "__qualname__", repr(choose))
        return cls(attempts=attempts, choose=choose, written=f"RetryPolicy.custom({name}, attempts={attempts})")

    def on(self, error: Errors, retry: RetryPolicy | Sequence[Duration] | None) -> Self:
        """Return a policy that treats a class of errors by another policy. The most specific class wins.

        An attempt is any attempt, whatever it failed with: the other policy's ``attempts`` bounds the number of
        tries up to which *these* errors are retried. A class named here is no longer permanent by default.
        """
        _check_errors((error,))
        others = tuple(pair for pair in self.overrides if pair[0] is not error)
        return replace(self, overrides=(*others, (error, policy(retry))))

    def permanent(self, *errors: Errors) -> Self:
        """Return a policy under which these errors make a dead letter at once."""
        _check_errors(errors)
        return replace(self, permanents=tuple(dict.fromkeys((*self.permanents, *errors))))

    def transient(self, *errors: Errors) -> Self:
        """Return a policy under which these errors are retried, even where a class above them is permanent."""
        _check_errors(errors)
        return replace(self, transients=tuple(dict.fromkeys((*self.transients, *errors))))

    def classify(self, error: BaseException) -> Classification:
        """Return whether an error will pass, as far as this policy knows. Of a group the strictest leaf decides."""
        return strictest(_resolve(self, type(leaf))[0] for leaf in leaves(error))

    def decide(self, attempt: int, error: BaseException, fraction: float = 0.0) -> Delay | GiveUp:
        """Decide what follows a failed attempt (1 is the first). ``fraction`` in [0, 1) chooses the jitter.

        Never raises: absurd attempts and fractions are clamped. Of a group, any permanent leaf gives up as
        permanent, any leaf that is exhausted gives up, and otherwise the longest delay is waited.
        """
        quarter = bisect_right((0.25, 0.5, 0.75), fraction)
        decisions = [_decide(self, max(1, attempt), leaf, quarter) for leaf in leaves(error)]
        given_up = [decision for decision in decisions if isinstance(decision, GiveUp)]
        if given_up:
            return next((decision for decision in given_up if decision.reason == "permanent"), given_up[0])
        return Delay(max(decision.ms for decision in decisions if isinstance(decision, Delay)))

    def schedule(self) -> tuple[Step, ...]:
        """Return every attempt with the delay before it, for errors that no override catches; jitter left out."""
        if self.choose is not None:
            return (Step(1, 0, 0), *(Step(attempt, None, None) for attempt in range(2, self.attempts + 1)))
        waits = (0, *self.delays_ms)
        return tuple(map(Step, range(1, self.attempts + 1), waits, accumulate(waits)))

    def table(self) -> str:
        """Write the schedule as a Markdown table that also reads well as plain text."""
        lines = [table(self.schedule())]
        if self.jitter:
            lines.append(f"\nJitter makes each delay up to {100 * self.jitter:g} % longer.")
        lines += [f"\n{error.__qualname__} is treated by {retry!r}." for error, retry in self.overrides]
        return "\n".join(lines)

    def possible_delays(self) -> tuple[int, ...]:
        """Return every delay in milliseconds that it or an override can ask for; a custom policy names none."""
        found = {stretched(delay, self.jitter, quarter) for delay in set(self.delays_ms) for quarter in range(4)}
        return tuple(sorted(found.union(*(retry.possible_delays() for _, retry in self.overrides))))

    @property
    def open_ended(self) -> bool:
        """Tell whether it, or an override, may also ask for delays that `possible_delays` cannot name."""
        return self.choose is not None or any(retry.open_ended for _, retry in self.overrides)

    @classmethod
    def _climb(cls, form: str, shown: list[str], steps: list[int], jitter: float, cap: Duration | None) -> Self:
        """Make a policy of delays that are known beforehand, under a cap, which remembers how it was written."""
        highest = LONGEST_MS if cap is None else milliseconds(cap)
        capped = [] if cap is None else [f"max_delay={text(highest)!r}"]
        jittered = [f"jitter={jitter!r}"] if jitter else []
        written = f"RetryPolicy.{form}({', '.join(shown + capped + jittered)})"
        if steps and steps[0] > highest:
            raise ConfigurationError(f"{written} starts with a delay above max_delay: say a longer max_delay=")
        delays = tuple(min(step, highest) for step in steps)
        return cls(attempts=len(steps) + 1, delays_ms=delays, jitter=jitter, written=written)

    def __repr__(self) -> str:
        parts = [self.written, *(f".on({error.__qualname__}, {retry!r})" for error, retry in self.overrides)]
        for word, errors in (("permanent", self.permanents), ("transient", self.transients)):
            if errors:
                parts.append(f".{word}({', '.join(error.__qualname__ for error in errors)})")
        return "".join(parts)


def policy(value: RetryPolicy | Sequence[Duration] | None) -> RetryPolicy:
    """Return the policy that is meant: itself, a tuple or list of delays, or None for no retries."""
    if isinstance(value, RetryPolicy):
        return value
    if value is None or isinstance(value, tuple | list):
        return RetryPolicy.delays(*(value or ()))
    raise ConfigurationError(
        f"{value!r} is not a retry policy: say a RetryPolicy, a tuple of delays such as ('2s', '5s', '15s') "
        "(with a comma even when it is one: ('2s',)), or None for no retries"
    )


def _first(steps: Iterator[int], attempts: int) -> list[int]:
    _check_number("attempts", attempts, 1, ATTEMPTS_LIMIT, int)
    return list(islice(steps, attempts - 1))


def _growing(first: int, factor: float) -> Iterator[int]:
    value = float(first)
    while True:
        yield ceil(round(value, 6))  # 1000 * 1.1 is a hair above 1100 and means 1100
        value = min(value * factor, LONGEST_MS)


def stretched(delay: int, jitter: float, quarter: int) -> int:
    """Return a delay with jitter; of the decimal that was written, not the float nearest to it: 0.1 of 1000 is 100."""
    return min(LONGEST_MS, delay + ceil(delay * Fraction(str(jitter)) * quarter / 3)) if jitter else delay


def _decide(policy: RetryPolicy, attempt: int, error: BaseException, quarter: int) -> Delay | GiveUp:
    kind, chosen = _resolve(policy, type(error))
    if kind is Classification.PERMANENT:
        return GiveUp("permanent")
    if attempt >= chosen.attempts:
        return GiveUp("exhausted")
    if chosen.choose is not None:
        return _ask(chosen.choose, attempt, error)
    return Delay(stretched(chosen.delays_ms[attempt - 1], chosen.jitter, quarter))


def _resolve(policy: RetryPolicy, kind: Errors) -> tuple[Classification, RetryPolicy]:
    """Return what becomes of a class of errors and whose delays it waits: the policy's, or an override's override."""
    spoken: Classification | None = None
    while True:
        own = dict(policy.overrides)
        spoken = said(kind, policy.permanents, (*policy.transients, *own)) or spoken
        chosen = next((own[ancestor] for ancestor in kind.__mro__ if ancestor in own), None)
        if chosen is None or spoken is Classification.PERMANENT:
            return spoken or presumed(kind), policy
        policy = chosen


def _ask(choose: Choose, attempt: int, error: BaseException) -> Delay | GiveUp:
    try:
        wish = choose(attempt, error)
        chosen = None if wish is None else milliseconds(wish)
    except BaseException as mistake:  # noqa: BLE001 - a synchronous function: nothing it raises may cost a message
        return GiveUp("exhausted", f"the function of the retry policy failed: {headline(mistake)}")
    return GiveUp("exhausted", "the function of the retry policy gave up") if chosen is None else Delay(chosen)


def _check_number(name: str, value: object, least: int, most: int, kind: type[int] | UnionType = int | float) -> None:
    # One chain that has to hold, so that nan, which compares with nothing, is refused too.
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
        raise ConfigurationError(f"{name}={value!r} cannot be: say a number from {least} to {most}")


def _check_errors(errors: Sequence[object]) -> None:
    for error in errors:
        if not isinstance(error, type) or not issubclass(error, BaseException) or issubclass(error, BaseExceptionGroup):
            raise ConfigurationError(f"name classes of exceptions, and of a group those that are in it, not {error!r}")
