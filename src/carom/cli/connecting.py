"""At a broker: what a command does between opening one and closing it.

Rule: the broker is closed, whatever happens between. An app that leaves its layout open is in the one it would choose.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from carom import adapters
from carom.layouts import Choice, as_auto
from carom.ports import Broker
from carom.runtime.app import App
from carom.runtime.choosing import foreseen
from carom.runtime.clock import RealClock

T = TypeVar("T")


async def chosen_for(app: App, broker: Broker) -> Choice:
    """Return the layout that ``auto`` comes to for an app at an open broker, and why. Nothing is declared."""
    return await foreseen(broker, tuple(one.plan for one in app.listeners), app.in_layout)


async def at(app: App, given: str | None, do: Callable[[Broker], Awaitable[T]]) -> T:
    """Do something at the broker of an app, or at another one that was given."""
    address = given or app.address
    if not adapters.is_location(address):
        raise click.UsageError("this app was given a broker object: say --broker URL")
    broker = adapters.broker(address, RealClock(), lambda _event: None)
    await broker.open()
    try:
        if app.layout_name == "auto":
            app.choice = await chosen_for(app, broker)
            app.chosen_layout = as_auto(app.choice)
        return await do(broker)
    finally:
        await broker.close()
