"""``carom topology``: what an app needs to exist on its broker.

Rule: showing connects to nothing; applying makes what is missing and never touches what is there.
"""

from __future__ import annotations

import asyncio

import click

from carom import adapters
from carom.cli.definitions import listener_written, written
from carom.cli.graphs import dot, mermaid
from carom.cli.loading import load
from carom.cli.options import app_dir_option, broker_option, option, speaking
from carom.cli.output import Output, as_json
from carom.cli.picture import picture
from carom.ports import Mode
from carom.runtime.app import App
from carom.runtime.clock import RealClock


@click.group(short_help="Show or make what an app needs on its broker.")
def topology() -> None:
    """Show or make what an app needs to exist on its broker: exchanges, queues and bindings."""


@topology.command
@click.argument("app", metavar="APP")
@option(
    "--format",
    "form",
    type=click.Choice(("text", "mermaid", "dot", "json")),
    default="text",
    help="Text for people, a graph, or everything as JSON.",
)
@option("--layout", metavar="NAME", envvar="CAROM_LAYOUT", help="As it would be in another layout, such as per_queue.")
@app_dir_option
@speaking
def show(out: Output, *, app: str, form: str, layout: str | None, app_dir: str) -> None:
    """Show the topology of APP, such as shop:app. Nothing is connected to."""
    found = load(app, app_dir)
    chosen = layout or found.layout_name
    laid_out = found.layout if layout is None else found.in_layout(layout)
    value = {
        "app": found.name,
        "layout": chosen,
        "namespace": found.namespace,
        "exchange": found.exchange,
        "topology": written(laid_out.topology),
        "listeners": [listener_written(one) for one in found.listeners],
    }
    if form == "text":
        text = picture(found, chosen, laid_out)
    elif form == "json":
        text = as_json(value)
    else:
        text = (mermaid if form == "mermaid" else dot)(laid_out.topology)
    out.data(text, value)


@topology.command
@click.argument("app", metavar="APP")
@broker_option("Apply to this broker instead of the app's own.")
@option("--dry-run", is_flag=True, help="Only compare: exit with 5 when something is missing or different.")
@app_dir_option
@speaking
def apply(out: Output, *, app: str, broker: str | None, dry_run: bool, app_dir: str) -> None:
    """Make what APP, such as shop:app, needs and its broker does not have. What is there is never changed."""
    found = load(app, app_dir)
    asyncio.run(_declare(found, broker or found.address, "verify" if dry_run else "apply"))
    things = found.topology
    count = f"{len(things.exchanges)} exchanges, {len(things.queues)} queues and {len(things.bindings)} bindings"
    out.say(f"{count} are as {found.name} needs them")
    out.data("", {"app": found.name, "applied": not dry_run, "topology": written(things)})


async def _declare(app: App, address: object, mode: Mode) -> None:
    if not adapters.is_location(address):
        raise click.UsageError("this app was given a broker object: say --broker URL")
    broker = adapters.broker(address, RealClock(), lambda _event: None)
    await broker.open()
    try:
        await broker.declare(app.topology, mode)
    finally:
        await broker.close()
