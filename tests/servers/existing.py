"""A RabbitMQ that somebody else runs, named by ``CAROM_TEST_BROKER``, and a vhost of this run on it.

Rule: nothing of anybody else's is touched. The vhost is made through the management API (on port 15672, or where the
option ``management`` of the URL says) or rabbitmqctl, and deleted at the end; where neither is to be had, the vhost of
the URL is used, and the tests delete what they declared.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit
from uuid import uuid4

import pika
from pika import exceptions

from .management import Management, Refused
from .programs import search_path

Act: TypeAlias = Callable[[str], object]
AMQP_PORT, MANAGEMENT_PORT = 5672, 15_672
CTL_SECONDS = 60
HERE = frozenset({"localhost", "127.0.0.1", "::1"})


class ExistingRabbit:
    """A RabbitMQ at a URL. `url` is where the tests are to go, which is another vhost if one could be made."""

    def __init__(self, given: str) -> None:
        """Make a vhost, if there is a way."""
        parts = urlsplit(given)
        options = dict(parse_qsl(parts.query))
        self._host, self._port = parts.hostname or "localhost", parts.port or AMQP_PORT
        self._user = unquote(parts.username or "guest")
        address = options.pop("management", f"http://{self._host}:{MANAGEMENT_PORT}")
        management = Management(address, self._user, unquote(parts.password or "guest"))
        self.given = urlunsplit(parts._replace(query=urlencode(options)))
        self.management: Management | None = management if management.is_there() else None
        self._delete: Act | None = None
        self.url = self.given
        self.vhost = self.make_vhost(f"carom-run-{uuid4().hex[:12]}")
        if self.vhost is not None:
            self.url = self.with_vhost(self.vhost)

    def with_vhost(self, vhost: str) -> str:
        """Return the given URL with another vhost."""
        return with_vhost(self.given, vhost)

    def make_vhost(self, vhost: str) -> str | None:
        """Make a vhost and return its name, or nothing when there is no way to make one."""
        for make, delete in self._ways():
            try:
                make(vhost)
            except (OSError, Refused, subprocess.SubprocessError):
                continue
            if can_enter(self.with_vhost(vhost)):
                self._delete = delete
                return vhost
            delete(vhost)
        return None

    def delete_vhost(self, vhost: str) -> None:
        """Delete a vhost that was made here."""
        if self._delete is not None:
            self._delete(vhost)

    def close(self) -> None:
        """Delete the vhost of this run."""
        if self.vhost is not None:
            self.delete_vhost(self.vhost)

    def _ways(self) -> list[tuple[Act, Act]]:
        ways: list[tuple[Act, Act]] = []
        if self.management is not None:
            ways.append((self.management.make_vhost, self.management.delete_vhost))
        ctl = find_ctl()
        if ctl is not None and self._host in HERE and self._port in listened_to(ctl):
            ways.append((partial(self._make_by, ctl), partial(_run, ctl, "delete_vhost")))
        return ways

    def _make_by(self, ctl: str, vhost: str) -> None:
        _run(ctl, "add_vhost", vhost)
        _run(ctl, "set_permissions", "-p", vhost, self._user, ".*", ".*", ".*")


def find_ctl() -> str | None:
    """Return rabbitmqctl, if we may use it: without the cookie of its node it would only make one and be refused."""
    may = os.geteuid() == 0 or (Path.home() / ".erlang.cookie").exists()
    return shutil.which("rabbitmqctl", path=search_path()) if may else None


def listened_to(ctl: str) -> set[int]:
    """Return the ports of the node that rabbitmqctl reaches; none when it reaches none."""
    try:
        status = json.loads(_run(ctl, "--quiet", "--formatter", "json", "status"))
        return {listener["port"] for listener in status["listeners"]}
    except (OSError, subprocess.SubprocessError, ValueError, LookupError):
        return set()


def with_vhost(url: str, vhost: str) -> str:
    """Return a broker's URL with another vhost."""
    return urlunsplit(urlsplit(url)._replace(path="/" + quote(vhost, safe="")))


def can_enter(url: str) -> bool:
    """Return whether the vhost of a URL lets its user in."""
    try:
        pika.BlockingConnection(pika.URLParameters(urlunsplit(urlsplit(url)._replace(query="")))).close()
    except (exceptions.AMQPError, OSError):
        return False
    return True


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=CTL_SECONDS).stdout
