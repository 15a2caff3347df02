"""A service runs until it is stopped and comes back by itself when it fails."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carom.runtime.clock import RealClock
from carom.runtime.service import Backoff, Service
from carom.testing import VirtualClock


@given(st.integers(min_value=1, max_value=10_000), st.floats(min_value=0, max_value=1))
def test_waits_double_up_to_a_bound_and_are_spread_over_their_upper_half(failures, fraction):
    backoff = Backoff(first_ms=100, most_ms=5_000)
    whole = min(5_000, 100 * 2 ** min(failures - 1, 30))
    assert whole // 2 <= backoff.wait_ms(failures, fraction) <= whole


async def test_work_that_fails_is_tried_again_with_growing_waits_until_it_returns():
    clock, tries, waits = VirtualClock(), [], []

    async def work():
        tries.append(clock.now_ms())
        if len(tries) < 5:
            raise OSError("not yet")

    service = Service("s", work, clock, failed=lambda error, wait_ms: waits.append((str(error), wait_ms)))
    service.start()
    await clock.elapse(60_000)
    assert len(tries) == 5
    assert [later - earlier for earlier, later in itertools.pairwise(tries)] == [wait for _, wait in waits]
    assert [text for text, _ in waits] == ["not yet"] * 4
    assert all(125 * 2**n <= wait <= 250 * 2**n for n, (_, wait) in enumerate(waits))
    service.start()
    await clock.elapse(1)
    assert len(tries) == 6, "one that has ended can be started again"
    await service.stop()


async def test_a_service_that_runs_is_not_started_twice_and_stops_at_once():
    clock, running, cancelled = VirtualClock(), [], []

    async def work():
        running.append(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    service = Service("s", work, clock, failed=pytest.fail)
    await service.stop()
    service.start()
    service.start()
    await asyncio.sleep(0)
    await service.stop()
    await service.stop()
    assert (running, cancelled) == ([1], [1])


async def test_a_service_stops_while_it_waits():
    clock, tries = VirtualClock(), []

    async def work():
        tries.append(1)
        raise OSError

    service = Service("s", work, clock, failed=lambda _error, _wait_ms: None)
    service.start()
    await clock.elapse(0)
    await service.stop()
    await clock.elapse(60_000)
    assert tries == [1]


async def test_the_real_clock_tells_the_time_and_waits():
    clock = RealClock()
    called = asyncio.Event()
    before = clock.now_ms()
    clock.call_later(1, called.set)
    never = clock.call_later(1, lambda: pytest.fail("it was cancelled"))
    never()
    await asyncio.wait_for(called.wait(), 10)
    await clock.sleep(1)
    assert before <= clock.now_ms()
    assert before > 1_600_000_000_000
