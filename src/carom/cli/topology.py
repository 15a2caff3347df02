"""``carom topology``: what an app needs to exist on its broker.

Rule: showing connects to nothing.
"""

from __future__ import annotations

import click

from carom.cli.definitions import listener_written, written
from carom.cli.graphs import dot, mermaid
from carom.cli.loading import load
from carom.cli.options import app_dir_option, option, speaking
from carom.cli.output import Output, as_json
from carom.cli.picture import picture
from carom.layouts import layout as layout_of


@click.group(short_help="Show what an app needs to exist on its broker.")
def topology() -> None:
    """Show what an app needs to exist on its broker: exchanges, queues and bindings."""


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
    laid_out = layout_of(chosen, found.namespace, found.exchange, tuple(one.plan for one in found.listeners))
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
