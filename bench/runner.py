"""Runs a benchmark: round by round, each case in a process of its own, and takes the medians.

Rule: in every round each case has its turn, so that whatever else the machine does befalls all alike. A case that
fails is said to have failed, and the others are measured all the same.
"""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache

import msgspec
import pika.exceptions

from bench import environment
from bench.cases import Benchmark, Case, Target
from bench.job import Job, Sample
from bench.place import NotAsPromised, place

SECONDS_TO_START = 120
SLOWEST_PER_SECOND = 200
Progress = Callable[[str], None]


class Failed(Exception):
    """A process did not do its job; the message is the end of what it said."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a case: the medians of its rounds, and how it compares within this run."""

    bench: str
    case: str
    subject: str
    per_second: float | None
    ratio_to: dict[str, float]
    more: dict[str, float]
    rounds: tuple[float, ...]
    messages: int
    target: dict[str, float]
    reached: bool | None
    error: str
    on: dict[str, str]


@dataclass(frozen=True, slots=True)
class Asked:
    """How much is to be measured, and where."""

    url: str
    database: str = ""
    messages: int | None = None
    rounds: int | None = None
    subjects: frozenset[str] | None = None
    progress: Progress = lambda _text: None


@dataclass(slots=True)
class Taken:
    """The samples of a case so far."""

    case: Case
    messages: int
    samples: list[Sample]
    error: str = ""

    def median(self, name: str | None = None) -> float | None:
        """Return the median over the rounds: of what is measured, or of one of the other numbers."""
        found = [sample.per_second if name is None else sample.more.get(name) for sample in self.samples]
        numbers = [number for number in found if number is not None]
        return statistics.median(numbers) if numbers and not self.error else None


def run(benchmark: Benchmark, asked: Asked) -> Iterator[Result]:
    """Measure, and yield a result for each case, in its order."""
    messages = asked.messages or benchmark.messages
    taken = [Taken(case, case.messages(messages), []) for case in benchmark.chosen(asked.subjects)]
    rounds = asked.rounds or benchmark.rounds
    for number in range(1, rounds + 1):
        for one in taken:
            if not one.error:
                asked.progress(f"{benchmark.name}, round {number} of {rounds}: {one.case.name}")
                _take(benchmark, one, asked)
    on = {
        "python": platform.python_version(),
        "broker": "embedded" if benchmark.embedded else environment.server(asked.url),
    }
    for one in taken:
        yield _result(benchmark, one, taken, on)


def _take(benchmark: Benchmark, taken: Taken, asked: Asked) -> None:
    case, messages = taken.case, taken.messages
    delay_ms = case.delay_ms(messages) if case.delay_ms else 0
    job = Job(asked.url, "", messages, int(messages * benchmark.warm_up), delay_ms, database=asked.database)
    try:
        with tempfile.TemporaryDirectory(prefix="carom-bench-") as path, _place(benchmark, case, job) as placed:
            taken.samples.append(process(case, replace(placed, path=path)))
    except (Failed, NotAsPromised, environment.NoPeers, pika.exceptions.AMQPError) as error:
        taken.error = f"{type(error).__name__}: {error}"


def _place(benchmark: Benchmark, case: Case, job: Job) -> AbstractContextManager[Job]:
    if benchmark.embedded:
        return nullcontext(replace(job, queue="bench.embedded"))
    return place(case, job, lambda placed: _seed(case, placed))


def _seed(case: Case, job: Job) -> None:
    function = "seed" if case.role == "carom" else "publish"
    process(replace(case, function=function), replace(job, messages=1, warm_up=0))


def process(case: Case, job: Job) -> Sample:
    """Do a job in a process of its own. Raises Failed with what it said."""
    python = _python_of_peers() if case.role == "peer" else sys.executable
    command = [python, "-m", "bench.worker", case.module, case.function, msgspec.json.encode(asdict(job)).decode()]
    limit_s = SECONDS_TO_START + job.total / SLOWEST_PER_SECOND
    try:
        done = subprocess.run(command, cwd=environment.ROOT, capture_output=True, timeout=limit_s, check=False)  # noqa: S603 - a worker of our own
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{case.name} was not done after {limit_s:.0f} s") from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = done.stderr.decode(errors="replace").strip()
        raise Failed(f"{case.name} exited with {done.returncode}: {said[-2000:]}")
    return Sample.from_json(lines[-1])


@cache
def _python_of_peers() -> str:
    return environment.python_of_peers()


def _result(benchmark: Benchmark, one: Taken, everybody: list[Taken], on: dict[str, str]) -> Result:
    per_second = one.median()
    names = sorted({name for sample in one.samples for name in sample.more})
    more = {name: number for name in names if (number := one.median(name)) is not None}
    ratios = _ratios(one, everybody)
    target = benchmark.targets.get(one.case.subject, Target())
    return Result(
        bench=benchmark.name,
        case=one.case.name,
        subject=one.case.subject,
        per_second=_rounded(per_second),
        ratio_to={name: round(ratio, 3) for name, ratio in ratios.items()},
        more={name: round(number, 3) for name, number in more.items()},
        rounds=tuple(round(sample.per_second, 1) for sample in one.samples if sample.per_second is not None),
        messages=one.messages,
        target=_said(target),
        reached=_reached(target, ratios, {**more, **({} if per_second is None else {"per_second": per_second})}),
        error=one.error,
        on=on,
    )


def _ratios(one: Taken, everybody: list[Taken]) -> dict[str, float]:
    """Compare a case of Carom with all others, and the others with the limit."""
    mine = one.median()
    ratios: dict[str, float] = {}
    for other in everybody:
        compared = other is not one and (one.case.role == "carom" or other.case.role == "limit")
        theirs = other.median()
        if compared and mine and theirs:
            ratios[other.case.subject] = mine / theirs
    return ratios


def _said(target: Target) -> dict[str, float]:
    least = {f"{name} at least": value for name, value in target.at_least.items()}
    most = {f"{name} at most": value for name, value in target.at_most.items()}
    return {**target.ratios, **least, **most}


def _reached(target: Target, ratios: dict[str, float], measured: dict[str, float]) -> bool | None:
    """Tell whether what was aimed at is reached; None when nothing was, or not all of it was measured."""
    wanted = [(ratios.get(name), value, 1) for name, value in target.ratios.items()]
    wanted += [(measured.get(name), value, 1) for name, value in target.at_least.items()]
    wanted += [(measured.get(name), value, -1) for name, value in target.at_most.items()]
    answers = [None if found is None else (found - value) * sign >= 0 for found, value, sign in wanted]
    if False in answers:
        return False
    return True if answers and None not in answers else None


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)
