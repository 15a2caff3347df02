"""Settlement: what follows from an outcome. The one place where a message's fate is decided.

    delivery ─▶ admit ─▶ handler ─▶ outcome ─▶ settle ─▶ effects

Rule: publish before ack. A settlement ends with exactly one settling effect; what it publishes comes first,
and whoever performs it settles nothing unless every publish was confirmed.
Rule: every message ends done, discarded, waiting or dead; attempts and crashes are both bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from carom.core.classify import Classification, describe, worded
from carom.core.durations import LONGEST_MS
from carom.core.effects import Ack, Effect, HandBack, Publish, Refuse
from carom.core.outcome import Discard, Done, Failed, Outcome, Reject, Retry
from carom.core.retry import Delay, GiveUp, RetryPolicy
from carom.core.wire import SUSPECT_CRASHES, Address, Arrival, Note, Wire

if TYPE_CHECKING:
    from carom.core.message import Message
    from carom.core.topology import Topology

Fate: TypeAlias = Literal[
    "done", "duplicate", "discarded", "retried", "dead", "waiting", "recounted", "set apart", "handed back"
]


class Layout(Protocol):
    """How one system lays retries out on a broker: its topology, its addresses and its wire. Pure."""

    @property
    def topology(self) -> Topology:
        """Return everything that has to exist, validated."""

    @property
    def wire(self) -> Wire:
        """Return how this system writes on its messages."""

    def delays(self, queue: str) -> Sequence[int]:
        """Return the delays that exist for a queue in milliseconds, ascending; be it a range."""

    def delay_address(self, queue: str, delay_ms: int) -> Address:
        """Return where to publish so that a message comes to the queue after one of its delays."""

    def queue_address(self, queue: str) -> Address:
        """Return where to publish so that a message comes to this queue, and to no other, at once."""

    def dead_address(self, queue: str) -> Address:
        """Return where to publish so that a message becomes a dead letter of the queue."""

    @property
    def suspects(self) -> str:
        """Return the queue where messages that may be what kills workers wait to be handled alone."""

    def suspect_address(self, queue: str) -> Address:
        """Return where to publish so that a message of the queue waits there."""


NO_RETRIES = RetryPolicy.delays()


@dataclass(frozen=True, slots=True)
class Plan:
    """What was declared for one queue: the keys it is bound by and how its failures are met."""

    queue: str
    keys: tuple[str, ...] = ()
    retry: RetryPolicy = NO_RETRIES
    crash_limit: int = 5


@dataclass(frozen=True, slots=True)
class Moment:
    """What a decision may know of here and now: the time, a fraction drawn for jitter, and this host's name."""

    now_ms: int
    fraction: float = 0.0
    host: str = ""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What becomes of a delivery: the effects, and what to tell observers about them."""

    effects: tuple[Effect, ...]
    fate: Fate
    delay_ms: int = 0
    reason: str = ""
    classification: str = ""
    error_type: str = ""
    error: str = ""


class Asked(BaseException):
    """Stands for the wish of a handler that raised Retry: no policy for an exception class applies to it."""


DONE = Settlement((Ack(),), "done")
DUPLICATE = Settlement((Ack(),), "duplicate")
HANDED_BACK = Settlement((HandBack(),), "handed back")


def is_suspect(arrival: Arrival) -> bool:
    """Tell whether a message may be what kills its workers, so that it has to be handled alone.

    When a worker dies, the broker counts a return for every message it held. Once can be bad company;
    twice is a reason to look at it alone, so that the next death is blamed on the right one.
    """
    return arrival.crashes >= SUSPECT_CRASHES


def is_condemned(arrival: Arrival, plan: Plan) -> bool:
    """Tell whether it has come back once too often, so that no handler sees it again.

    What came back in company is condemned by limits that leave no room to look at it alone, and by no other.
    """
    blame = arrival.crashes if arrival.alone else min(arrival.crashes, SUSPECT_CRASHES)
    return arrival.returned and blame >= plan.crash_limit


def put_back(arrival: Arrival, layout: Layout) -> Settlement:
    """Return what puts a suspect back behind the others, without a return being counted and blamed on it."""
    copy = layout.wire.recounted(arrival, layout.suspect_address(arrival.queue))
    return HANDED_BACK if copy is None else Settlement((Publish(copy), Ack()), "handed back")


def admit(arrival: Arrival, plan: Plan, layout: Layout, moment: Moment) -> Settlement | None:
    """Decide about a delivery before any handler sees it; None lets it through."""
    if is_condemned(arrival, plan):
        reason = f"{arrival.crashes} times a worker was lost while it held this message"
        return _dead(arrival, layout, Note(moment.now_ms, moment.host, "crash-loop", error=reason))
    if arrival.wait_ms > 0:  # also when it came back uncounted: no handler has seen it, and it must not come early
        address, rest = _after(arrival.wait_ms, plan, layout)
        copy = layout.wire.held(arrival, address, rest)
        return _kept(copy, "waiting", arrival, layout, moment, delay_ms=arrival.wait_ms - rest)
    if is_suspect(arrival) and (arrival.uncounted or not arrival.alone):
        copy = layout.wire.recounted(arrival, layout.suspect_address(plan.queue))
        return _kept(copy, "set apart", arrival, layout, moment)
    if arrival.uncounted:
        copy = layout.wire.recounted(arrival, layout.queue_address(plan.queue))
        return _kept(copy, "recounted", arrival, layout, moment)
    return None


def settle(outcome: Outcome, arrival: Arrival, plan: Plan, layout: Layout, moment: Moment) -> Settlement:
    """Decide what follows from an outcome. Total and pure; `DONE` costs nothing."""
    match outcome:
        case Done():
            return DONE
        case Failed(error):
            return _failed(error, arrival, plan, layout, moment)
        case Retry():
            return _again(outcome, arrival, plan, layout, moment)
        case Reject(reason, why, error):
            note = _note(moment, _said(why), error, reason)
            return _dead(arrival, layout, note, Classification.PERMANENT)
        case Discard(reason):
            return Settlement((Ack(),), "discarded", reason=_said(reason))
        case _:  # Interrupted; and whatever else it might be, handing back loses nothing
            return put_back(arrival, layout) if arrival.alone else HANDED_BACK


def postponed(message: Message, plan: Plan, layout: Layout, delay_ms: int) -> Message | None:
    """Return a message as it waits for its first delivery to a queue; None when its headers could not travel.

    Its handler sees the address it has now.
    """
    address, rest = _after(delay_ms, plan, layout)
    arrival = Arrival(message, plan.queue, exchange=message.exchange, routing_key=message.routing_key)
    return layout.wire.held(arrival, address, rest)


def _failed(error: BaseException, arrival: Arrival, plan: Plan, layout: Layout, moment: Moment) -> Settlement:
    policy = arrival.retry or plan.retry
    decision = policy.decide(arrival.attempt, error, moment.fraction)
    classification = policy.classify(error)
    if isinstance(decision, GiveUp):
        note = _note(moment, decision.reason, error, decision.note)
        return _dead(arrival, layout, note, classification)
    return _retried(decision.ms, arrival, plan, layout, _note(moment, "", error), classification)


def _again(outcome: Retry, arrival: Arrival, plan: Plan, layout: Layout, moment: Moment) -> Settlement:
    """Give the handler the attempt it asked for, as long as the listener's own policy has one left."""
    wish = Asked(_said(outcome.reason) or "the handler asked for another attempt")
    error = outcome.error or wish
    decision: Delay | GiveUp
    policy = arrival.retry or plan.retry
    if arrival.attempt >= policy.attempts:
        decision = GiveUp("exhausted")
    elif outcome.after_ms is None:
        decision = policy.decide(arrival.attempt, wish, moment.fraction)
    else:
        decision = Delay(min(max(outcome.after_ms, 0), LONGEST_MS))
    if isinstance(decision, GiveUp):
        note = _note(moment, "exhausted", error, decision.note or outcome.reason)
        return _dead(arrival, layout, note, Classification.TRANSIENT)
    note = _note(moment, "", error, outcome.reason)
    return _retried(decision.ms, arrival, plan, layout, note, Classification.TRANSIENT)


