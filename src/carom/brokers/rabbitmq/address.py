"""Where RabbitMQ is and who we are there: ``amqp://user:password@host:5672/vhost?heartbeat=30``.

Several hosts of a cluster are written ``amqp://user:password@a,b:5673,c/vhost``. ``amqps`` is TLS with the server
verified; ``cafile``, ``certfile`` and ``keyfile`` name PEM files, ``verify=no`` has to be said to be done.

Rule: what is not understood is refused with a sentence, and no sentence ever shows a password.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from carom.core.durations import milliseconds
from carom.errors import ConfigurationError

PORT, TLS_PORT = 5672, 5671
_OPTIONS = frozenset(
    {
        "heartbeat",
        "timeout",
        "confirm_timeout",
        "window",
        "cafile",
        "certfile",
        "keyfile",
        "verify",
        "name",
        "management",
    }
)


@dataclass(frozen=True, slots=True)
class Tls:
    """How to speak TLS; verification is on unless somebody said otherwise."""

    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Return the TLS context; raises ConfigurationError when a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.cafile)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.certfile is not None:
                context.load_cert_chain(self.certfile, self.keyfile)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"the TLS files of the broker's URL cannot be used: {error}") from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL."""

    hosts: tuple[tuple[str, int], ...]
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    tls: Tls | None = None
    heartbeat_s: int | None = None
    timeout_ms: int = 10_000
    confirm_timeout_ms: int = 30_000
    window: int = 1_000
    name: str = "carom"
    management: str | None = None

    def __str__(self) -> str:
        """Return the address as people may see it: without the password."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{'amqps' if self.tls else 'amqp'}://{self.user}@{hosts}/{'' if self.vhost == '/' else self.vhost}"


def parse(url: str) -> Address:
    """Return the address of a URL. Raises ConfigurationError."""
    parts = urlsplit(url)
    if parts.scheme not in {"amqp", "amqps"}:
        raise ConfigurationError(f"a RabbitMQ address begins with amqp:// or amqps://, not {parts.scheme!r}")
    credentials, _, places = parts.netloc.rpartition("@")
    user, has_password, password = credentials.partition(":")
    options = _options(parts.query)
    tls = _tls(options) if parts.scheme == "amqps" else None
    path = parts.path.removeprefix("/")
    if "/" in path:
        raise ConfigurationError(f"the vhost {path!r} has a slash in it: write the slash as %2F")
    return Address(
        hosts=tuple(_host(place, TLS_PORT if tls else PORT) for place in places.split(",")),
        user=unquote(user) if credentials else "guest",
        password=unquote(password) if has_password else ("" if credentials else "guest"),
        vhost=unquote(path) or "/",
        tls=tls,
        heartbeat_s=_seconds(options, "heartbeat"),
        timeout_ms=_duration(options, "timeout", 10_000),
        confirm_timeout_ms=_duration(options, "confirm_timeout", 30_000),
        window=_count(options, "window", 1_000),
        name=options.get("name", "carom"),
        management=options.get("management"),
    )


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise ConfigurationError(
            f"the broker's URL has the unknown option {unknown[0]!r}; there are {', '.join(sorted(_OPTIONS))}"
        )
    return options


def _host(place: str, default_port: int) -> tuple[str, int]:
    host, separator, port = place.rpartition(":")
    if not separator or place.endswith("]"):
        host, port = place, ""
    host = host.strip("[]") or "localhost"
    if not port:
        return host, default_port
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:  # noqa: PLR2004 - the ports there are
        raise ConfigurationError(f"{port[:20]!r} is no port for the broker host {host!r}")
    return host, int(port)


def _tls(options: Mapping[str, str]) -> Tls:
    verify = options.get("verify", "yes")
    if verify not in {"yes", "no"}:
        raise ConfigurationError(f"verify={verify!r} in the broker's URL: say yes or no")
    return Tls(options.get("cafile"), options.get("certfile"), options.get("keyfile"), verify == "yes")


def _seconds(options: Mapping[str, str], name: str) -> int | None:
    return None if name not in options else _duration(options, name, 0) // 1000


def _duration(options: Mapping[str, str], name: str, default_ms: int) -> int:
    if name not in options:
        return default_ms
    text = options[name]
    return milliseconds(float(text) if text.replace(".", "", 1).isdigit() else text)


def _count(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigurationError(f"{name}={text!r} in the broker's URL is no count: say 1 or more")
    return int(text)
