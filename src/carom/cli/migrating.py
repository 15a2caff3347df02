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
from carom.core.topology import Topology
from carom.errors import TopologyMismatch
from carom.ports import Broker
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
    wanted = found.in_layout(chosen).topology
    once = tuple(found.in_layout(name).topology for name in dict.fromkeys(filter(None, (before, found.layout_name))))

    async def planned(there: Broker) -> Migration:
        return await Migrating(there, RealClock(), out.say, patience).planned(wanted)

    steps = asyncio.run(at(found, broker, planned))
    if steps.obstacles:
        raise TopologyMismatch(steps.obstacles)
    said = [str(step) for step in steps.steps]
    if dry_run:
        out.data("\n".join(shown(f"{number}. {one}") for number, one in enumerate(said, 1)), {"steps": said})
        return OK
    if not yes:
        click.confirm(f"Do {len(said)} steps, from {said[0][:40]}…?", abort=True, err=True)
    stays = asyncio.run(at(found, broker, lambda there: _migrated(out, there, wanted, once, patience)))
    for one in stays:
        out.say(f"stays: {one}")
    if chosen != found.layout_name:
        out.say(f"the broker is as layout {chosen} needs it: now run the app with App(layout={chosen!r})")
    out.data("", {"app": found.name, "layout": chosen, "steps": said, "stays": list(stays)})
    return PARTLY if stays else OK


async def _migrated(
    out: Output, there: Broker, wanted: Topology, once: tuple[Topology, ...], patience: int
) -> tuple[str, ...]:
    return await Migrating(there, RealClock(), out.say, patience).run(wanted, once)
