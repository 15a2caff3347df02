"""Failpoints: named places where a process ends itself, for whoever proves that nothing is lost when it does.

    CAROM_FAILPOINTS="relay.claimed=kill@3;relay.marked=stop"

``kill`` is SIGKILL and ``stop`` SIGSTOP, both to the process itself, ``exit`` leaves at once with 70; ``@n`` is the nth
time that the place is reached, the first without it.

Rule: leans on nothing, and costs nothing where the variable is unset: a place is written as
``if failpoints.ARMED: failpoints.reach("relay.claimed")``.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "CAROM_FAILPOINTS"
EXIT_CODE = 70
ACTIONS = ("kill", "stop", "exit")


class Failpoints:
    """What is to happen where; each place once."""

    def __init__(self, text: str) -> None:
        """Read ``name=action@n;…``. Raises ValueError, because a misspelt failpoint would prove nothing."""
        self._places: dict[str, tuple[str, int]] = {}
        for item in filter(None, (part.strip() for part in text.split(";"))):
            name, _, said = item.partition("=")
            action, _, number = said.partition("@")
            if not name or action not in ACTIONS or not (number or "1").isdecimal() or number == "0":
                raise ValueError(f"{VARIABLE} has {item!r}: say name=action or name=action@n, {', '.join(ACTIONS)}")
            self._places[name] = (action, int(number or 1))

    def __bool__(self) -> bool:
        """Tell whether anything is to happen anywhere."""
        return bool(self._places)

    def reach(self, name: str) -> None:
        """Do what is to be done at a place, when it is its turn."""
        action, left = self._places.get(name, ("", 0))
        if not left:
            return
        self._places[name] = (action, left - 1)
        if left == 1:
            _DO[action]()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _exit() -> None:
    os._exit(EXIT_CODE)


_DO = {"kill": _kill, "stop": _stop, "exit": _exit}
_HERE = Failpoints(os.environ.get(VARIABLE, ""))

ARMED = bool(_HERE)
reach = _HERE.reach
