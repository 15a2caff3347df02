"""The keeper: the end of the watchdog's pipe that is held by the process that runs the tests.

Rule: closing it, or dying with it in hand, ends every server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from . import watchdog

CLOSE_SECONDS = 60.0


class Keeper:
    """Has a watchdog of its own. May be used from any thread."""

    def __init__(self) -> None:
        """Start the watchdog and wait until it is there."""
        self._talking = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.scratch = Path(self._hear())

    def ask(self, verb: str, *given: Any) -> Any:
        """Have the watchdog do something and return its answer; raises OSError with what went wrong."""
        with self._talking:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"verb": verb, "given": given}).encode() + b"\n")
            self._process.stdin.flush()
            return self._hear()

    def close(self) -> None:
        """End everything and return when it is gone."""
        with self._talking:
            self._process.communicate(timeout=CLOSE_SECONDS)

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise OSError(f"the watchdog of the servers is gone, it exited with {self._process.wait()}")
        said = json.loads(line)
        if "error" in said:
            raise OSError(said["error"])
        return said["answer"]
