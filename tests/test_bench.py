"""The benchmarks measure: each runs with a few messages, on a real broker where it needs one, and prints its lines.

Rule: no speed is asserted, and nothing is left on the broker.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pika
import pika.exceptions
import pytest

ROOT = Path(__file__).parent.parent
SECONDS = 120
LIMITS = "pika-asyncio,pika-asyncio-coalesced"
PROMISED = ("bench", "case", "per_second", "ratio_to")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)


def measured(name: str, *arguments: str) -> dict[str, dict]:
    done = bench(name, "--json", "--rounds", "1", "--peers", LIMITS, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for line in lines:
        assert set(PROMISED) <= set(line)
        assert line["bench"] == name
    return {line["subject"]: line for line in lines}


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import __main__ as program

    return program.BENCHMARKS


def test_publishing_is_measured_beside_the_limit(rabbitmq_url):
    found = measured("publish", "--messages", "300", "--broker", rabbitmq_url)
    assert set(found) == {"carom", "carom-tasks", "pika-asyncio"}
    assert all(line["per_second"] > 0 for line in found.values())
    assert found["carom"]["ratio_to"]["pika-asyncio"] > 0
    assert found["carom"]["target"]["pika-asyncio"] == 0.8


def test_consuming_is_measured_beside_both_limits(rabbitmq_url):
    found = measured("consume", "--messages", "300", "--broker", rabbitmq_url)
    assert set(found["carom"]["ratio_to"]) == {"pika-asyncio", "pika-asyncio-coalesced"}


def test_retrying_is_measured_in_two_stretches(rabbitmq_url):
    found = measured("retry", "--messages", "60", "--broker", rabbitmq_url)
    assert set(found) == {"carom", "carom-16", "carom-flowing", "pika-asyncio"}
    assert {"first_per_second", "second_per_second"} <= set(found["carom"]["more"])


def test_a_delay_is_never_shorter_than_it_says(rabbitmq_url):
    line = measured("delay", "--messages", "3", "--broker", rabbitmq_url)["carom"]
    assert line["per_second"] is None
    assert 1_990 <= line["more"]["median_ms"] <= line["more"]["max_ms"]


def test_memory_is_looked_at_while_messages_pass(rabbitmq_url):
    line = measured("memory", "--messages", "500", "--broker", rabbitmq_url)["carom"]
    assert line["more"]["first_mib"] > 0
    assert "growth_mib at most" in line["target"]


def test_the_embedded_broker_needs_no_server():
    found = measured("embedded", "--messages", "500", "--broker", "amqp://nobody.invalid/")
    assert set(found) == {"memory-port", "memory-app", "file-port", "file-app"}
    assert all(line["per_second"] > 0 for line in found.values())


def test_people_get_a_table():
    done = bench("embedded", "--messages", "100", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert "in memory, through an App" in done.stdout


def test_an_unknown_peer_is_named_beside_those_there_are():
    done = bench("publish", "--peers", "kafka")
    assert done.returncode == 2
    assert "'kafka'" in done.stderr
    assert "faststream" in done.stderr


def test_a_broker_that_does_not_answer_is_said_to():
    done = bench("publish", "--messages", "1", "--broker", "amqp://guest:secret@127.0.0.1:1/")
    assert done.returncode == 1
    assert done.stderr == "bench: no RabbitMQ answers at the address given; see --broker\n"


def test_what_a_case_declared_is_gone_afterwards_even_when_it_fails(rabbitmq_url, registry):
    from bench.job import Job
    from bench.place import place

    case = next(case for case in registry["publish"].cases if not case.declares)
    placed = place(case, Job(rabbitmq_url, "", 1), print)
    job = placed.__enter__()
    assert not placed.__exit__(ArithmeticError, ArithmeticError(), None), "the error is not swallowed"
    with (
        pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection,
        pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"),
    ):
        connection.channel().queue_declare(job.queue, passive=True)


def test_a_case_that_loses_messages_does_not_count(rabbitmq_url, registry, monkeypatch):
    from bench import place

    monkeypatch.setattr(place, "SETTLE_SECONDS", 0.1)
    case = next(case for case in registry["publish"].cases if not case.declares)
    placed = place.place(case, place.Job(rabbitmq_url, "", 7), print)
    placed.__enter__()
    with pytest.raises(place.NotAsPromised, match="left 0 messages in its queue instead of 7"):
        placed.__exit__(None, None, None)


def test_every_case_names_a_function_that_is_there(registry):
    for benchmark in registry.values():
        for case in benchmark.cases:
            source = (ROOT / f"{case.module.replace('.', '/')}.py").read_text(encoding="utf-8")
            body = ast.parse(source).body
            functions = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert case.function in functions, f"{case.module} has no {case.function}"


def test_the_payload_has_the_size_that_is_said(registry):
    from bench import job

    assert len(job.BODY) == job.BODY_BYTES


def test_a_target_is_reached_only_when_all_of_it_was_measured_and_holds(registry):
    from bench.cases import Target
    from bench.runner import _reached

    target = Target(ratios={"a": 2.0, "b": 3.0}, at_most={"growth_mib": 8})
    assert _reached(target, {"a": 2.0, "b": 3.0}, {"growth_mib": 8}) is True
    assert _reached(target, {"a": 1.9}, {"growth_mib": 8}) is False
    assert _reached(target, {"a": 2.0}, {"growth_mib": 8}) is None
    assert _reached(target, {"a": 2.0, "b": 3.0}, {"growth_mib": 8.1}) is False
    assert _reached(Target(), {}, {}) is None


def test_relaying_is_measured_beside_the_bare_loop(rabbitmq_url, postgres_url):
    found = measured(
        "relay", "--messages", "300", "--broker", rabbitmq_url, "--database", postgres_url, "--peers", "bare-500"
    )
    assert set(found) == {"carom", "bare-500"}
    assert found["carom"]["ratio_to"]["bare-500"] > 0
    assert found["carom"]["target"]["per_second at least"] == 25_000


def test_latency_is_measured_with_and_without_an_outbox(rabbitmq_url, postgres_url):
    found = measured("latency", "--messages", "100", "--broker", rabbitmq_url, "--database", postgres_url)
    assert set(found) == {"carom", "carom-direct"}
    for line in found.values():
        assert 0 < line["more"]["p50_ms"] <= line["more"]["p99_ms"] <= line["more"]["max_ms"]
