"""A private PostgreSQL, made anew for the run.

Rule: what is committed is on the disk as in production (fsync stays on); only the making of the cluster is hurried.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import signal
import struct
from pathlib import Path

from .containers import PATIENCE_SECONDS, Container
from .keeper import Keeper
from .programs import POSTGRES, search_path, source
from .server import HOST, Recipe, Server, converse, free_port

USER, DATABASE = "carom", "postgres"
SOCKET_PATH_BYTES = 100
SETTINGS = {
    "listen_addresses": HOST,
    "fsync": "on",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "max_wal_size": "256MB",
    # In the data directory, so that no kill leaves shared memory behind in the system.
    "dynamic_shared_memory_type": "mmap",
}


class Postgres(Server):
    """A PostgreSQL from the system's programs."""

    name = "postgres"

    def __init__(self, keeper: Keeper, programs: Path) -> None:
        super().__init__(keeper)
        self.programs = programs
        self.user = _unprivileged_user()

    @property
    def url(self) -> str:
        """Where it is; everybody is let in."""
        return f"postgresql://{USER}@{HOST}:{self.port}/{DATABASE}"

    def prepare(self) -> None:
        self.port = free_port()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if self.user is not None:
            shutil.chown(self.folder, self.user)

    def recipe(self) -> Recipe:
        data = self.folder / "data"
        # A path that is too long for a socket is refused: TCP alone then.
        sockets = self.folder if len(os.fsencode(self.folder)) < SOCKET_PATH_BYTES else ""
        settings = {**SETTINGS, "port": self.port, "unix_socket_directories": sockets}
        initdb = [self.programs / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C"]
        server = [self.programs / "postgres", "-D", data, *(f"-c{key}={value}" for key, value in settings.items())]
        script = (
            f"[ -e {shlex.quote(str(data / 'PG_VERSION'))} ] || {_quoted([*initdb, '--no-sync'])}"
            f" && exec {_quoted(server)}"
        )
        environment = {"PATH": search_path(), "HOME": str(self.folder), "LC_ALL": "C"}
        # SIGQUIT is its "immediate shutdown": it ends its processes and frees its shared memory, and nothing else.
        return Recipe(["/bin/sh", "-c", script], environment, self.user, signal.SIGQUIT)

    def answers(self) -> bool:
        """Knock; a server that is still recovering answers with an error."""
        parameters = b"user\0" + USER.encode() + b"\0database\0" + DATABASE.encode() + b"\0\0"
        version = 3 << 16
        request = struct.pack("!ii", 8 + len(parameters), version) + parameters
        return converse(self.port, request, 1) == b"R"


class DockerPostgres(Postgres):
    """A PostgreSQL in a container."""

    patience_s = PATIENCE_SECONDS

    def __init__(self, keeper: Keeper, docker: str) -> None:
        super().__init__(keeper, Path(docker).parent)
        self.container = Container(keeper, docker, POSTGRES.image)

    def prepare(self) -> None:
        self.container.remove()
        self.port = free_port()

    def recipe(self) -> Recipe:
        given = {"POSTGRES_HOST_AUTH_METHOD": "trust", "POSTGRES_USER": USER, "POSTGRES_DB": DATABASE}
        return self.container.recipe({self.port: 5432}, given)

    def kill(self) -> None:
        self.container.kill()
        super().kill()


def postgres(keeper: Keeper) -> Postgres:
    """Return a PostgreSQL that can be started here. Raises Missing."""
    found = source(POSTGRES)
    return Postgres(keeper, found) if isinstance(found, Path) else DockerPostgres(keeper, found)


def _unprivileged_user() -> str | None:
    """Return who runs the server: PostgreSQL refuses to be root."""
    if os.geteuid() != 0:
        return None
    users = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "_postgres", "nobody") if name in users), None)


def _quoted(command: list[object]) -> str:
    return shlex.join(str(part) for part in command)
