"""Where the programs of the servers are, and what to do where they are not.

Rule: looking changes nothing; only `provide`, which `make test` runs first, installs something, and only as root on
Debian or Ubuntu, without any of their services being started. What cannot be provided is said with what to install.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

USUAL = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/opt/homebrew/bin")
POLICY = Path("/usr/sbin/policy-rc.d")
DOCKER_SECONDS = 20


class Missing(Exception):
    """A server cannot be had on this machine; the message says what to install."""


@dataclass(frozen=True)
class Program:
    """A server: how people call it, the folders its programs are kept in, what makes a folder the right one."""

    title: str
    folders: tuple[str, ...]
    needs: tuple[str, ...]
    package: str
    formula: str
    image: str
    variable: str


# RabbitMQ's own scripts have rabbitmq-defaults beside them; the wrappers of Debian and Red Hat, which are the ones in
# the PATH, do not, and refuse to work for anybody but root and the user rabbitmq.
RABBITMQ = Program(
    title="RabbitMQ",
    folders=(
        "/usr/lib/rabbitmq/lib/*/sbin",
        "/usr/lib/rabbitmq/bin",
        "/opt/rabbitmq/sbin",
        "/opt/homebrew/opt/rabbitmq/sbin",
        "/usr/local/opt/rabbitmq/sbin",
    ),
    needs=("rabbitmq-server", "rabbitmqctl", "rabbitmq-defaults"),
    package="rabbitmq-server",
    formula="rabbitmq",
    image="rabbitmq:3-management",
    variable="CAROM_TEST_BROKER",
)
POSTGRES = Program(
    title="PostgreSQL",
    folders=(
        "/usr/lib/postgresql/*/bin",
        "/usr/pgsql-*/bin",
        "/opt/homebrew/opt/postgresql@*/bin",
        "/usr/local/opt/postgresql@*/bin",
    ),
    needs=("initdb", "postgres"),
    package="postgresql",
    formula="postgresql@17",
    image="postgres:15",
    variable="CAROM_TEST_DATABASE",
)
PROGRAMS = (RABBITMQ, POSTGRES)


def search_path() -> str:
    """Return where programs are looked for: the PATH, and the usual places, as it may be empty."""
    given = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    return os.pathsep.join([*given, *(folder for folder in USUAL if folder not in given)])


def find(program: Program) -> Path | None:
    """Return the folder with a server's programs: the one in the PATH, or the newest in the usual places."""
    on_path = shutil.which(program.needs[0], path=search_path())
    candidates = [Path(on_path).resolve().parent] if on_path else []
    for pattern in program.folders:
        candidates += sorted(Path("/").glob(pattern.removeprefix("/")), key=_version, reverse=True)
    return next((folder for folder in candidates if _is_complete(folder, program)), None)


def find_docker() -> str | None:
    """Return the docker program if it can start containers."""
    docker = shutil.which("docker", path=search_path())
    if docker is None:
        return None
    try:
        asked = subprocess.run([docker, "info"], check=False, capture_output=True, timeout=DOCKER_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return docker if asked.returncode == 0 else None


def source(program: Program, docker: Callable[[], str | None] = find_docker) -> Path | str:
    """Return what a server can be started from: the folder of its programs, or else docker. Raises Missing."""
    found = find(program) or docker()
    if found is None:
        raise Missing(
            f"the tests need {program.title} and cannot find it. Debian, Ubuntu: sudo apt-get install "
            f"{program.package} (`make test` does it when it is root); macOS: brew install {program.formula}; or start "
            f"Docker; or name a server that runs: {program.variable}=URL"
        )
    return found


def provide(say: Callable[[str], None]) -> None:
    """See to it that every server can be had that is not named by its variable. Raises Missing."""
    wanted = [program for program in PROGRAMS if not os.environ.get(program.variable)]
    absent = [program for program in wanted if find(program) is None]
    apt = shutil.which("apt-get", path=search_path())
    if absent and apt and os.geteuid() == 0 and Path("/etc/debian_version").exists():
        packages = [program.package for program in absent]
        say(f"installing {' and '.join(packages)} with apt-get, once")
        install(apt, packages, POLICY)
    for program in wanted:
        source(program)


def install(apt: str, packages: list[str], policy: Path) -> None:
    """Install packages of Debian or Ubuntu, starting none of their services. Raises Missing with what apt-get said."""
    environment = {**os.environ, "PATH": search_path(), "DEBIAN_FRONTEND": "noninteractive"}
    with starting_no_service(policy):
        # What is known of the packages may be too old to fetch them, or there may be nothing known at all.
        said = ""
        for command in ([apt, "update"], [apt, "install", "-y", "--no-install-recommends", *packages]):
            done = subprocess.run(
                command,
                check=False,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            said += done.stdout
    if done.returncode != 0:
        raise Missing(f"apt-get could not install {' '.join(packages)}; it said:\n{said[-2000:]}")


@contextlib.contextmanager
def starting_no_service(policy: Path) -> Iterator[None]:
    """Forbid packages to start their services, the way Debian provides for it, unless somebody has decided that."""
    try:
        with policy.open("x", encoding="utf-8") as file:
            file.write("#!/bin/sh\nexit 101\n")
    except FileExistsError:
        yield
        return
    try:
        policy.chmod(0o755)
        yield
    finally:
        policy.unlink()


def main() -> None:
    """Provide the servers of `make test`, or say what is missing and fail."""
    try:
        provide(lambda what: print(f"test: {what}", file=sys.stderr, flush=True))  # noqa: T201 - people wait for this
    except Missing as missing:
        sys.exit(f"test: {missing}")


def _version(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(folder))]


def _is_complete(folder: Path, program: Program) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in program.needs)
