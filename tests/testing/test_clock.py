"""Virtual time moves only when told, and fires everything in the order in which it was due."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carom.ports import Clock
from carom.testing.clock import START_MS, VirtualClock


def test_it_is_a_clock():
    assert isinstance(VirtualClock(), Clock)


def test_time_starts_at_a_fixed_date_and_stands_still():
    clock = VirtualClock()
    assert clock.now_ms() == START_MS == clock.now_ms()
    assert VirtualClock(5).now_ms() == 5


def test_a_timer_fires_when_it_is_due_and_not_before():
    clock, fired = VirtualClock(0), []
    clock.call_later(100, lambda: fired.append(clock.now_ms()))
    clock.advance(99)
    assert fired == []
    clock.advance(1)
    assert fired == [100]
    clock.advance(1000)
    assert fired == [100]


def test_a_timer_sees_the_time_it_was_due():
    clock, seen = VirtualClock(0), []
    for delay in (30, 10, 20):
        clock.call_later(delay, lambda: seen.append(clock.now_ms()))
    clock.advance(60)
    assert seen == [10, 20, 30]
    assert clock.now_ms() == 60


def test_equal_timers_fire_in_the_order_they_were_set():
    clock, fired = VirtualClock(0), []
    for name in "abc":
        clock.call_later(10, lambda name=name: fired.append(name))
    clock.advance(10)
    assert fired == ["a", "b", "c"]


def test_a_timer_set_by_a_timer_fires_in_the_same_advance():
    clock, fired = VirtualClock(0), []

    def again() -> None:
        fired.append(clock.now_ms())
        clock.call_later(10, again)

    clock.call_later(10, again)
    clock.advance(35)
    assert fired == [10, 20, 30]
    assert clock.next_due_ms() == 40


def test_a_timer_due_at_once_waits_for_a_step():
    clock, fired = VirtualClock(7), []
    clock.call_later(0, lambda: fired.append("zero"))
    clock.call_later(-5, lambda: fired.append("negative"))
    assert fired == []
    assert clock.next_due_ms() == 7
    clock.advance(0)
    assert fired == ["zero", "negative"]


def test_a_cancelled_timer_never_fires_and_is_not_due():
    clock, fired = VirtualClock(0), []
    cancel = clock.call_later(10, lambda: fired.append("cancelled"))
    clock.call_later(20, lambda: fired.append("kept"))
    cancel()
    cancel()
    assert clock.next_due_ms() == 20
    clock.advance(30)
    assert fired == ["kept"]
    cancel()
    assert clock.next_due_ms() is None


def test_cancelling_what_fired_does_nothing():
    clock, fired = VirtualClock(0), []
    cancel = clock.call_later(1, lambda: fired.append(1))
    clock.advance(1)
    cancel()
    clock.call_later(1, lambda: fired.append(2))
    clock.advance(1)
    assert fired == [1, 2]


def test_cancelled_timers_are_not_kept():
    clock = VirtualClock(0)
    for _ in range(10_000):
        clock.call_later(10**9, lambda: None)()
    assert len(clock._timers) < 200


def test_a_step_fires_one_timer_and_moves_to_it():
    clock, fired = VirtualClock(0), []
    clock.call_later(10, lambda: fired.append("first"))
    clock.call_later(10, lambda: fired.append("second"))
    assert clock.step()
    assert (fired, clock.now_ms()) == (["first"], 10)
    assert clock.step(until_ms=10)
    assert fired == ["first", "second"]
    assert not clock.step()


def test_a_step_does_not_pass_its_limit():
    clock = VirtualClock(0)
    clock.call_later(10, lambda: None)
    assert not clock.step(until_ms=9)
    assert clock.now_ms() == 0


def test_time_never_moves_back():
    clock = VirtualClock(100)
    clock.advance_to(50)
    assert clock.now_ms() == 100


def test_an_action_that_raises_tells_its_caller_and_leaves_the_others():
    clock, fired = VirtualClock(0), []

    def fail() -> None:
        raise ValueError("no")

    clock.call_later(1, fail)
    clock.call_later(2, lambda: fired.append("next"))
    with pytest.raises(ValueError, match="no"):
        clock.advance(5)
    assert clock.now_ms() == 1
    clock.advance(5)
    assert fired == ["next"]


async def test_a_sleeper_wakes_when_time_has_moved():
    clock, woken = VirtualClock(0), []

    async def sleeper(delay: int) -> None:
        await clock.sleep(delay)
        woken.append((delay, clock.now_ms()))

    tasks = [asyncio.create_task(sleeper(delay)) for delay in (300, 100, 200)]
    await clock.elapse(250)
    assert woken == [(100, 100), (200, 200)]
    await clock.elapse(50)
    await asyncio.gather(*tasks)
    assert woken[-1] == (300, 300)


async def test_a_sleeper_that_sleeps_again_keeps_its_beat_within_one_elapse():
    clock, beats = VirtualClock(0), []

    async def heart() -> None:
        while True:
            await clock.sleep(60_000)
            beats.append(clock.now_ms())

    task = asyncio.create_task(heart())
    await clock.elapse(30 * 60_000)
    task.cancel()
    assert beats == [60_000 * minute for minute in range(1, 31)]


async def test_sleeping_for_nothing_only_lets_others_run():
    clock = VirtualClock(0)
    await clock.sleep(0)
    await clock.sleep(-1)
    assert clock.now_ms() == 0


async def test_a_cancelled_sleeper_leaves_no_timer():
    clock = VirtualClock(0)
    task = asyncio.create_task(clock.sleep(100))
    await asyncio.sleep(0)
    assert clock.next_due_ms() == 100
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.next_due_ms() is None


async def test_a_sleeper_cancelled_in_the_moment_it_wakes_breaks_nothing():
    clock = VirtualClock(0)
    task = asyncio.create_task(clock.sleep(100))
    await asyncio.sleep(0)
    task.cancel()
    clock.advance(100)
    with pytest.raises(asyncio.CancelledError):
        await task


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=30), st.integers(0, 60))
def test_everything_due_fires_once_in_order_and_nothing_else(timers, limit):
    clock, fired = VirtualClock(0), []
    for number, (delay, cancelled) in enumerate(timers):
        cancel = clock.call_later(delay, lambda entry=(delay, number): fired.append(entry))
        if cancelled:
            cancel()
    clock.advance(limit)
    kept = [(delay, number) for number, (delay, cancelled) in enumerate(timers) if not cancelled]
    assert fired == sorted(entry for entry in kept if entry[0] <= limit)
    assert clock.now_ms() == limit
    assert clock.next_due_ms() == min((delay for delay, _ in kept if delay > limit), default=None)
