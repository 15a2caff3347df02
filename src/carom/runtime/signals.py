"""Signals: SIGINT and SIGTERM ask what runs here to stop, where this process hears of them.

Rule: watched only while something runs; whoever embeds an app elsewhere keeps his own signals.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def asking_to_stop(ask: Callable[[], None]) -> Iterator[None]:
    """Call ``ask`` for every such signal, for as long as the context lasts."""
    loop = asyncio.get_running_loop()
    watched: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, ask)
        except (NotImplementedError, RuntimeError, ValueError):  # not the main thread, or no signals here
            continue
        watched.append(number)
    try:
        yield
    finally:
        for one in watched:
            loop.remove_signal_handler(one)
