"""A RabbitMQ that somebody else runs, named by ``CAROM_TEST_BROKER``, and a vhost of this run on it.

Rule: nothing of anybody else's is touched. The vhost is made through the management API or rabbitmqctl and deleted at
the end; where neither is to be had, the vhost of the URL is used, whose tests delete what they declared.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from uuid import uuid4

import pika
from pika import exceptions

from .management import Management, Refused
from .programs import search_path

CTL_SECONDS = 60
HERE = frozenset({"localhost", "127.0.0.1", "::1"})


class ExistingRabbit:
    """A RabbitMQ at a URL. `url` is where the tests are to go, which is another vhost if one could be made."""

    def __init__(self, given: str) -> None:
        """Make a vhost, if there is a way."""
        self.given = given
        parts = urlsplit(given)
        self._host = parts.hostname or "localhost"
        self._user, self._password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
        management = Management(f"http://{self._host}:15672", self._user, self._password)
        self.management: Management | None = management if management.is_there() else None
        self._delete: Callable[[str], None] | None = None
        self.url = given
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

    def _ways(self) -> list[tuple[Callable[[str], None], Callable[[str], None]]]:
        ways: list[tuple[Callable[[str], None], Callable[[str], None]]] = []
        if self.management is not None:
            ways.append((self.management.make_vhost, self.management.delete_vhost))
        # Whether the node that rabbitmqctl reaches is the one of the URL shows when the vhost is entered.
        ctl = shutil.which("rabbitmqctl", path=search_path())
        if ctl is not None and self._host in HERE:
            ways.append((lambda vhost: self._make_by(ctl, vhost), lambda vhost: _run(ctl, "delete_vhost", vhost)))
        return ways

    def _make_by(self, ctl: str, vhost: str) -> None:
        _run(ctl, "add_vhost", vhost)
        _run(ctl, "set_permissions", "-p", vhost, self._user, ".*", ".*", ".*")


def with_vhost(url: str, vhost: str) -> str:
    """Return a broker's URL with another vhost."""
    return urlunsplit(urlsplit(url)._replace(path="/" + quote(vhost, safe="")))


def can_enter(url: str) -> bool:
    """Return whether the vhost of a URL lets its user in."""
    try:
        pika.BlockingConnection(_parameters(url)).close()
    except (exceptions.AMQPError, OSError):
        return False
    return True


def _parameters(url: str) -> pika.URLParameters:
    """Return what the driver makes of a URL, whose options are Carom's and not the driver's."""
    return pika.URLParameters(urlunsplit(urlsplit(url)._replace(query="")))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=CTL_SECONDS)
