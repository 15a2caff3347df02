"""The pytest plugin: servers for the tests that ask for them, started while the others run.

    rabbitmq_url              where a RabbitMQ is: a vhost of this run
    empty_rabbitmq_url        the same, a vhost of this test alone
    rabbitmq_management_url   its management API, or None where it has none
    rabbitmq                  the node itself, to be killed, stopped, alarmed; healed when the test is over
    postgres_url, postgres    the same for PostgreSQL

``CAROM_TEST_BROKER`` and ``CAROM_TEST_DATABASE`` name servers that exist. The tests that ask for the node itself,
which is somebody else's then, are not run, and the summary says which.

Rule: tests that ask for no server come first, and the servers start meanwhile. A server that cannot be had fails the
tests that ask for it; it skips none.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from .existing import ExistingRabbit, with_vhost
from .keeper import Keeper
from .postgres import Postgres
from .postgres import postgres as private_postgres
from .programs import POSTGRES, RABBITMQ, Missing
from .rabbitmq import Rabbit
from .rabbitmq import rabbitmq as private_rabbitmq
from .server import Server

RABBIT_FIXTURES = frozenset({"rabbitmq_url", "empty_rabbitmq_url", "rabbitmq_management_url", "rabbitmq"})
POSTGRES_FIXTURES = frozenset({"postgres_url", "postgres"})
_PR_SET_PDEATHSIG = 1


class House:
    """The servers of one run: each is started once, when it is first asked for, and all end with the run."""

    def __init__(self) -> None:
        self.given_broker = os.environ.get(RABBITMQ.variable, "")
        self.given_database = os.environ.get(POSTGRES.variable, "")
        self.left_out: list[str] = []
        self.waited_s = 0.0
        self._keeper: Keeper | None = None
        self._rabbitmq: Rabbit | None = None
        self._postgres: Postgres | None = None
        self._existing: ExistingRabbit | None = None

    @property
    def keeper(self) -> Keeper:
        """Who keeps the servers; started when first asked for."""
        if self._keeper is None:
            self._keeper = Keeper()
        return self._keeper

    @property
    def has_started(self) -> bool:
        """Whether anything was started."""
        return self._keeper is not None

    @property
    def servers(self) -> list[Server]:
        """What was started here."""
        return [server for server in (self._rabbitmq, self._postgres) if server is not None]

    def rabbitmq(self) -> Rabbit:
        """Return a RabbitMQ of our own, started, perhaps not yet ready."""
        if self._rabbitmq is None:
            self._rabbitmq = private_rabbitmq(self.keeper)
            self._rabbitmq.start()
        return self._rabbitmq

    def postgres(self) -> Postgres:
        """Return a PostgreSQL of our own, started, perhaps not yet ready."""
        if self._postgres is None:
            self._postgres = private_postgres(self.keeper)
            self._postgres.start()
        return self._postgres

    def existing(self) -> ExistingRabbit:
        """Return the RabbitMQ that somebody named."""
        if self._existing is None:
            self._existing = ExistingRabbit(self.given_broker)
        return self._existing

    def await_ready(self, server: Server) -> None:
        """Wait for a server, and remember for how long."""
        before = time.monotonic()
        server.await_ready()
        self.waited_s += time.monotonic() - before

    def close(self) -> None:
        """End what was started."""
        if self._existing is not None:
            self._existing.close()
        if self._keeper is not None:
            self._keeper.close()


HOUSE = pytest.StashKey[House]()


def pytest_configure(config: pytest.Config) -> None:
    """Prepare to have servers, and end when `make test` is ended: it names its shell, which may not be able to tell."""
    config.stash[HOUSE] = House()
    if sys.platform == "linux" and os.environ.get("CAROM_TEST_SHELL") == str(os.getppid()):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers; when this does not come to be called, they end all the same."""
    config.stash[HOUSE].close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests that ask for servers last, and leave out those that would harm a server of somebody else's."""
    house = config.stash[HOUSE]
    not_ours = {"rabbitmq"} if house.given_broker else set()
    not_ours |= {"postgres"} if house.given_database else set()
    left_out = [item for item in items if not_ours & asked_by(item)]
    if left_out:
        house.left_out = [item.nodeid for item in left_out]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: bool(asked_by(item) & (RABBIT_FIXTURES | POSTGRES_FIXTURES)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the servers that are asked for, and let the tests that do without begin."""
    if session.config.option.collectonly:
        return
    house = session.config.stash[HOUSE]
    asked: set[str] = set().union(*(asked_by(item) for item in session.items))
    try:
        if asked & RABBIT_FIXTURES and not house.given_broker:
            house.rabbitmq()
        if asked & POSTGRES_FIXTURES and not house.given_database:
            house.postgres()
    except Missing:
        return  # said by every test that asks for it


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which servers there were, how long they were waited for, and what was not run against somebody else's."""
    house = config.stash[HOUSE]
    if house.servers:
        names = " and ".join(server.name for server in house.servers)
        terminalreporter.write_line(f"{names} of our own: the tests waited {house.waited_s:.1f} s for them to start")
    if house.left_out:
        terminalreporter.section("not run: they stop or alarm the server, and this one is somebody else's")
        for name in house.left_out:
            terminalreporter.write_line(name)


def asked_by(item: pytest.Item) -> frozenset[str]:
    """Return the fixtures a test asks for, directly or not."""
    return frozenset(getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def _house(pytestconfig: pytest.Config) -> House:
    return pytestconfig.stash[HOUSE]


@pytest.fixture(scope="session")
def _rabbitmq_node(_house: House) -> Rabbit:
    node = _house.rabbitmq()
    _house.await_ready(node)
    return node


@pytest.fixture(scope="session")
def rabbitmq_url(_house: House, request: pytest.FixtureRequest) -> str:
    """Where a RabbitMQ is: a vhost of this run."""
    if _house.given_broker:
        return _house.existing().url
    node: Rabbit = request.getfixturevalue("_rabbitmq_node")
    return node.url


@pytest.fixture(scope="session")
def rabbitmq_management_url(_house: House, rabbitmq_url: str) -> str | None:
    """Where the management API of that RabbitMQ is, or None."""
    if not _house.given_broker:
        return _house.rabbitmq().management_url
    management = _house.existing().management
    return None if management is None else management.url


@pytest.fixture
def empty_rabbitmq_url(_house: House, rabbitmq_url: str) -> Iterator[str]:
    """Where a RabbitMQ is: a vhost of this test alone, deleted when it is over."""
    vhost = f"carom-test-{uuid4().hex[:12]}"
    if not _house.given_broker:
        management = _house.rabbitmq().management
        management.make_vhost(vhost)
        yield with_vhost(rabbitmq_url, vhost)
        management.delete_vhost(vhost)
        return
    existing = _house.existing()
    if existing.make_vhost(vhost) is None:
        pytest.fail(
            f"no vhost can be made on the RabbitMQ of {RABBITMQ.variable}: it needs the management API on port 15672 "
            "with an administrator's credentials in the URL, or a rabbitmqctl on this machine that may reach it"
        )
    yield existing.with_vhost(vhost)
    existing.delete_vhost(vhost)


@pytest.fixture
def rabbitmq(_rabbitmq_node: Rabbit) -> Iterator[Rabbit]:
    """Give the node itself, to do to it what happens to nodes. What the test did to it is undone afterwards."""
    yield _rabbitmq_node
    _rabbitmq_node.heal()


@pytest.fixture(scope="session")
def _postgres_server(_house: House) -> Postgres:
    server = _house.postgres()
    _house.await_ready(server)
    return server


@pytest.fixture(scope="session")
def postgres_url(_house: House, request: pytest.FixtureRequest) -> str:
    """Where a PostgreSQL is: a database of this run, unless somebody named one."""
    if _house.given_database:
        return _house.given_database
    server: Postgres = request.getfixturevalue("_postgres_server")
    return server.url


@pytest.fixture
def postgres(_postgres_server: Postgres) -> Iterator[Postgres]:
    """Give the server itself; if the test killed it, it is started again afterwards."""
    yield _postgres_server
    _postgres_server.heal()
