"""How retries are laid out on a broker: one module a layout, its topology and its wire. Pure.

An app is told a name, ``App(layout="kbairak")``, or a layout with its switches, ``App(layout=layouts.goqueue(…))``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from carom.core.settlement import Layout, Plan
from carom.errors import ConfigurationError
from carom.layouts.kbairak import Kbairak
from carom.layouts.per_queue import PerQueue
from carom.layouts.shared import Shared

__all__ = ["Chosen", "Kbairak", "PerQueue", "Shared", "chosen", "layout"]

Build: TypeAlias = Callable[[str, str, tuple[Plan, ...], str], Layout]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A layout with its switches set: what an app is told instead of a name."""

    name: str
    build: Build


_LAYOUTS: dict[str, Build] = {"kbairak": Kbairak, "per_queue": PerQueue, "shared": Shared}


def chosen(wanted: str | Chosen) -> Chosen:
    """Return the layout that is meant. Raises ConfigurationError."""
    if isinstance(wanted, Chosen):
        return wanted
    if not isinstance(wanted, str) or wanted not in _LAYOUTS:
        raise ConfigurationError(f"no layout is called {wanted!r}: choose one of {', '.join(_LAYOUTS)}")
    return Chosen(wanted, _LAYOUTS[wanted])


def layout(wanted: str | Chosen, namespace: str, exchange: str, plans: tuple[Plan, ...], app: str = "app") -> Layout:
    """Return a layout for these queues of an app. Raises ConfigurationError or TopologyError."""
    return chosen(wanted).build(namespace, exchange, plans, app)
