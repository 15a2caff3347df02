"""Where RabbitMQ is and who we are there: ``amqp://user:password@host:5672/vhost?heartbeat=30``.

Several hosts of a cluster are written ``amqp://user:password@a,b:5673,c/vhost``, or as a list of URLs that differ in
nothing else. ``amqps`` is TLS with the server
verified; ``cafile``, ``certfile`` and ``keyfile`` name PEM files, ``verify=no`` has to be said to be done.

Rule: what is not understood is refused with a sentence, and no sentence ever shows a password. A part is shown only
when no password can be in it.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote

from carom.core.durations import milliseconds
from carom.errors import ConfigurationError

PORT, TLS_PORT = 5672, 5671
LONGEST_HEARTBEAT_S = 65_535
_TLS_OPTIONS = frozenset({"cafile", "certfile", "keyfile", "verify"})
_OPTIONS = _TLS_OPTIONS | {"heartbeat", "timeout", "confirm_timeout", "window", "name", "management"}
_WORD = re.compile(r"[a-z_]{1,40}")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")
_ESCAPED = "a / ? # or @ in a user, a password or a vhost is written %2F %3F %23 or %40"


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
                # Without a password given here, OpenSSL would ask for the one of an encrypted key at the terminal.
                context.load_cert_chain(self.certfile, self.keyfile, password="")
        except (OSError, ssl.SSLError, ValueError) as error:
            named = ", ".join(file for file in (self.cafile, self.certfile, self.keyfile) if file is not None)
            raise ConfigurationError(
                f"the TLS files of the broker's URL ({named}) cannot be used: {error}; they have to be PEM files, and "
                "a key must not be encrypted"
            ) from error
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
    management: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """Return the address as people may see it: without the password."""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        vhost = "" if self.vhost == "/" else quote(self.vhost, safe="")
        return f"{'amqps' if self.tls else 'amqp'}://{quote(self.user)}@{hosts}/{vhost}"


def read(urls: str | Sequence[str]) -> Address:
    """Return the address of a URL, or of the URLs of a cluster's hosts. Raises ConfigurationError."""
    if isinstance(urls, str):
        return parse(urls)
    if not isinstance(urls, list | tuple) or not urls or not all(isinstance(url, str) for url in urls):
        raise ConfigurationError(
            "the broker is given by a URL, or by a list with the URL of each host of a cluster; this is a "
            f"{type(urls).__name__} with something else in it"
        )
    first, *others = map(parse, urls)
    if any(replace(other, hosts=first.hosts) != first for other in others):
        raise ConfigurationError(
            "the URLs of the broker differ in more than their hosts; those of one cluster have user, password, vhost "
            "and options in common"
        )
    return replace(first, hosts=tuple(dict.fromkeys(host for one in (first, *others) for host in one.hosts)))


def parse(url: str) -> Address:
    """Return the address of a URL. Raises ConfigurationError."""
    scheme, there, rest = url.strip().partition("://")
    if not there or scheme.lower() not in {"amqp", "amqps"}:
        raise ConfigurationError("a RabbitMQ address begins with amqp:// or amqps://, and this one does not")
    place, asked, query = rest.partition("?")
    netloc, _, path = place.partition("/")
    if "#" in rest or "@" in path or (asked and "@" not in netloc and "@" in query.partition("=")[0]):
        raise ConfigurationError(f"the broker's URL cannot be read: {_ESCAPED}")
    credentials, _, places = netloc.rpartition("@")
    user, has_password, password = credentials.partition(":")
    is_tls = scheme.lower() == "amqps"
    hosts = tuple(_host(one.strip(), TLS_PORT if is_tls else PORT) for one in places.split(",")) if places else ()
    options = _options(query)
    if "/" in path:
        raise ConfigurationError("the vhost of the broker's URL has a slash in it: write the slash as %2F")
    return Address(
        hosts=hosts or (("localhost", TLS_PORT if is_tls else PORT),),
        user=_plain(user) if credentials else "guest",
        password=_plain(password) if has_password else ("" if credentials else "guest"),
        vhost=_plain(path) or "/",
        tls=_tls(options, is_tls=is_tls),
        heartbeat_s=_heartbeat(options),
        timeout_ms=_duration(options, "timeout", 10_000),
        confirm_timeout_ms=_duration(options, "confirm_timeout", 30_000),
        window=_count(options, "window", 1_000),
        name=options.get("name", "carom"),
        management=_management(options),
    )


