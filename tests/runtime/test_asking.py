"""A database that does not answer is asked again; that is told once, and once that it answers.

Rule: the questions are functions, because what they ask for is no concern of who asks.
"""

import asyncio
import logging
from itertools import pairwise

from runtime_stage import told, until

from carom.errors import DatabaseUnavailable
from carom.ports import StoreDown, StoreUp
from carom.runtime.asking import Asking
from carom.runtime.presence import Presence
from carom.testing.clock import VirtualClock


def failing(times, error):
    """Return a question that fails so often, and the times at which it was asked."""
    asked = []

    async def question():
        asked.append(clock.now_ms())
        if len(asked) <= times:
            raise error
        return 42

    clock = VirtualClock()
    return question, asked, clock


async def answered(asking_one, clock):

    task = asyncio.ensure_future(asking_one)
    for _ in range(100):
        if task.done():
            break
        await clock.elapse(1_000)
    return await task


async def test_a_question_is_asked_until_it_is_answered_with_growing_waits():
    found = []
    question, asked, clock = failing(6, DatabaseUnavailable("restarting"))
    asking = Asking(Presence("postgresql://db/shop", found.append), clock)
    assert await answered(asking.ask(question), clock) == 42
    waits = [later - earlier for earlier, later in pairwise(asked)]
    assert len(waits) == 6
    assert waits[0] <= 250
    assert 2_500 <= waits[-1] <= 5_000
    (down,), (up,) = told(found, StoreDown), told(found, StoreUp)
    assert (down.database, down.reason) == ("postgresql://db/shop", "restarting")
    assert up.database == down.database
    assert not asking.waits
    assert not asking.is_down


async def test_an_error_nobody_expected_is_logged_and_ends_nothing(caplog):
    question, _, clock = failing(1, ZeroDivisionError())
    with caplog.at_level(logging.ERROR, "carom.store"):
        assert await answered(Asking(Presence("db"), clock).ask(question), clock) == 42
    assert "ZeroDivisionError" in caplog.text


async def test_what_lasts_is_begun_again_whenever_it_fails():
    begun = []
    clock = VirtualClock()
    asking = Asking(Presence("db"), clock)

    async def listen():
        begun.append(1)
        if len(begun) < 4:
            raise DatabaseUnavailable("lost")

    await answered(asking.keep(listen), clock)
    assert len(begun) == 4
    await until(lambda: not asking.waits)