def _retried(
    delay_ms: int, arrival: Arrival, plan: Plan, layout: Layout, note: Note, classification: str
) -> Settlement:
    effect = layout.wire.returned(arrival, delay_ms)
    if effect is not None:
        told = {"classification": classification, "error_type": note.error_type, "error": note.error}
        return Settlement((effect,), "retried", delay_ms, **told)
    address, rest = _after(delay_ms, plan, layout)
    copy = layout.wire.retried(arrival, address, note, rest)
    if copy is None:
        return _dead(arrival, layout, replace(note, reason="oversized"), classification)
    return _published(copy, "retried", note, classification, delay_ms=delay_ms)


def _kept(
    copy: Message | None, fate: Fate, arrival: Arrival, layout: Layout, moment: Moment, *, delay_ms: int = 0
) -> Settlement:
    """Return the settlement that publishes a copy of what no handler saw, or makes a dead letter of it."""
    if copy is None:
        return _dead(arrival, layout, Note(moment.now_ms, moment.host, "oversized"))
    return _published(copy, fate, delay_ms=delay_ms)


def _dead(arrival: Arrival, layout: Layout, note: Note, classification: str = "") -> Settlement:
    copy = layout.wire.dead(arrival, layout.dead_address(arrival.queue), note)
    return _published(copy, "dead", note, classification)


def _published(
    copy: Message | None, fate: Fate, note: Note | None = None, classification: str = "", *, delay_ms: int = 0
) -> Settlement:
    """Return the settlement that publishes a copy; without one, the broker itself makes a dead letter of it."""
    note = note or Note(0)
    effects: tuple[Effect, ...] = (Publish(copy), Ack()) if copy is not None else (Refuse(),)
    return Settlement(
        effects,
        fate if copy is not None else "dead",
        delay_ms=delay_ms if copy is not None else 0,
        reason=note.reason if copy is not None else "oversized",
        classification=classification,
        error_type=note.error_type,
        error=note.error,
    )


def _after(delay_ms: int, plan: Plan, layout: Layout) -> tuple[Address, int]:
    """Return where a message waits for at least so long, and what remains to be waited after that.

    Rounded up to the next delay that exists. A wait longer than the longest of them takes several turns.
    """
    delays = layout.delays(plan.queue)
    if delay_ms <= 0 or not delays:
        return layout.queue_address(plan.queue), 0
    place = min(bisect_left(delays, delay_ms), len(delays) - 1)
    chosen = delays[place]
    return layout.delay_address(plan.queue, chosen), max(0, delay_ms - chosen)


def _note(moment: Moment, reason: str, error: BaseException | None, why: object = "") -> Note:
    text = _said(why)
    if error is None:
        return Note(moment.now_ms, moment.host, reason, error=text)
    told = describe(error)
    shown = f"{text}: {told.text}" if text and text != told.text else told.text
    if isinstance(error, Asked):  # there was no error: people are shown what the handler raised
        return Note(moment.now_ms, moment.host, reason, "carom.errors.Retry", shown)
    return Note(moment.now_ms, moment.host, reason, told.type, shown, told.trace)


def _said(reason: object) -> str:
    """Write down the reason a handler gave: it is told to be text, and may be anything."""
    if type(reason) is str and not reason:
        return ""
    return worded(Asked(reason))
