"""``carom publish``: messages from the command line, confirmed.

Rule: an id is printed when the broker has its message, and at no other time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeAlias

import click
import msgspec

from carom.cli import logs
from carom.cli.loading import load
from carom.cli.options import DURATION, app_dir_option, broker_option, check_shared, option, speaking
from carom.cli.output import OK, PARTLY, Output, shown
from carom.core.message import Message
from carom.errors import BrokerError, BrokerUnavailable, PublishError
from carom.runtime.app import App
from carom.runtime.clock import RealClock
from carom.runtime.publisher import new_id, without_ours

Advance: TypeAlias = Callable[[int], None]

CHUNK = 500
"""How many messages are on their way at once."""
PROGRESS_FROM = 5 * CHUNK
"""From how many messages on people are shown how far it is."""


@dataclass(slots=True)
class Tally:
    """What the broker has, and what it has not."""

    ids: list[str]
    errors: list[PublishError]
    ended_by: BrokerError | None = None


@click.command(short_help="Publish a message and print its id.")
@click.argument("key", metavar="KEY")
@click.argument("payload", metavar="PAYLOAD|-")
@broker_option("Where to publish; the app's own broker without it.")
@option("--app", metavar="APP", envvar="CAROM_APP", help="Take broker and exchange from this app, such as shop:app.")
@option("--exchange", envvar="CAROM_EXCHANGE", help="The exchange; the app's own, or events, without it.")
@option("--raw", is_flag=True, help="The payload is bytes and not JSON.")
@option("--content-type", metavar="TYPE", help="The content type; application/json, or octet-stream with --raw.")
@option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header; may be said several times.")
@option("--id", "message_id", metavar="ID", help="The message's id; a new UUIDv7 without it.")
@option("--correlation-id", metavar="ID", help="The correlation id; the message's own id without it.")
@option("--count", type=click.IntRange(1), default=1, help="Publish it so many times, each with an id of its own.")
@option("--timeout", type=DURATION, default="30s", help="When to give up on a broker that does not answer.")
@app_dir_option
@speaking
def publish(
    out: Output,
    *,
    key: str,
    payload: str,
    broker: str | None,
    app: str | None,
    exchange: str | None,
    raw: bool,
    content_type: str | None,
    headers: tuple[str, ...],
    message_id: str | None,
    correlation_id: str | None,
    count: int,
    timeout: int,
    app_dir: str,
) -> int:
    """Publish a message with the routing key KEY, and print its id once the broker has confirmed it.

    PAYLOAD is JSON; - reads it from stdin. With --app what the app needs is declared first.
    """
    if message_id is not None and count > 1:
        raise click.UsageError("--id names one message: leave it out to publish several")
    if out.verbosity > 0:
        logs.set_up(out, "json" if out.json else "text")
    else:  # an app that logs its events would say a second time what is said here
        logging.getLogger("carom").addHandler(logging.NullHandler())
    publisher = _publisher(app, broker, app_dir, exchange)
    first = Message(
        body=_body(payload, raw=raw),
        exchange=publisher.exchange if exchange is None else exchange,
        routing_key=key,
        content_type=content_type or ("application/octet-stream" if raw else "application/json"),
        app_id=publisher.name,
        headers=without_ours(_headers(headers)) or {},
    )
    with _progress(out, count) as advance:
        copies = _copies(first, message_id, correlation_id, count)
        tally = asyncio.run(_publish(publisher, copies, timeout / 1000, advance))
    return _report(out, first, tally)


def _publisher(reference: str | None, broker: str | None, app_dir: str, exchange: str | None) -> App:
    if reference is not None:
        app = load(reference, app_dir)
        app.configure(broker=broker)
    elif broker is None:
        raise click.UsageError("say where: --broker URL, or --app APP to take it from an app")
    else:
        # Whoever publishes from outside declares nothing: a wrong name must be an error, not a new exchange.
        app = App(broker, exchange=exchange or "events", name="carom", topology="ignore", observers=())
    if isinstance(app.address, str):
        check_shared(app.address)
    return app


def _body(payload: str, *, raw: bool) -> bytes:
    body = sys.stdin.buffer.read() if payload == "-" else os.fsencode(payload)
    if not raw:
        try:
            msgspec.json.decode(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise click.UsageError(
                f"the payload is not JSON: {shown(str(error))}. Text needs its quotes, as in '\"text\"'; "
                "--raw publishes bytes as they are"
            ) from error
    return body


def _headers(pairs: Sequence[str]) -> dict[str, object]:
    headers: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{shown(pair)!r} is no header: say NAME=VALUE")
        if name in headers:
            raise click.UsageError(f"the header {shown(name)!r} is given twice")
        headers[name] = value
    return headers


def _copies(first: Message, message_id: str | None, correlation_id: str | None, count: int) -> Iterator[Message]:
    now_ms = RealClock().now_ms
    for _ in range(count):
        at_ms = now_ms()
        identity = new_id(at_ms) if message_id is None else message_id
        yield replace(
            first,
            id=identity,
            correlation_id=identity if correlation_id is None else correlation_id,
            timestamp=at_ms // 1000,
        )


async def _publish(app: App, messages: Iterator[Message], limit_s: float, advance: Advance) -> Tally:
    try:
        async with asyncio.timeout(limit_s):
            await app.start(consume=False, relay=False)
    except TimeoutError as error:
        raise BrokerUnavailable(f"the broker did not answer within {limit_s:g} s") from error
    tally = Tally([], [])
    try:
        while tally.ended_by is None and (chunk := list(islice(messages, CHUNK))):
            await _send(app, chunk, limit_s, tally)
            advance(len(chunk))
    finally:
        await app.stop(grace=0)
    return tally


async def _send(app: App, chunk: list[Message], limit_s: float, tally: Tally) -> None:
    failed: set[str] = set()
    try:
        async with asyncio.timeout(limit_s):
            await app.send(chunk)
    except* PublishError as group:
        errors = [error for error in _flat(group) if isinstance(error, PublishError)]
        failed = {error.message_id for error in errors}
        tally.errors += errors
    except* BrokerError as group:
        tally.ended_by = next(error for error in _flat(group) if isinstance(error, BrokerError))
    except* TimeoutError:
        tally.ended_by = BrokerUnavailable(
            f"the broker did not confirm within {limit_s:g} s; it may have the messages nevertheless"
        )
    if tally.ended_by is None:
        tally.ids += [message.id for message in chunk if message.id not in failed]


def _flat(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flat(error)
        else:
            yield error


@contextmanager
def _progress(out: Output, count: int) -> Iterator[Advance]:
    """Show people how far it is, on a terminal and when it takes a while."""
    if count < PROGRESS_FROM or out.verbosity < 0 or not sys.stderr.isatty():
        yield lambda _number: None
        return
    from rich.console import Console  # noqa: PLC0415 - only where something is drawn
    from rich.progress import Progress  # noqa: PLC0415 - only where something is drawn

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("publishing", total=count)
        yield lambda number: progress.advance(task, number)


def _report(out: Output, first: Message, tally: Tally) -> int:
    errors: list[BrokerError] = [*tally.errors, *([tally.ended_by] if tally.ended_by else [])]
    if errors and not tally.ids:
        raise errors[0] if len(errors) == 1 else ExceptionGroup(f"none of {len(errors)} messages was published", errors)
    value: dict[str, Any] = {"exchange": first.exchange, "routing_key": first.routing_key, "ids": tally.ids}
    if errors:
        value["failed"] = [{"id": error.message_id, "message": str(error)} for error in tally.errors]
    out.data("\n".join(shown(identity) for identity in tally.ids), value)
    if not errors:
        return OK
    out.say(f"carom: {len(tally.ids)} messages were published, then: {errors[0]}")
    return PARTLY
