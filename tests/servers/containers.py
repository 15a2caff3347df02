"""A server in a Docker container, where its programs are not installed.

Rule: the container is attached to a process of the watchdog, keeps its data while it is killed and restarted, and is
removed with its volumes when the run is over.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from uuid import uuid4

from .keeper import Keeper
from .programs import search_path
from .server import HOST, Recipe

KILL_SECONDS = 60
PATIENCE_SECONDS = 600.0
"""A first start fetches the image."""


class Container:
    """A container that is made by the first start and started again by the others."""

    def __init__(self, keeper: Keeper, docker: str, image: str) -> None:
        self.keeper = keeper
        self.docker = docker
        self.image = image
        self.name = f"carom-test-{uuid4().hex[:12]}"
        self._made = False

    @property
    def environment(self) -> dict[str, str]:
        """What the docker program needs to find its daemon."""
        return {**os.environ, "PATH": search_path()}

    def recipe(self, ports: Mapping[int, int], given: Mapping[str, str]) -> Recipe:
        """Return how to start it, with these ports of this machine leading to those inside, and this environment."""
        command = [self.docker, "start", "-a", self.name]
        if not self._made:
            self.keeper.ask("undo", [self.docker, "rm", "-f", "-v", self.name])
            command = [self.docker, "run", "--name", self.name, "--hostname", self.name]
            command += [part for here, inside in ports.items() for part in ("-p", f"{HOST}:{here}:{inside}")]
            command += [part for key, value in given.items() for part in ("-e", f"{key}={value}")]
            command += [self.image]
            self._made = True
        return Recipe(command, self.environment)

    def inside(self, *command: str) -> list[str]:
        """Return a command that runs inside of it."""
        return [self.docker, "exec", self.name, *command]

    def kill(self) -> None:
        """Kill all that is in it."""
        command = [self.docker, "kill", self.name]
        subprocess.run(command, check=False, capture_output=True, env=self.environment, timeout=KILL_SECONDS)

    def remove(self) -> None:
        """Remove it, so that the next start makes it anew."""
        command = [self.docker, "rm", "-f", "-v", self.name]
        subprocess.run(command, check=False, capture_output=True, env=self.environment, timeout=KILL_SECONDS)
        self._made = False
