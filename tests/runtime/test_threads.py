"""Threads for handlers that are not coroutines: as many as are needed, and none that keeps the process."""

import asyncio
import threading

import pytest
from runtime_stage import until

from carom.runtime.threads import Threads


async def test_an_answer_is_a_value_whether_it_went_well_or_not():
    threads = Threads(2, "t")
    assert await threads.run(lambda: 5) == (True, 5)
    for kind in (ValueError, StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError):
        fine, error = await threads.run(raising(kind))
        assert not fine
        assert type(error) is kind
    threads.close()


def raising(kind):
    def call():
        raise kind

    return call


async def test_no_more_threads_than_asked_and_no_more_than_needed():
    threads = Threads(3, "t")
    names = set()
    for _ in range(5):
        await threads.run(lambda: names.add(threading.current_thread().name))
    assert names == {"t-1"}, "one after the other takes one thread"
    barrier = threading.Barrier(3, timeout=10)
    await asyncio.gather(*(threads.run(barrier.wait) for _ in range(9)))
    assert threads.busy == 0
    threads.close()


async def test_a_thread_nobody_waits_for_is_still_occupied_and_another_is_started_for_the_next_call():
    threads = Threads(2, "t")
    let_go = threading.Event()
    hanging = threads.run(lambda: let_go.wait(10))
    hanging.cancel()
    assert await asyncio.wait_for(threads.run(lambda: 5), 10) == (True, 5)
    assert threads.busy == 1
    let_go.set()
    await until(lambda: threads.busy == 0)
    threads.close()


def test_a_thread_that_ends_after_its_loop_ends_quietly():
    let_go, thread = threading.Event(), []

    async def begin():
        def call():
            thread.append(threading.current_thread())
            let_go.wait(10)

        threads = Threads(1, "t")
        threads.run(call)
        await until(lambda: thread)

    asyncio.run(begin())
    let_go.set()
    thread[0].join(10)
    assert not thread[0].is_alive()
    assert thread[0].daemon


@pytest.mark.parametrize("count", [1, 4])
async def test_closed_threads_end(count):
    threads = Threads(count, "closing")
    barrier = threading.Barrier(count, timeout=10)
    await asyncio.gather(*(threads.run(barrier.wait) for _ in range(count)))
    threads.close()
    await until(lambda: not [one for one in threading.enumerate() if one.name.startswith("closing")])
