"""At a broker: what a command does between opening one and closing it.

Rule: the broker is closed, whatever happens between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from carom import adapters
from carom.ports import Broker
from carom.runtime.app import App
from carom.runtime.clock import RealClock

T = TypeVar("T")


async def at(app: App, given: str | None, do: Callable[[Broker], Awaitable[T]]) -> T:
    """Do something at the broker of an app, or at another one that was given."""
    address = given or app.address
    if not adapters.is_location(address):
        raise click.UsageError("this app was given a broker object: say --broker URL")
    broker = adapters.broker(address, RealClock(), lambda _event: None)
    await broker.open()
    try:
        return await do(broker)
    finally:
        await broker.close()
