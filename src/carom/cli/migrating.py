"""``carom topology migrate``: change what RabbitMQ calls immutable, while everything works.

Rule: ``--dry-run`` prints every step and does none; whoever was killed runs it again.
"""

from __future__ import annotations

import asyncio

import click

from carom.cli.connecting import at
from carom.cli.loading import load
from carom.cli.options import DURATION, app_dir_option, broker_option, option, speaking
from carom.cli.output import OK, PARTLY, Output, shown
from carom.core.migration import Migration
from carom.errors import TopologyMismatch
from carom.layouts.translation import translation
from carom.ports import Broker
from carom.runtime.app import App
from carom.runtime.clock import RealClock
from carom.runtime.migrating import Migrating


@click.command
@click.argument("app", metavar="APP")
@option("--from", "before", metavar="LAYOUT", help="The layout it has now; needed when it is another one.")
@option("--to", "after", metavar="LAYOUT", help="The layout it is to have.  [default: the app's own]")
@broker_option("Migrate this broker instead of the app's own.")
@option("--patience", type=DURATION, default="10m", help="How long to wait for queues to become quiet.")
@option("--dry-run", is_flag=True, help="Print every step and do none.")
@option("--yes", is_flag=True, help="Begin without asking.")
@app_dir_option
@speaking
def migrate(
    out: Output,
    *,
    app: str,
    before: str | None,
    after: str | None,
    broker: str | None,
    patience: int,
    dry_run: bool,
    yes: bool,
    app_dir: str,
) -> int:
    """Bring the broker of APP, such as shop:app, to what it needs, also where a queue has to be replaced.

    Nothing is lost, publishers notice nothing, and a message may come twice. Handling pauses while a queue is replaced.
    Killed at any point, it goes on where it was when it is run again. It needs the management API.
    """
    found = load(app, app_dir)
    chosen = after or found.layout_name

    async def planned(there: Broker) -> Migration:
        way = _Way(found, before, chosen)
        return await _migrating(out, there, way, patience).planned(way.wanted)

    steps = asyncio.run(at(found, broker, planned))
    if steps.obstacles:
        raise TopologyMismatch(steps.obstacles)
    said = [str(step) for step in steps.steps]
    if dry_run:
        out.data("\n".join(shown(f"{number}. {one}") for number, one in enumerate(said, 1)), {"steps": said})
        return OK
    if not yes:
        click.confirm(f"Do {len(said)} steps, from {said[0][:40]}…?", abort=True, err=True)
    stays = asyncio.run(at(found, broker, lambda there: _migrated(out, there, _Way(found, before, chosen), patience)))
    for one in stays:
        out.say(f"stays: {one}")
    if chosen != found.layout_name:
        out.say(f"the broker is as layout {chosen} needs it: now run the app with App(layout={chosen!r})")
    out.data("", {"app": found.name, "layout": chosen, "steps": said, "stays": list(stays)})
    return PARTLY if stays else OK


class _Way:
    """From which layout of an app to which; made at an open broker, which has a say in ``auto``."""

    def __init__(self, app: App, before: str | None, after: str) -> None:
        old, new = app.in_layout(before or app.layout_name), app.in_layout(after)
        self.wanted = new.topology
        self.once = tuple(dict.fromkeys((old.topology, app.topology)))
        later = f"{app.namespace}.later"
        queues = [one.queue for one in app.listeners] + [later] * (new.topology.queue(later) is not None)
        self.translation = translation(old, new, tuple(queues))


def _migrating(out: Output, there: Broker, way: _Way, patience: int) -> Migrating:
    return Migrating(there, RealClock(), out.say, patience, way.translation)


async def _migrated(out: Output, there: Broker, way: _Way, patience: int) -> tuple[str, ...]:
    return await _migrating(out, there, way, patience).run(way.wanted, way.once)
