"""One connection to RabbitMQ, kept up: dialled, watched, dialled again.

Rule: a lost connection comes back by itself, for ever, with full jitter between tries, whatever a try fails with;
what cannot come back by itself (credentials, a vhost, a permission, a certificate) fails the first opening at once
with a sentence that says what to do, and is said again at every later try.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from pika.exceptions import StreamLostError

from carom.brokers.rabbitmq.address import Address
from carom.brokers.rabbitmq.channels import answer
from carom.brokers.rabbitmq.dialling import Untrusted, dial
from carom.brokers.rabbitmq.frames import Connection
from carom.errors import BrokerUnavailable, CaromError
from carom.ports import Clock, ConnectionBlocked, ConnectionDown, ConnectionUnblocked, ConnectionUp, Report

FIRST_WAIT_MS, LONGEST_WAIT_MS = 100, 30_000
CLOSE_MS, ABORT_MS = 5_000, 1_000

_log = logging.getLogger("carom.rabbitmq")


class Link:
    """A supervised connection. ``up`` restores what lived on it, ``down`` hears that everything on it is gone."""

    def __init__(
        self,
        role: str,
        address: Callable[[], Address],
        clock: Clock,
        report: Report,
        *,
        up: Callable[[Connection], Awaitable[None]],
        down: Callable[[str], None],
    ) -> None:
        """Connect to nothing yet. ``address`` is asked at every try, so that rotated credentials are read again."""
        self.connection: Connection | None = None
        self.name = role
        self.blocked = ""
        self._role = role
        self._address = address
        self._clock = clock
        self._report = report
        self._up = up
        self._down = down
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._lost: asyncio.Future[str] | None = None
        self._waiting: set[asyncio.Future[None]] = set()

    async def open(self) -> None:
        """Connect for the first time; a second time does nothing.

        Raises BrokerUnavailable, NotPermitted or ConfigurationError; from then on it is kept up.
        """
        if self._task is not None:
            return
        self._closing = False
        lost = await self._first()
        self._task = asyncio.get_running_loop().create_task(self._keep(lost), name=f"carom:{self._role}")

    async def close(self) -> None:
        """Close it for good, letting what was written be sent."""
        self._closing = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        connection, self.connection = self.connection, None
        self._wake()
        if connection is not None and self._lost is not None:
            await self._leave(connection, self._lost)

    def drop(self, reason: str, connection: Connection | None = None) -> None:
        """Cut the connection at once, as a failing network would; it is restored like any other.

        With a ``connection``, only when it is still that one.
        """
        now = self.connection
        if now is not None and not now.is_closed and connection in {None, now}:
            now.give_up(StreamLostError(reason))

    async def wait(self) -> Connection:
        """Return the connection, waiting while it is restored, for as long as the address's timeout says.

        Raises BrokerUnavailable.
        """
        deadline_ms = self._clock.now_ms() + self._timeout_ms
        while True:
            connection = self.connection
            if connection is not None and connection.is_usable:
                return connection
            left_ms = deadline_ms - self._clock.now_ms()
            if self._task is None or self._closing or left_ms <= 0:
                why = "it is not open" if self._task is None or self._closing else "it is being restored"
                raise BrokerUnavailable(f"there is no connection to RabbitMQ right now; {why}")
            await self._restored(left_ms)

    async def _restored(self, limit_ms: int) -> None:
        restored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(restored)
        cancel = self._clock.call_later(limit_ms, lambda: answer(restored, None))
        try:
            await restored
        finally:
            cancel()
            self._waiting.discard(restored)

    def _wake(self) -> None:
        for waiting in self._waiting:
            answer(waiting, None)

    async def _first(self) -> asyncio.Future[str]:
        """Try until the address's timeout is over: a broker that is being started is worth a wait."""
        self._timeout_ms = self._address().timeout_ms
        deadline_ms = self._clock.now_ms() + self._timeout_ms
        failures = 0
        while True:
            try:
                return await self._connect()
            except Untrusted:
                raise
            except BrokerUnavailable:
                failures += 1
                wait_ms = _wait_ms(failures)
                if self._closing or self._clock.now_ms() + wait_ms >= deadline_ms:
                    raise
                await self._clock.sleep(wait_ms)

    async def _keep(self, lost: asyncio.Future[str]) -> None:
        while True:
            reason = await asyncio.shield(lost)
            self.connection = None
            self._down(reason)
            lost = await self._again(reason)

    async def _again(self, reason: str) -> asyncio.Future[str]:
        failures = 0
        while True:
            failures += 1
            wait_ms = _wait_ms(failures)
            self._report(ConnectionDown(self.name, reason, wait_ms))
            await self._clock.sleep(wait_ms)
            try:
                return await self._connect()
            except CaromError as error:
                reason = str(error)
            except Exception as error:  # noqa: BLE001 - logged; nothing may end the keeping
                _log.exception("connecting to %s failed in a way that should not be", self.name)
                reason = f"{type(error).__name__}: {error}"

    async def _connect(self) -> asyncio.Future[str]:
        """Dial once and restore what lived there; return what will hear of its loss."""
        address = self._address()
        self.name = f"{address} ({self._role})"
        connection, lost = await dial(address, self._role)
        self._timeout_ms = address.timeout_ms
        self.blocked = ""
        connection.read_more()
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        try:
            await self._up(connection)
            self._check_wanted()
        except BaseException:
            await self._leave(connection, lost)
            raise
        self.connection, self._lost = connection, lost
        self._report(ConnectionUp(self.name))
        self._wake()
        return lost

    def _check_wanted(self) -> None:
        if self._closing:
            raise BrokerUnavailable("it was closed while it was opened")

    async def _leave(self, connection: Connection, lost: asyncio.Future[str]) -> None:
        """Say goodbye; a server that does not answer, or does not even read, is left without."""
        if connection.is_open and not self.blocked:
            connection.close(200, "closed by its owner")
            await asyncio.wait([lost], timeout=CLOSE_MS / 1000)
        if not connection.is_closed:
            connection.give_up(StreamLostError("given up by its owner"))
            await asyncio.wait([lost], timeout=ABORT_MS / 1000)

    def _on_blocked(self, _connection: Connection, method: object) -> None:
        frame = getattr(method, "method", None)
        self.blocked = str(getattr(frame, "reason", "")) or "short of memory or disk"
        self._report(ConnectionBlocked(self.name, self.blocked))

    def _on_unblocked(self, _connection: Connection, _method: object) -> None:
        self.blocked = ""
        self._report(ConnectionUnblocked(self.name))


def _wait_ms(failures: int) -> int:
    """Return how long to wait after so many failures: anything up to a doubling bound, so that a crowd spreads."""
    bound = min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** min(failures, 20))
    return random.randint(FIRST_WAIT_MS // 2, bound)  # noqa: S311 - jitter is no secret
