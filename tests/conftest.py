"""What every test here may count on: async tests run, leftovers fail, Hypothesis does not watch the clock.

Rule: a test leaves nothing running behind; neither a task in its loop nor a thread in the process.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

pytest_plugins = ["carom.testing.plugin", "servers.fixtures"]

THREAD_GRACE_SECONDS = 2.0

settings.register_profile("house", deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("house"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "house")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in a loop of its own; each example of an async property too."""
    test = pyfuncitem.obj
    if is_hypothesis_test(test):
        inner = test.hypothesis.inner_test
        if inspect.iscoroutinefunction(inner):
            test.hypothesis.inner_test = _in_a_loop(inner)
    elif inspect.iscoroutinefunction(test):
        _in_a_loop(test)(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})
        return True
    return None


def _in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(_leaving_no_task(test(*args, **kwargs)), debug=False)

    return run


async def _leaving_no_task(test: Coroutine[Any, Any, None]) -> None:
    await test
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for _ in range(10):  # what was cancelled or is about to end gets a few turns of the loop to do so
        if all(task.done() for task in left):
            return
        await asyncio.sleep(0)
    running = [task for task in left if not task.done()]
    pytest.fail(f"the test ended and left tasks running: {running}; close or cancel what it started", pytrace=False)


@pytest.fixture(autouse=True)
def _leaving_no_thread() -> Iterator[None]:
    """Fail a test, the fixtures made for it included, that leaves a thread running."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(THREAD_GRACE_SECONDS)
    running = [thread.name for thread in left if thread.is_alive()]
    if running:
        pytest.fail(f"the test ended and left threads running: {running}; close what it started", pytrace=False)
