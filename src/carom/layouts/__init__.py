"""How retries are laid out on a broker: one module a layout, its topology and its wire. Pure."""

from __future__ import annotations

from collections.abc import Callable

from carom.core.settlement import Layout, Plan
from carom.errors import ConfigurationError
from carom.layouts.per_queue import PerQueue
from carom.layouts.shared import Shared

__all__ = ["PerQueue", "Shared", "layout"]

_LAYOUTS: dict[str, Callable[[str, str, tuple[Plan, ...], str], Layout]] = {"shared": Shared, "per_queue": PerQueue}


def layout(name: str, namespace: str, exchange: str, plans: tuple[Plan, ...], app: str = "app") -> Layout:
    """Return the layout of that name for these queues of an app. Raises ConfigurationError or TopologyError."""
    if name not in _LAYOUTS:
        raise ConfigurationError(f"no layout is called {name!r}: choose {' or '.join(sorted(_LAYOUTS))}")
    return _LAYOUTS[name](namespace, exchange, plans, app)
