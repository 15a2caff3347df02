"""RabbitMQ's management API, as far as tests need it: make and delete vhosts.

Rule: a server without it answers "no"; only what a server that has it refuses is an error.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

TIMEOUT_SECONDS = 20


class Refused(Exception):
    """The management API does not do what it was asked."""


class Management:
    """The management API at an address, as somebody."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url = url.rstrip("/")
        self.user = user
        self._authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def ask(self, method: str, *path: str, body: dict[str, Any] | None = None) -> Any:
        """Ask for ``/api/<path>``; the parts of the path are quoted. Raises Refused, and OSError when unreachable."""
        url = "/".join([self.url, "api", *(quote(part, safe="") for part in path)])
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, method=method)  # noqa: S310 - an http address of our own
        request.add_header("Authorization", self._authorization)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answered:  # noqa: S310 - as above
                said = answered.read()
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(f"{method} {url}: {error.code} {error.read()[:500]!r}") from error
        return json.loads(said) if said else None

    def is_there(self) -> bool:
        """Return whether there is such an API and it lets us make vhosts."""
        try:
            return "administrator" in _tags(self.ask("GET", "whoami")["tags"])
        except (OSError, Refused, ValueError):
            return False

    def make_vhost(self, name: str) -> None:
        """Make a vhost in which its maker may do everything."""
        self.ask("PUT", "vhosts", name, body={})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.ask("PUT", "permissions", name, self.user, body=everything)

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost and all that is in it."""
        self.ask("DELETE", "vhosts", name)


def _tags(tags: str | list[str]) -> list[str]:
    """Return the tags of a user, which old servers write with commas and new ones as a list."""
    return tags.split(",") if isinstance(tags, str) else tags
