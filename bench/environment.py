"""Where things come from: a broker to measure on, and the Python that has the peers.

Rule: what is missing is made, privately, or it is said what to do; nothing is left out in silence.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pika
import pika.exceptions

ROOT = Path(__file__).parent.parent
LOCAL = "amqp://guest:guest@localhost/"
VARIABLE = "CAROM_TEST_BROKER"
DATABASE_VARIABLE = "CAROM_TEST_DATABASE"


class NoPeers(Exception):
    """The environment with the peers could not be made."""


@contextmanager
def broker(given: str | None) -> Iterator[str]:
    """Yield the URL of a broker: the one given, the one of ``CAROM_TEST_BROKER``, a private one, or the local one."""
    url = given or os.environ.get(VARIABLE)
    if url:
        yield url
        return
    if not (ROOT / "tests" / "servers" / "keeper.py").exists():
        yield LOCAL
        return
    keeper = import_module("tests.servers.keeper").Keeper()
    try:
        node = import_module("tests.servers.rabbitmq").rabbitmq(keeper)
        node.start()
        node.await_ready()
        yield str(node.url)
    finally:
        keeper.close()


@contextmanager
def database(given: str | None) -> Iterator[str]:
    """Yield the URL of a PostgreSQL: the one given, the one of ``CAROM_TEST_DATABASE``, or a private one."""
    url = given or os.environ.get(DATABASE_VARIABLE)
    if url:
        yield _for_asyncpg(url)
        return
    keeper = import_module("tests.servers.keeper").Keeper()
    try:
        server = import_module("tests.servers.postgres").postgres(keeper)
        server.start()
        server.await_ready()
        yield _for_asyncpg(str(server.url))
    finally:
        keeper.close()


def _for_asyncpg(url: str) -> str:
    return "postgresql+asyncpg://" + url.partition("://")[2]


def answers(url: str) -> bool:
    """Tell whether a broker lets us in."""
    try:
        server(url)
    except (pika.exceptions.AMQPError, OSError):
        return False
    return True


def server(url: str) -> str:
    """Return what the broker is and its version. Raises an AMQP error when there is none."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        said = connection._impl.server_properties or {}  # noqa: SLF001 - the library has no public way to ask
    return f"{said.get('product', 'AMQP')} {said.get('version', '')}".strip()


def python_of_peers() -> str:
    """Return the Python that has the peers; makes its environment when it is not there. Raises NoPeers."""
    made = subprocess.run(["sh", "scripts/peers.sh", sys.executable], cwd=ROOT, check=False, stdout=sys.stderr)  # noqa: S607 - the system's shell
    if made.returncode:
        raise NoPeers("the environment of the peers could not be made; see above. --peers '' measures without them")
    return str(ROOT / ".venv-bench" / "bin" / "python")
