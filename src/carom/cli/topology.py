"""``carom topology``: what an app needs on its broker, how the broker differs, who may do what.

Rule: showing connects to nothing; planning changes nothing; applying makes what is missing and touches nothing that is
there, but for leftovers that somebody said to remove.
"""

from __future__ import annotations

import asyncio
import shlex
from typing import cast

import click

from carom.cli import drifting
from carom.cli.connecting import at
from carom.cli.definitions import exported, listener_written, written
from carom.cli.draining import drain
from carom.cli.graphs import dot, mermaid
from carom.cli.loading import load
from carom.cli.migrating import migrate
from carom.cli.options import app_dir_option, broker_option, option, speaking
from carom.cli.output import DRIFT, OK, PARTLY, Output, as_json, shown
from carom.cli.picture import picture
from carom.core.grants import ROLES, Role, grants
from carom.errors import ConfigurationError
from carom.ports import Broker
from carom.runtime.app import App
from carom.runtime.clearing import clear
from carom.runtime.clock import RealClock


@click.group(short_help="Show, compare, make or change what an app needs on its broker.")
def topology() -> None:
    """Show, compare, make or change what an app needs to exist on its broker: exchanges, queues and bindings."""


layout_option = option(
    "--layout", metavar="NAME", envvar="CAROM_LAYOUT", help="As it would be in another layout, such as per_queue."
)


once_option = option(
    "--once",
    "once",
    metavar="LAYOUT",
    multiple=True,
    help="A layout of another system that this app had before: what is left of it counts as left over too.",
)


@topology.command
@click.argument("app", metavar="APP")
@option(
    "--format",
    "form",
    type=click.Choice(("text", "mermaid", "dot", "json")),
    default="text",
    help="Text for people, a graph, or everything as JSON.",
)
@layout_option
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
@broker_option("Compare with this broker instead of the app's own.")
@layout_option
@once_option
@app_dir_option
@speaking
def plan(out: Output, *, app: str, broker: str | None, layout: str | None, once: tuple[str, ...], app_dir: str) -> int:
    """Say how the broker of APP, such as shop:app, differs from what it needs; exit with 5 when it does.

    An app with layout="auto" is compared in the layout it would choose there, and why that one is said first.

    With ?management=http://host:15672 in the broker's URL bindings, policies and leftovers are compared too.
    """
    found = load(app, app_dir)
    compared = asyncio.run(at(found, broker, lambda there: drifting.compare(found, layout, there, once)))
    out.data(drifting.told(compared), drifting.written(found, compared))
    return DRIFT if compared else OK


@topology.command
@click.argument("app", metavar="APP")
@broker_option("Apply to this broker instead of the app's own.")
@option("--dry-run", is_flag=True, help="Only compare: exit with 5 when something is missing or different.")
@option("--remove-leftovers", is_flag=True, help="Also remove what is left over, unused and empty; needs --yes.")
@once_option
@option("--yes", is_flag=True, help="Remove without asking.")
@app_dir_option
@speaking
def apply(
    out: Output,
    *,
    app: str,
    broker: str | None,
    dry_run: bool,
    remove_leftovers: bool,
    once: tuple[str, ...],
    yes: bool,
    app_dir: str,
) -> int:
    """Make what APP, such as shop:app, needs and its broker does not have. What is there is never changed.

    With --remove-leftovers, what this app has left behind and nobody uses is removed, if it is empty, looked at twice.
    """
    found = load(app, app_dir)
    asyncio.run(at(found, broker, lambda there: there.declare(found.topology, "verify" if dry_run else "apply")))
    if found.choice is not None:
        out.say(f"layout {found.choice.name}: {found.choice.why}")
    things = found.topology
    count = f"{len(things.exchanges)} exchanges, {len(things.queues)} queues and {len(things.bindings)} bindings"
    out.say(f"{count} are as {found.name} needs them")
    stays: tuple[str, ...] = ()
    if remove_leftovers and not dry_run:
        if not yes:
            click.confirm("Remove what is left over, unused and empty?", abort=True, err=True)
        stays = asyncio.run(at(found, broker, lambda there: _cleared(out, found, there, once)))
        for one in stays:
            out.say(f"stays: {one}")
    value = {"app": found.name, "applied": not dry_run, "topology": written(things), "stays": list(stays)}
    out.data("", value)
    return PARTLY if stays else OK


@topology.command
@click.argument("app", metavar="APP")
@option("--vhost", metavar="NAME", default="/", help="The vhost it is to be imported into.")
@layout_option
@app_dir_option
@speaking
def export(out: Output, *, app: str, vhost: str, layout: str | None, app_dir: str) -> None:
    """Print the topology of APP, such as shop:app, as a definitions.json for 'rabbitmqctl import_definitions'.

    What exists already an import passes over without a word, also when it differs: compare with 'plan' afterwards.
    """
    found = load(app, app_dir)
    value = exported(found.in_layout(layout or found.layout_name).topology, vhost)
    out.data(drifting.indented(value), value)


@topology.command(name="grants")
@click.argument("app", metavar="APP")
@option(
    "--role", "roles", type=click.Choice(ROLES), multiple=True, required=True, help="What the user does; repeatable."
)
@option("--user", metavar="NAME", help="The user's name.  [default: <app>-<role>]")
@option("--vhost", metavar="NAME", default="/", help="The vhost the permissions are for.")
@layout_option
@app_dir_option
@speaking
def grants_(
    out: Output, *, app: str, roles: tuple[str, ...], user: str | None, vhost: str, layout: str | None, app_dir: str
) -> None:
    """Print the least permissions for a role of APP, such as shop:app, and the rabbitmqctl command that gives them.

    admin makes the topology; publisher and relay publish; worker handles, retries and buries; console reads dead
    letters and sends them again. A worker that cannot make the topology runs with topology="ignore" or "verify".
    """
    found = load(app, app_dir)
    laid_out = found.in_layout(layout or found.layout_name)
    queues = [one.queue for one in found.listeners]
    later = f"{found.namespace}.later" if laid_out.topology.queue(f"{found.namespace}.later") else ""
    queues += [later] if later else []
    granted = grants(laid_out, queues, found.exchange, cast("tuple[Role, ...]", roles), later)
    configure, write, read = granted.patterns
    name = user or f"{found.name}-{'-'.join(roles)}"
    words = ["rabbitmqctl", "set_permissions", "-p", vhost, name, configure, write, read]
    lines = [f"configure  {configure}", f"write      {write}", f"read       {read}", "", shlex.join(words)]
    if granted.everywhere:
        out.say("this layout publishes by the default exchange: who may, may write to every queue of the vhost")
    value = {"user": name, "vhost": vhost, "configure": configure, "write": write, "read": read}
    out.data("\n".join(shown(line) for line in lines), value)


async def _cleared(out: Output, app: App, broker: Broker, once: tuple[str, ...]) -> tuple[str, ...]:
    compared = await drifting.compare(app, None, broker, once)
    if not compared.known:
        raise ConfigurationError(
            "what is left over is known to the management API alone: give its address with "
            "?management=http://host:15672 in the broker's URL"
        )
    return (*compared.drift.stays, *await clear(broker, compared.drift.leftovers, RealClock(), out.say))


topology.add_command(drain)
topology.add_command(migrate)
