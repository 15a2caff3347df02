"""The commands that talk to a broker, on a real RabbitMQ: topology apply, doctor, publish, run, demo."""

import json
import signal
import subprocess
import sys

import pytest
from cli_stage import DEADLINE_S, carom, environment, real

from carom.cli.output import CONFIGURATION, DRIFT, FAILED, NOT_PERMITTED, OK, UNAVAILABLE

SHOP = """
from carom import App

app = App("embedded://", name="shop", exchange="shop", namespace="shop")

@app.listen("order.*", queue="shop.charge", retry=("100ms",), timeout="{timeout}")
async def charge(order: dict) -> None:
    print("charged", order["id"], flush=True)
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    (tmp_path / "shop_on_rabbit.py").write_text(SHOP.format(timeout="30s"))
    (tmp_path / "slow_shop_on_rabbit.py").write_text(SHOP.format(timeout="45m"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_applying_makes_what_a_dry_run_missed(shop, empty_rabbitmq_url):
    at = ("shop_on_rabbit:app", "--broker", empty_rabbitmq_url)
    before = carom("topology", "apply", *at, "--dry-run")
    assert before.exit_code == DRIFT
    assert "queue 'shop.charge' is missing" in before.stderr
    assert carom("topology", "apply", *at, "--dry-run").exit_code == DRIFT, "a dry run made something"
    assert carom("topology", "apply", *at).exit_code == OK
    assert carom("topology", "apply", *at).exit_code == OK
    after = carom("topology", "apply", *at, "--dry-run", "--json")
    assert after.exit_code == OK
    assert json.loads(after.stdout)["applied"] is False


def test_the_doctor_says_what_is_missing_and_what_to_do(shop, empty_rabbitmq_url):
    at = ("shop_on_rabbit:app", "--broker", empty_rabbitmq_url)
    sick = carom("doctor", *at)
    assert sick.exit_code == DRIFT
    assert "ERROR   topology: queue 'shop.charge' is missing" in sick.stdout
    assert "-> run 'carom topology apply'" in sick.stdout
    carom("topology", "apply", *at)
    well = carom("doctor", *at, "--json")
    assert well.exit_code == OK, well.output
    found = json.loads(well.stdout)
    assert found["worst"] == "note"
    assert {finding["level"] for finding in found["findings"]} == {"fine", "note"}
    assert "permissions" in {finding["subject"] for finding in found["findings"]}


def test_the_doctor_warns_of_a_handler_that_outlives_the_brokers_patience(shop, empty_rabbitmq_url):
    at = ("slow_shop_on_rabbit:app", "--broker", empty_rabbitmq_url)
    carom("topology", "apply", *at)
    found = carom("doctor", *at)
    assert found.exit_code == DRIFT
    assert "may run for 45m" in found.stdout


def test_the_doctor_sees_messages_that_nobody_consumes(shop, empty_rabbitmq_url):
    at = ("shop_on_rabbit:app", "--broker", empty_rabbitmq_url)
    carom("topology", "apply", *at)
    sent = carom("publish", "order.created", '{"id": 1}', "--exchange", "shop", "--broker", empty_rabbitmq_url)
    assert sent.exit_code == OK, sent.output
    assert "1 messages are ready and nobody consumes" in carom("doctor", *at).stdout


def test_a_server_that_does_not_answer_is_69_and_one_that_refuses_is_77(shop, rabbitmq_url):
    nobody = carom("doctor", "shop_on_rabbit:app", "--broker", "amqp://guest@127.0.0.1:1/?timeout=0.2")
    assert nobody.exit_code == UNAVAILABLE
    assert "cannot be reached" in nobody.stderr
    scheme, _, rest = rabbitmq_url.rpartition("://")
    stranger = f"{scheme}://nobody:wrong@{rest.rpartition('@')[2]}"
    refused = carom("doctor", "shop_on_rabbit:app", "--broker", stranger)
    assert refused.exit_code == NOT_PERMITTED
    assert "wrong" not in refused.stderr


def test_publishing_where_nobody_listens_fails(shop, empty_rabbitmq_url):
    found = carom("publish", "order.created", "{}", "--exchange", "nobody", "--broker", empty_rabbitmq_url)
    assert found.exit_code in {FAILED, CONFIGURATION}
    assert "nobody" in found.stderr


def test_a_worker_handles_what_was_published_and_stops_cleanly(shop, empty_rabbitmq_url):
    at = ("shop_on_rabbit:app", "--broker", empty_rabbitmq_url)
    carom("topology", "apply", *at)
    carom("publish", "order.created", '{"id": 7}', "--exchange", "shop", "--broker", empty_rabbitmq_url)
    with subprocess.Popen(
        [sys.executable, "-m", "carom", "run", *at], cwd=shop, env=environment(), stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "charged 7\n"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(DEADLINE_S) == OK


def test_the_demo_really_happens_on_rabbitmq(tmp_path, rabbitmq_url):
    found = real("demo", "--fast", "--broker", rabbitmq_url, cwd=tmp_path)
    assert found.returncode == OK, found.stdout.decode() + found.stderr.decode()
    assert b"dead letter: crash-loop" in found.stdout
