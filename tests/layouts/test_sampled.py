"""Where there is any delay, a few of them stand for all: nobody goes through a range of hundreds of millions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_stage import EVERY

from carom.core.grants import grants
from carom.layouts import sampled

RANGES = [name for name, laid in EVERY.items() if isinstance(laid.layout.delays(laid.plan.queue), range)]


def test_binary_and_goqueue_have_any_delay():
    assert set(RANGES) == {"binary", "goqueue", "goqueue-tenfold"}


@pytest.mark.parametrize("name", RANGES)
def test_a_few_delays_are_all_there_is_to_see(name):
    laid = EVERY[name]
    found = sampled(laid.layout, laid.plan.queue)
    assert len(found) < 50
    assert all(delay in laid.layout.delays(laid.plan.queue) for delay in found)


@pytest.mark.parametrize("name", RANGES)
@given(data=st.data())
def test_no_delay_is_published_anywhere_else_and_all_of_it_is_granted(name, data):
    laid = EVERY[name]
    layout, queue = laid.layout, laid.plan.queue
    every = layout.delays(queue)
    delay = every[data.draw(st.integers(0, len(every) - 1))]
    exchange = layout.delay_address(queue, delay).exchange
    assert exchange in {layout.delay_address(queue, one).exchange for one in sampled(layout, queue)}
    assert exchange in grants(layout, [queue], "shop", ["worker"]).write
