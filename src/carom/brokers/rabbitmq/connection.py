"""One connection to RabbitMQ, kept up: dialled, watched, dialled again.

Rule: a lost connection comes back by itself, for ever, with full jitter between tries; what cannot come back by
itself (credentials, a vhost, a permission) fails the first opening at once with a sentence that says what to do,
and is said again at every later try.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from pika import ConnectionParameters, PlainCredentials, SSLOptions, exceptions

from carom.brokers.rabbitmq.address import Address
from carom.brokers.rabbitmq.channels import answer, fail
from carom.brokers.rabbitmq.frames import Connection
from carom.errors import BrokerError, BrokerUnavailable, NotPermitted
from carom.ports import Clock, ConnectionBlocked, ConnectionDown, ConnectionUnblocked, ConnectionUp, Report

FIRST_WAIT_MS, LONGEST_WAIT_MS = 100, 30_000
CLOSE_MS = 5_000
FRAME_MAX = 131_072
_ACCESS_REFUSED, _NOT_ALLOWED = 403, 530


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

    @property
    def name(self) -> str:
        """Return what this connection is called in events and in the broker's own lists."""
        return f"{self._address()} ({self._role})"

    async def open(self) -> None:
        """Connect for the first time. Raises BrokerUnavailable or NotPermitted; from then on it is kept up."""
        self._closing = False
        connection = await self._first()
        await self._restore(connection)
        self._task = asyncio.get_running_loop().create_task(self._keep(), name=f"carom:{self._role}")

    async def close(self) -> None:
        """Close it for good, letting what was written be sent."""
        self._closing = True
        task, self._task = self._task, None
        connection, self.connection = self.connection, None
        if connection is not None and not connection.is_closed:
            lost = self._lost
            if not connection.is_closing:
                connection.close(200, "closed by its owner")
            if lost is not None:
                await asyncio.wait([lost], timeout=CLOSE_MS / 1000)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def drop(self, reason: str) -> None:
        """Cut the connection at once, as a failing network would; it is restored like any other."""
        if self.connection is not None and not self.connection.is_closed:
            self.connection._terminate_stream(exceptions.StreamLostError(reason))  # noqa: SLF001 - the library has no public way to give a connection up

    async def _first(self) -> Connection:
        """Try until the address's timeout is over: a broker that is being started is worth a wait."""
        deadline_ms = self._clock.now_ms() + self._address().timeout_ms
        failures = 0
        while True:
            try:
                return await self._dial()
            except BrokerUnavailable:
                failures += 1
                wait_ms = _wait_ms(failures)
                if self._clock.now_ms() + wait_ms >= deadline_ms:
                    raise
                await self._clock.sleep(wait_ms)

    async def _keep(self) -> None:
        while not self._closing:
            lost = self._lost
            reason = "closed" if lost is None else await asyncio.shield(lost)
            self.connection = None
            if not self._closing:
                self._down(reason)
                await self._again(reason)

    async def _again(self, reason: str) -> None:
        failures = 0
        while not self._closing:
            failures += 1
            wait_ms = _wait_ms(failures)
            self._report(ConnectionDown(self.name, reason, wait_ms))
            await self._clock.sleep(wait_ms)
            try:
                await self._restore(await self._dial())
            except BrokerError as error:
                reason = str(error)
            else:
                return

    async def _restore(self, connection: Connection) -> None:
        self.connection = connection
        self.blocked = ""
        connection.read_more()
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        try:
            await self._up(connection)
        except BaseException:
            self.connection = None
            if connection.is_open:
                connection.close()
            raise
        self._report(ConnectionUp(self.name))

    async def _dial(self) -> Connection:
        """Try every host once, in random order, so that many clients spread over a cluster."""
        address = self._address()
        errors: list[str] = []
        for host, port in random.sample(address.hosts, len(address.hosts)):
            try:
                return await self._connect(address, host, port)
            except BrokerUnavailable as error:
                errors.append(str(error))
        raise BrokerUnavailable("; ".join(errors))

    async def _connect(self, address: Address, host: str, port: int) -> Connection:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Connection] = loop.create_future()
        lost: asyncio.Future[str] = loop.create_future()

        def failed(_connection: Connection, error: BaseException) -> None:
            fail(opened, _translated(error, address, host, port))

        def closed(_connection: Connection, error: BaseException) -> None:
            answer(lost, _reason(error))

        connection = Connection(
            _parameters(address, host, port, self._role),
            on_open_callback=lambda one: answer(opened, one),
            on_open_error_callback=failed,
            on_close_callback=closed,
            custom_ioloop=loop,
        )
        try:
            await asyncio.wait_for(opened, address.timeout_ms / 1000)
        except TimeoutError as error:
            raise BrokerUnavailable(
                f"RabbitMQ at {host}:{port} did not answer within {address.timeout_ms} ms"
            ) from error
        finally:
            if not connection.is_open and not connection.is_closed:
                connection.close()
        self._lost = lost
        return connection

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


def _parameters(address: Address, host: str, port: int, role: str) -> ConnectionParameters:
    return ConnectionParameters(
        host=host,
        port=port,
        virtual_host=address.vhost,
        credentials=PlainCredentials(address.user, address.password, erase_on_connect=True),
        heartbeat=address.heartbeat_s,
        frame_max=FRAME_MAX,
        socket_timeout=address.timeout_ms / 1000,
        stack_timeout=address.timeout_ms / 1000,
        ssl_options=None if address.tls is None else SSLOptions(address.tls.context(), host),
        client_properties={"connection_name": f"{address.name} {role}", "product": "Carom"},
    )


def _translated(error: BaseException, address: Address, host: str, port: int) -> BrokerError:
    """Return an opening's failure as a sentence that says what to do."""
    where = f"RabbitMQ at {host}:{port}"
    if isinstance(error, exceptions.ProbableAuthenticationError | exceptions.AuthenticationError):
        return NotPermitted(
            f"{where} does not accept user {address.user!r} with this password: check the credentials "
            "(guest is only let in from the broker's own machine)"
        )
    if isinstance(error, exceptions.ProbableAccessDeniedError) or _code(error) in {_ACCESS_REFUSED, _NOT_ALLOWED}:
        return NotPermitted(
            f"{where} does not let user {address.user!r} into vhost {address.vhost!r}: create the vhost, or grant "
            f"the permission with 'rabbitmqctl set_permissions' ({_reason(error)})"
        )
    return BrokerUnavailable(f"{where} cannot be reached: {_reason(error)}")


def _code(error: BaseException) -> int:
    return int(getattr(error, "reply_code", 0) or 0)


def _reason(error: BaseException) -> str:
    """Return why a connection failed, the innermost cause first: the library wraps several layers around it."""
    if isinstance(error, exceptions.ConnectionClosed):
        return f"{error.reply_code} {error.reply_text}"
    inner = getattr(error, "exceptions", None) or error.args
    for cause in reversed(tuple(inner)):
        if isinstance(cause, BaseException):
            return _reason(cause)
    inner_error = getattr(error, "exception", None)
    if isinstance(inner_error, BaseException):
        return _reason(inner_error)
    return str(error) or type(error).__name__