def _plain(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:  # which would show the text
        raise ConfigurationError("a %-escape in the broker's URL is not UTF-8") from None


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        name, _, value = pair.partition("=")
        if name not in _OPTIONS:
            shown = repr(name) if _WORD.fullmatch(name) else "that is not shown here"
            raise ConfigurationError(
                f"the broker's URL has an unknown option, {shown}; there are {', '.join(sorted(_OPTIONS))}"
            )
        if not value or name in options:
            what = "twice" if value else "without a value"
            raise ConfigurationError(f"the broker's URL has the option {name!r} {what}")
        options[name] = _plain(value)
    return options


def _host(place: str, default_port: int) -> tuple[str, int]:
    bracketed = re.fullmatch(r"\[([0-9A-Fa-f:.%\w]+)\](?::(.*))?", place)
    host, _, port = (bracketed[1], "", bracketed[2] or "") if bracketed else place.partition(":")
    if not bracketed and place.count(":") > 1:
        raise ConfigurationError(f"an IPv6 address in the broker's URL is written in brackets; and {_ESCAPED}")
    if not host or "[" in host or "]" in host:
        raise ConfigurationError("the broker's URL has a host without a name, or one that is no IPv6 address in [ ]")
    if not bracketed and place.endswith(":"):
        raise ConfigurationError(f"the broker host {host!r} has a colon and no port after it")
    if not port:
        return host, default_port
    # Its text is not shown: where an @ is missing or not escaped, what looks like a port is a password.
    if not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65_536:  # noqa: PLR2004 - the ports there are
        raise ConfigurationError(f"what follows {host!r} and a colon in the broker's URL is no port; and {_ESCAPED}")
    return host, int(port)


def _tls(options: Mapping[str, str], *, is_tls: bool) -> Tls | None:
    given = sorted(_TLS_OPTIONS & set(options))
    if not is_tls:
        if given:
            raise ConfigurationError(f"{given[0]!r} is for TLS, and the broker's URL begins with amqp://: say amqps://")
        return None
    verify = options.get("verify", "yes")
    if verify not in {"yes", "no"}:
        raise ConfigurationError(f"verify={verify[:20]!r} in the broker's URL: say yes or no")
    if "keyfile" in options and "certfile" not in options:
        raise ConfigurationError("the broker's URL has a keyfile and no certfile: a key is of no use alone")
    return Tls(options.get("cafile"), options.get("certfile"), options.get("keyfile"), verify == "yes")


def _heartbeat(options: Mapping[str, str]) -> int | None:
    if "heartbeat" not in options:
        return None
    seconds = -(-_milliseconds(options, "heartbeat") // 1000)
    if seconds > LONGEST_HEARTBEAT_S:
        raise ConfigurationError(
            f"heartbeat={options['heartbeat']} is longer than {LONGEST_HEARTBEAT_S} s, the longest"
        )
    return seconds


def _duration(options: Mapping[str, str], name: str, default_ms: int) -> int:
    if name not in options:
        return default_ms
    value = _milliseconds(options, name)
    if value == 0:
        raise ConfigurationError(f"{name}={options[name]} in the broker's URL leaves no time for anything")
    return value


def _milliseconds(options: Mapping[str, str], name: str) -> int:
    text = options[name]
    try:
        return milliseconds(float(text) if _NUMBER.fullmatch(text) else text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}={text[:40]} in the broker's URL: {error}") from error


def _management(options: Mapping[str, str]) -> str | None:
    url = options.get("management")
    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigurationError("management= in the broker's URL has to begin with http:// or https://")
    return url


def _count(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:  # noqa: PLR2004 - enough digits
        raise ConfigurationError(f"{name}={text[:20]!r} in the broker's URL is no count: say 1 or more")
    return int(text)
