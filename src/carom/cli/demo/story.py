"""The story of the demo: which orders are sent, what is seen of them on the way, and whether it came out as told.

Rule: what is believed in the end is what was found on the broker. The events of the worker only move the picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from carom.cli.demo.shop import CRASH_LIMIT, NAME, PLACED, Order
from carom.cli.output import shown
from carom.core import message as wire
from carom.core.durations import text
from carom.core.message import Message

Place: TypeAlias = Literal["", "queue", "handler", "waiting", "done", "dead"]


@dataclass(frozen=True, slots=True)
class Chapter:
    """One order: what is wrong with it, what must become of it, and what that shows.

    ``reason`` is why it becomes a dead letter; empty when it is charged, at ``attempt``.
    """

    number: int
    title: str
    body: bytes
    lesson: str
    reason: str = ""
    attempt: int = 1
    crashes: int = 0
    pause: bool = True


def _order(number: int, trouble: str = "") -> bytes:
    return msgspec.json.encode(Order(number, trouble))


CHAPTERS = (
    Chapter(1, "nothing is wrong", _order(1), "done and acknowledged"),
    Chapter(
        2,
        "the bank is down, twice",
        _order(2, "bank is down"),
        "waited on the broker",
        attempt=3,
    ),
    Chapter(3, "the card is stolen", _order(3, "stolen card"), "tried once, no more", reason="rejected"),
    Chapter(4, "it is not JSON", b"\xff\xfe\x00 not an order", "kept byte for byte", reason="malformed"),
    Chapter(5, "next to order 6", _order(5, "slow"), "unharmed by order 6", pause=False),
    Chapter(
        6,
        "it kills its worker",
        _order(6, "deadly"),
        f"caught after {CRASH_LIMIT} crashes",
        reason="crash-loop",
        crashes=CRASH_LIMIT,
    ),
)


def message_of(chapter: Chapter, identity: str, now_ms: int) -> Message:
    """Return the message of an order, as a web shop would publish it."""
    return Message(
        body=chapter.body,
        exchange=NAME,
        routing_key=PLACED,
        id=identity,
        correlation_id=identity,
        content_type="application/json",
        app_id="webshop",
        timestamp=now_ms // 1000,
    )


@dataclass(slots=True)
class Row:
    """Where an order is, as far as has been heard."""

    chapter: Chapter
    place: Place = ""
    attempt: int = 1
    reason: str = ""
    back_at: float = 0.0

    @property
    def name(self) -> str:
        """Return what the order is called in a sentence."""
        return f"order {self.chapter.number}"


@dataclass(slots=True)
class Board:
    """Where all orders are, and what happened, in sentences with the second in which it did."""

    rows: dict[str, Row]
    lines: list[tuple[float, str]] = field(default_factory=list)
    depths: Mapping[str, int] = field(default_factory=dict)
    starts: int = 0
    crashes: int = 0
    now: float = 0.0

    def say(self, sentence: str) -> None:
        """Add a line."""
        self.lines.append((self.now, shown(sentence)))

    def sent(self, identity: str) -> None:
        """Note that the broker has confirmed an order."""
        row = self.rows[identity]
        if not row.place:  # its worker may have been faster than its confirm
            row.place = "queue"
        self.say(f"{row.name} is sent: {row.chapter.title}")

    def heard(self, event: Mapping[str, Any]) -> None:
        """Note an event of the worker."""
        row = self.rows.get(str(event.get("message_id")))
        if row is not None:
            self._moved(row, event)

    def _moved(self, row: Row, event: Mapping[str, Any]) -> None:
        row.attempt = wire.count(event.get("attempt"), least=1)
        match event.get("event"):
            case "Received":
                row.place = "handler"
            case "Handled":
                row.place = "done"
                self.say(f"{row.name} is charged" + (f", at attempt {row.attempt}" if row.attempt > 1 else ""))
            case "Retried":
                delay_ms = wire.count(event.get("delay_ms"))
                row.place, row.back_at = "waiting", self.now + delay_ms / 1000
                why = str(event.get("error_type", "")).rpartition(".")[2]
                self.say(f"{row.name} failed at attempt {row.attempt} ({why}) and comes back in {text(delay_ms)}")
            case "DeadLettered":
                row.place, row.reason = "dead", shown(str(event.get("reason", "")))
                self.say(f"{row.name} is a dead letter: {row.reason}")
            case "HandedBack" | "Postponed" | "Dropped":
                row.place = "queue"

    def started(self, process: int) -> None:
        """Note that a worker was started."""
        self.starts += 1
        self.say(f"worker {process} starts" + (", in its place" if self.starts > 1 else ""))

    def died(self, process: int, code: int) -> None:
        """Note that the worker is gone, and what was in its hands is back in its queue."""
        self.crashes += 1
        held = [row for row in self.rows.values() if row.place == "handler"]
        for row in held:
            row.place = "queue"
        holding = f", holding {' and '.join(row.name for row in held)}" if held else ""
        self.say(f"worker {process} has died (exit code {code}){holding}")

    @property
    def settled(self) -> bool:
        """Tell whether every order is said to have come to its end."""
        return all(row.place in {"done", "dead"} for row in self.rows.values())


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found on the broker in the end. ``left`` is what is still in queues that should be empty."""

    dead: Mapping[str, Message]
    receipts: Mapping[str, int]
    left: Mapping[str, int]
    crashes: int
    last_exit: int | None


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one order. ``problem`` says what did not happen; empty when all did."""

    chapter: Chapter
    place: str
    reason: str = ""
    attempt: int = 0
    crashes: int = 0
    problem: str = ""


def findings(ids: Mapping[str, Chapter], evidence: Evidence) -> tuple[Finding, ...]:
    """Return what became of every order, as the broker has it."""
    return tuple(_finding(chapter, identity, evidence) for identity, chapter in ids.items())


def problems(found: tuple[Finding, ...], evidence: Evidence) -> tuple[str, ...]:
    """Return a sentence for everything that should have happened and did not."""
    lines = [f"order {one.chapter.number} {one.problem}" for one in found if one.problem]
    lines += [f"{count} messages are still in {queue}" for queue, count in evidence.left.items() if count]
    if evidence.crashes < CRASH_LIMIT:
        lines.append(f"the worker died {evidence.crashes} times and not {CRASH_LIMIT}")
    if evidence.last_exit != 0:
        lines.append(f"the worker ended with {evidence.last_exit} and not with 0 when it was asked to stop")
    return tuple(lines)


def _finding(chapter: Chapter, identity: str, evidence: Evidence) -> Finding:
    dead, charged_at = evidence.dead.get(identity), evidence.receipts.get(identity, 0)
    if dead is not None:
        reason = shown(wire.name(dead.headers.get(wire.REASON)) or "no reason")
        crashes = wire.count(dead.headers.get(wire.CRASHES))
        return Finding(
            chapter, "dead", reason, dead.attempt, crashes, _dead_problem(chapter, dead, reason, crashes, charged_at)
        )
    if charged_at:
        problem = ""
        if chapter.reason:
            problem = f"was charged and should be a dead letter ({chapter.reason})"
        elif charged_at != chapter.attempt:
            problem = f"was charged at attempt {charged_at} and not at attempt {chapter.attempt}"
        return Finding(chapter, "done", attempt=charged_at, problem=problem)
    return Finding(chapter, "unknown", problem="was neither charged nor found among the dead letters")


def _dead_problem(chapter: Chapter, dead: Message, reason: str, crashes: int, charged_at: int) -> str:
    if not chapter.reason:
        return f"is a dead letter ({reason}) and should have been charged"
    if charged_at:
        return "is a dead letter and was charged nevertheless"
    if reason != chapter.reason:
        return f"is a dead letter because it is {reason}, and not because it is {chapter.reason}"
    if dead.body != chapter.body:
        return "is a dead letter whose body was changed"
    if crashes < chapter.crashes:
        return f"was caught after {crashes} crashes and not after {chapter.crashes}"
    return ""
