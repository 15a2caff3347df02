"""``carom demo``: play the shop, show it, and say whether what was shown is true.

Rule: it exits with 0 only if everything it tells was found on the broker.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from contextlib import ExitStack
from typing import Any

import click

from carom.cli.demo.stage import Play, Stage, chapters, new_board, temporary_broker
from carom.cli.demo.story import Board, Evidence, Finding, findings, problems
from carom.cli.demo.view import Moving, Plain, advice, can_move, console, put, summary, view
from carom.cli.options import broker_option, check_shared, option, speaking
from carom.cli.output import FAILED, OK, Output, shown
from carom.runtime.settings import redacted

FRAME_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal ended the play."""

    def __init__(self, number: int) -> None:
        """Keep its number."""
        self.number = number
        super().__init__(f"ended by signal {number}")


@click.command(short_help="Watch a small shop whose orders go wrong in every way.")
@broker_option("Play on this broker; without it, on an embedded one in a temporary file.")
@option("--fast", is_flag=True, help="Without the pauses that let people follow.")
@option("--keep", is_flag=True, help="Keep the messages, and the broker's file.")
@speaking
def demo(out: Output, *, broker: str | None, fast: bool, keep: bool) -> int:
    """Watch a small shop, live: orders that fail, wait, come back, die, and one that kills its worker.

    It takes about ten seconds, in real processes. Exits with 0 only if everything that it tells has happened.
    """
    if broker is not None:
        check_shared(broker)
    play = Play.choose(fast=fast, keep=keep)
    board = new_board()
    began = time.monotonic()
    with ExitStack() as stack:
        url = broker or stack.enter_context(temporary_broker(keep=keep))
        name = "an embedded broker" if broker is None else shown(redacted(broker))
        try:
            evidence = asyncio.run(_play(Stage(play, url, board), out, name, began))
        except Interrupted as interrupted:
            out.say("carom: stopped; nothing is left running")
            return 128 + interrupted.number
        seconds = time.monotonic() - began
    found = findings(chapters(board), evidence)
    wrong = problems(found, evidence)
    _report(out, board, found, wrong, seconds)
    if keep or broker is not None:
        out.say(f"The broker, on which the queues {play.app.namespace}.* stay: {redacted(url)}")
    return FAILED if wrong else OK


async def _play(stage: Stage, out: Output, name: str, began: float) -> Evidence:
    """Perform it before the eyes of whoever looks. Raises Interrupted, when nothing runs any more, after a signal."""
    loop = asyncio.get_running_loop()
    performing = loop.create_task(stage.perform())
    received: list[int] = []

    def stop(number: int) -> None:
        if not received:
            performing.cancel()
        received.append(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        live = can_move(sys.stdout) and not out.json
        with view(console(sys.stdout, live=live), name, live=live) as picture:
            await _show(stage.board, performing, None if out.json else picture, began)
        return await performing
    except asyncio.CancelledError:
        if received:
            raise Interrupted(received[0]) from None
        raise
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _show(board: Board, performing: asyncio.Task[Evidence], picture: Plain | Moving | None, began: float) -> None:
    while True:
        await asyncio.wait({performing}, timeout=FRAME_S)
        board.now = time.monotonic() - began
        if picture is not None:
            picture.show(board)
        if performing.done():
            return


def _report(out: Output, board: Board, found: tuple[Finding, ...], wrong: tuple[str, ...], seconds: float) -> None:
    if out.json:
        out.data("", _value(board, found, wrong, seconds))
        return
    said = [summary(found, wrong, crashes=board.crashes, seconds=seconds), *([] if wrong else [advice(_NEXT)])]
    put(console(sys.stdout, live=sys.stdout.isatty()), *said)


_NEXT = {
    "carom topology show carom.cli.demo.shop:app": "the queues behind it",
    "carom run shop:app": "your own app, from shop.py",
    "carom publish KEY '{…}' --app shop:app": "a message for it",
}


def _value(board: Board, found: tuple[Finding, ...], wrong: tuple[str, ...], seconds: float) -> dict[str, Any]:
    orders = [
        {
            "number": one.chapter.number,
            "title": one.chapter.title,
            "place": one.place,
            "reason": one.reason,
            "attempt": one.attempt,
            "crashes": one.crashes,
            "problem": one.problem,
        }
        for one in found
    ]
    return {
        "ok": not wrong,
        "seconds": round(seconds, 1),
        "worker_starts": board.starts,
        "worker_crashes": board.crashes,
        "orders": orders,
        "problems": list(wrong),
    }
