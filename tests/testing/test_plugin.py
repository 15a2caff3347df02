"""The pytest plugin, in a pytest of its own: the fixture, and async tests without any other plugin."""

import subprocess
import sys

import pytest

TESTS = """
import asyncio
import pytest
from carom import App

app = App("embedded://", observers=())

@app.listen("order.created", queue="q", retry=("30m",))
async def handle(order: dict):
    raise ValueError

async def test_the_ladder(carom_harness):
    async with carom_harness(app) as h:
        await h.publish("order.created", {"id": 1})
        await h.advance("30m")
        assert len(h.dead("q")) == 1

@pytest.mark.parametrize("number", [1, 2])
async def test_with_others(number, carom_harness, tmp_path):
    assert number and tmp_path.exists()
    async with carom_harness(app):
        pass

class TestOfAClass:
    async def test_a_method(self, carom_harness):
        async with carom_harness(app) as h:
            assert h.app is app

async def test_that_fails(carom_harness):
    async with carom_harness(app) as h:
        assert h.dead("q"), "there is none"

def test_plain(carom_harness):
    assert callable(carom_harness)
"""


def ran(folder, *options):
    (folder / "test_shop.py").write_text(TESTS, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_async_tests_with_the_fixture_run_and_their_failures_count(tmp_path):
    result = ran(tmp_path)
    assert "1 failed, 5 passed" in result.stdout, result.stdout + result.stderr
    assert "there is none" in result.stdout


def test_loading_the_plugin_imports_no_harness_and_no_broker():
    code = "import sys, carom.testing.plugin; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    loaded = result.stdout.split()
    assert "carom.testing.plugin" in loaded
    assert not [name for name in loaded if name.startswith(("carom.testing.harness", "carom.brokers", "sqlalchemy"))]


def test_the_fixture_is_the_harness(carom_harness):
    from carom.testing import Harness

    assert carom_harness is Harness


async def test_another_plugin_that_runs_async_tests_goes_first(carom_harness):
    assert carom_harness is not None


def test_the_hook_leaves_other_tests_alone(request: pytest.FixtureRequest):
    from carom.testing import plugin

    assert plugin.pytest_pyfunc_call(request.node) is None
