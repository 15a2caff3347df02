"""Dialling: one try to reach RabbitMQ, over every host of its address, and what a failed try means.

Rule: a try ends, with an open connection or with a sentence that says what to do, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl

from pika import ConnectionParameters, PlainCredentials, SSLOptions, exceptions

from carom.brokers.rabbitmq.address import Address
from carom.brokers.rabbitmq.channels import answer, fail
from carom.brokers.rabbitmq.frames import Connection
from carom.errors import BrokerError, BrokerUnavailable, NotPermitted

FRAME_MAX = 131_072
SPARE_MS, ABORT_MS = 1_000, 1_000
_CLIENT_CERTIFICATE = "does it want a client certificate that it trusts (certfile=, keyfile=)?"

# The library logs every lost connection with its stack, up to CRITICAL; what happened is said by events. Whoever wants
# to hear the library itself sets this level.
if logging.getLogger("pika").level == logging.NOTSET:
    logging.getLogger("pika").setLevel(logging.CRITICAL + 1)


class Untrusted(BrokerUnavailable):
    """The server or we ourselves do not convince the other side of TLS; waiting will not help."""


async def dial(address: Address, role: str) -> tuple[Connection, asyncio.Future[str]]:
    """Return an open connection, and a future that is given the reason when it is lost.

    Every host is tried once, in random order, so that many clients spread over a cluster.
    """
    errors: list[BrokerUnavailable] = []
    for host, port in random.sample(address.hosts, len(address.hosts)):
        try:
            return await _reach(address, role, host, port)
        except BrokerUnavailable as error:
            errors.append(error)
    words = "; ".join(map(str, errors))
    raise Untrusted(words) if all(isinstance(error, Untrusted) for error in errors) else BrokerUnavailable(words)


async def _reach(address: Address, role: str, host: str, port: int) -> tuple[Connection, asyncio.Future[str]]:
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[None] = loop.create_future()
    lost: asyncio.Future[str] = loop.create_future()
    opened.add_done_callback(
        lambda done: done.cancelled() or done.exception()
    )  # it may fail when nobody waits any more

    def failed(_connection: Connection, error: BaseException) -> None:
        fail(opened, _translated(error, address, host, port))
        answer(lost, "never opened")

    connection = Connection(
        _parameters(address, host, port, role),
        on_open_callback=lambda _connection: answer(opened, None),
        on_open_error_callback=failed,
        on_close_callback=lambda _connection, error: answer(lost, _reason(error)),
        custom_ioloop=loop,
    )
    try:
        # The library keeps to the timeout itself, for each address that a name stands for.
        async with asyncio.timeout((address.timeout_ms + SPARE_MS) / 1000):
            await opened
    except TimeoutError as error:
        await _abort(connection, lost)
        raise BrokerUnavailable(f"RabbitMQ at {host}:{port} did not answer within {address.timeout_ms} ms") from error
    except BaseException:
        await _abort(connection, lost)
        raise
    return connection, lost


async def _abort(connection: Connection, lost: asyncio.Future[str]) -> None:
    if connection.is_closed:
        return
    if connection.is_open:
        connection.give_up(exceptions.StreamLostError("nobody waits for it any more"))
    elif not connection.is_closing:
        connection.close()
    await asyncio.wait([lost], timeout=ABORT_MS / 1000)


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
    """Return an opening's failure as a sentence that says what to do.

    The library calls every loss during the login "probably" a refused one; only the server's own words prove it.
    """
    where, cause = f"RabbitMQ at {host}:{port}", _cause(error)
    words = _reason(error)
    if isinstance(cause, ssl.SSLError) or "SSLError" in words:
        return _tls_translated(cause, where, words)
    if isinstance(error, exceptions.ProbableAuthenticationError | exceptions.AuthenticationError) and "(403)" in words:
        return NotPermitted(
            f"{where} does not accept user {address.user!r} with this password: check the credentials "
            "(guest is only let in from the broker's own machine)"
        )
    if isinstance(error, exceptions.ProbableAccessDeniedError) and ("(403)" in words or "(530)" in words):
        return NotPermitted(
            f"{where} does not let user {address.user!r} into vhost {address.vhost!r}: create the vhost, or grant "
            f"the permission with 'rabbitmqctl set_permissions' ({words})"
        )
    if isinstance(error, exceptions.IncompatibleProtocolError):
        hint = _CLIENT_CERTIFICATE if address.tls else "is the port one for TLS (amqps://)?"
        return BrokerUnavailable(
            f"{where} closed the connection before it said anything: is it RabbitMQ, is it still starting, {hint} "
            f"({words})"
        )
    return BrokerUnavailable(f"{where} cannot be reached: {words}")


def _tls_translated(cause: BaseException, where: str, words: str) -> BrokerUnavailable:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Untrusted(
            f"{where} shows a certificate that is not trusted: {cause.verify_message}. Name the CA that signed it with "
            "cafile=, and the host as the certificate does"
        )
    if "ALERT" in words.upper():
        return Untrusted(f"{where} refuses our side of TLS: {_CLIENT_CERTIFICATE} ({words})")
    return BrokerUnavailable(
        f"{where} does not speak TLS as we do: is the port one for TLS, {_CLIENT_CERTIFICATE} ({words})"
    )


def _cause(error: BaseException) -> BaseException:
    """Return the innermost cause: the library wraps several layers around it."""
    inner = [*(getattr(error, "exceptions", None) or error.args), getattr(error, "exception", None)]
    for cause in reversed(inner):
        if isinstance(cause, BaseException):
            return _cause(cause)
    return error


def _reason(error: BaseException) -> str:
    """Return why a connection failed or was lost, in its innermost cause's words."""
    cause = _cause(error)
    if isinstance(cause, exceptions.ConnectionClosed):
        return f"{cause.reply_code} {cause.reply_text}"
    return str(cause) or type(cause).__name__
