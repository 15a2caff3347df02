"""``carom topology drain``: what is ready in a queue is moved to another one, counted, and never purged.

Rule: each message is published, confirmed, and only then acknowledged; nothing is deleted, the queue included.
"""

from __future__ import annotations

import asyncio

import click

from carom.cli.connecting import at
from carom.cli.dead import told
from carom.cli.loading import load
from carom.cli.options import app_dir_option, broker_option, option, speaking
from carom.cli.output import NOTHING_MATCHED, OK, Output, is_meant
from carom.ports import Broker
from carom.runtime import dead_letters

MOST = 100_000_000


@click.command
@click.argument("app", metavar="APP")
@click.argument("queue", metavar="QUEUE")
@option("--to", required=True, metavar="QUEUE", help="Where they go; to a queue of the app at the attempt they are at.")
@option("--count", type=click.IntRange(1), help="How many at most.  [default: as many as are ready at the beginning]")
@broker_option("Another broker than the app's own.")
@option("--yes", "-y", is_flag=True, help="Do not ask.")
@option("--dry-run", is_flag=True, help="Only count what is ready.")
@app_dir_option
@speaking
def drain(
    out: Output,
    *,
    app: str,
    queue: str,
    to: str,
    count: int | None,
    broker: str | None,
    yes: bool,
    dry_run: bool,
    app_dir: str,
) -> int:
    """Move what is ready in QUEUE, such as a retry queue, to another queue at once. Nothing is lost or purged.

    APP, such as shop:app, says how its messages are written. What comes meanwhile stays where it is.
    """
    found = load(app, app_dir)
    if queue == to:
        raise click.UsageError("a queue is drained to another one")
    if dry_run:
        ready = asyncio.run(at(found, broker, lambda there: dead_letters.ready(there, queue)))
        out.say(f"{ready} messages are ready in {queue}")
        out.data("", {"ready": ready})
        return OK if ready else NOTHING_MATCHED
    if not (yes or is_meant(f"Move what is ready in {queue} to {to}?")):
        out.say("carom: nothing was changed")
        return OK
    queues = [one.queue for one in found.listeners]

    async def drained(there: Broker) -> dead_letters.Moved:
        return await dead_letters.drain(there, found.layout, queues, queue, to, count or MOST)

    return told(out, asyncio.run(at(found, broker, drained)), "moved", "message")
