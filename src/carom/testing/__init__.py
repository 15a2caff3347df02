"""Testing: virtual time, the harness that runs an app on it, and the contracts that adapters pass.

`clock.VirtualClock` is time that moves when told; `contracts.BrokerContract` is the test suite of a broker.

Rule: importing this package imports nothing heavy, and never pytest; the modules that need it import it themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carom.testing.clock import VirtualClock
    from carom.testing.harness import Harness

__all__ = ["Harness", "VirtualClock"]


def __getattr__(name: str) -> Any:
    """Load `Harness` and `VirtualClock` when they are first asked for."""
    if name == "Harness":
        from carom.testing.harness import Harness  # noqa: PLC0415 - see the rule above

        return Harness
    if name == "VirtualClock":
        from carom.testing.clock import VirtualClock  # noqa: PLC0415 - see the rule above

        return VirtualClock
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
