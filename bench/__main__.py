"""The command line of the benchmarks: ``python -m bench NAME [--json]``.

Rule: standard output carries results and nothing else; what goes on is said on standard error, to a terminal.
Exit codes: 0 measured, 1 something could not be measured, 2 a wrong option.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from bench import consume, delay, embedded, environment, inbox, latency, memory, publish, relay, report, retry, runner
from bench.cases import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    one.BENCHMARK.name: one.BENCHMARK
    for one in (publish, consume, retry, delay, embedded, memory, relay, latency, inbox)
}
EVERYTHING = "all"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for; return the exit code."""
    asked = _parser().parse_args(arguments)
    chosen = list(BENCHMARKS.values()) if asked.name == EVERYTHING else [BENCHMARKS[asked.name]]
    without_server = all(one.embedded for one in chosen)
    fine = True
    with (
        nullcontext("") if without_server else environment.broker(asked.broker) as url,
        environment.database(asked.database) if any(one.database for one in chosen) else nullcontext("") as database,
    ):
        if not without_server and not environment.answers(url):
            print("bench: no RabbitMQ answers at the address given; see --broker", file=sys.stderr)
            return 1
        for benchmark in chosen:
            measured = runner.Asked(url, database, asked.messages, asked.rounds, asked.peers, _say)
            fine &= _measure(benchmark, measured, as_json=asked.json)
    return 0 if fine else 1


def _measure(benchmark: Benchmark, asked: runner.Asked, *, as_json: bool) -> bool:
    results = []
    for result in runner.run(benchmark, asked):
        results.append(result)
        if as_json:
            print(report.line(result), flush=True)
    if not as_json:
        report.show(benchmark, results)
    return not any(result.error for result in results)


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description="How fast Carom is, beside its limit and its peers.")
    names = "; ".join(f"{one.name}: {one.about}" for one in BENCHMARKS.values())
    parser.add_argument("name", choices=[*BENCHMARKS, EVERYTHING], help=f"{names}; {EVERYTHING}: each of them")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--broker",
        metavar="URL",
        help=f"a RabbitMQ; otherwise that of {environment.VARIABLE}, a private one, or the local one",
    )
    parser.add_argument(
        "--database",
        metavar="URL",
        help=f"a PostgreSQL; otherwise that of {environment.DATABASE_VARIABLE}, or a private one",
    )
    parser.add_argument("--messages", type=_count, metavar="N", help="how many messages each case is measured with")
    parser.add_argument("--rounds", type=_count, metavar="N", help="how often; the median is what counts")
    parser.add_argument(
        "--peers",
        type=_subjects,
        metavar="A,B,C",
        help=f"whom to compare with, out of {', '.join(_others())}; everybody when not said, '' for nobody",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count: say 1 or more")
    return int(text)


def _others() -> list[str]:
    subjects = [case.subject for one in BENCHMARKS.values() for case in one.cases if case.role != "carom"]
    return list(dict.fromkeys(subjects))


def _subjects(text: str) -> frozenset[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in _others()]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is nobody known here; there are {', '.join(_others())}")
    return frozenset(names)


if __name__ == "__main__":
    sys.exit(main())
