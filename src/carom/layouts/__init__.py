"""How retries are laid out on a broker: one module a layout, its topology and its wire. Pure.

An app is told a name, ``App(layout="kbairak")``, or a layout with its switches, ``App(layout=layouts.goqueue(…))``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from carom.core.settlement import Layout, Plan
from carom.errors import ConfigurationError
from carom.layouts.async_worker import AsyncWorker, Job
from carom.layouts.auto import Choice, choose
from carom.layouts.binary import Binary
from carom.layouts.freeflow import TIERS, FreeFlow, ReturnTo
from carom.layouts.goqueue import GoQueue
from carom.layouts.kbairak import Kbairak
from carom.layouts.native import Native
from carom.layouts.per_queue import PerQueue
from carom.layouts.shared import Shared
from carom.layouts.wait_queue import WaitQueue

__all__ = [
    "AsyncWorker",
    "Binary",
    "Choice",
    "Chosen",
    "FreeFlow",
    "GoQueue",
    "Job",
    "Kbairak",
    "Native",
    "PerQueue",
    "Shared",
    "WaitQueue",
    "as_auto",
    "async_worker",
    "binary",
    "choose",
    "chosen",
    "freeflow",
    "goqueue",
    "layout",
    "sampled",
    "wait_queue",
]

Build: TypeAlias = Callable[[str, str, tuple[Plan, ...], str], Layout]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A layout with its switches set: what an app is told instead of a name."""

    name: str
    build: Build


def async_worker(jobs: Mapping[str, Job] | None = None, *, replay_keeps_iteration: bool = False) -> Chosen:
    """Return async-worker's layout; see `AsyncWorker` for its switches."""
    build = partial(AsyncWorker, jobs=tuple((jobs or {}).items()), replay_keeps_iteration=replay_keeps_iteration)
    return Chosen("async_worker", build)


def binary(*, spread: float = 0.1) -> Chosen:
    """Return the layout of any delay; see `Binary` for its switch."""
    return Chosen("binary", partial(Binary, spread=spread))


def goqueue(*, tenfold: bool = False, quorum_queues: bool = False) -> Chosen:
    """Return goqueue's layout; see `GoQueue` for its switches."""
    return Chosen("goqueue", partial(GoQueue, tenfold=tenfold, quorum_queues=quorum_queues))


def freeflow(
    *, return_to: ReturnTo = "domain", nest: bool = False, tiers: tuple[tuple[str, int], ...] = TIERS
) -> Chosen:
    """Return FreeFlow's layout; see `FreeFlow` for its switches."""
    return Chosen("freeflow", partial(FreeFlow, return_to=return_to, nest=nest, tiers=tiers))


def wait_queue(*, copies: bool = False) -> Chosen:
    """Return the wait queue; ``copies`` publishes every attempt and refuses none."""
    return Chosen("wait_queue", partial(WaitQueue, copies=copies))


_LAYOUTS: dict[str, Build] = {
    "async_worker": AsyncWorker,
    "auto": Shared,
    "binary": Binary,
    "freeflow": FreeFlow,
    "goqueue": GoQueue,
    "kbairak": Kbairak,
    "native": Native,
    "per_queue": PerQueue,
    "shared": Shared,
    "wait_queue": WaitQueue,
}


def chosen(wanted: str | Chosen) -> Chosen:
    """Return the layout that is meant. Raises ConfigurationError."""
    if isinstance(wanted, Chosen):
        return wanted
    if not isinstance(wanted, str) or wanted not in _LAYOUTS:
        raise ConfigurationError(f"no layout is called {wanted!r}: choose one of {', '.join(_LAYOUTS)}")
    return Chosen(wanted, _LAYOUTS[wanted])


def sampled(of: Layout, queue: str) -> Sequence[int]:
    """Return delays of a queue that between them are published to every place there is; all, if they can be counted."""
    every = of.delays(queue)
    if not isinstance(every, range):
        return every
    doubled = (every[0] << step for step in range(every[-1].bit_length()))
    return tuple(delay for delay in doubled if delay <= every[-1])


def as_auto(choice: Choice) -> Chosen:
    """Return the layout that was chosen, under the name by which it was asked for."""
    return Chosen("auto", _LAYOUTS[choice.name])


def layout(wanted: str | Chosen, namespace: str, exchange: str, plans: tuple[Plan, ...], app: str = "app") -> Layout:
    """Return a layout for these queues of an app. Raises ConfigurationError or TopologyError."""
    return chosen(wanted).build(namespace, exchange, plans, app)
