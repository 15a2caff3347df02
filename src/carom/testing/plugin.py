"""The pytest plugin: a harness for an app, and async tests that use it without any other plugin.

    async def test_the_ladder(carom_harness):
        async with carom_harness(app) as h:
            ...

Rule: loading the plugin imports no harness and no broker; they come with the first test that asks for them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from carom.testing.harness import Harness


@pytest.fixture
def carom_harness() -> Callable[..., Harness]:
    """Return `carom.testing.Harness`: call it with an app and use it in ``async with``."""
    from carom.testing.harness import Harness  # noqa: PLC0415 - loaded only by tests that use it

    return Harness


@pytest.hookimpl
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that uses ``carom_harness``, when no other plugin has taken it."""
    if "carom_harness" not in pyfuncitem.fixturenames or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True
