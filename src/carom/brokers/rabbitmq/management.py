"""RabbitMQ's management API, read only, where there is one: what AMQP cannot say.

Rule: it is optional. Whatever it fails with means that it was not asked; nothing depends on its answer.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from carom.brokers.rabbitmq.address import Address

TIMEOUT_S = 3.0


class Management:
    """Asks the management API of a broker, with the credentials of the broker's own URL."""

    def __init__(self, address: Address) -> None:
        """Ask nothing yet."""
        self._address = address

    async def queue_policy(self, queue: str) -> Mapping[str, object] | None:
        """Return what the effective policies of a queue set; None when nobody can be asked."""
        found = await self._get(f"queues/{_quoted(self._address.vhost)}/{_quoted(queue)}")
        if not isinstance(found, dict):
            return None
        policy = found.get("effective_policy_definition")
        return policy if isinstance(policy, dict) else {}

    async def bindings(self) -> frozenset[tuple[str, str, str, str]] | None:
        """Return every binding of the vhost as (source, kind of target, target, key); None when nobody can be asked.

        Arguments are left out: the API writes numbers its own way.
        """
        found = await self._get(f"bindings/{_quoted(self._address.vhost)}")
        if not isinstance(found, list):
            return None
        names = ("source", "destination_type", "destination", "routing_key")
        return frozenset(
            (str(one.get(names[0])), str(one.get(names[1])), str(one.get(names[2])), str(one.get(names[3])))
            for one in found
            if isinstance(one, dict)
        )

    async def versions(self) -> tuple[str, ...]:
        """Return the versions of the nodes of the cluster that run; nothing when nobody can be asked.

        A rolling upgrade mixes them, and a queue may be put on any node.
        """
        found = await self._get("nodes")
        nodes = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        applications = [one for node in nodes for one in node.get("applications") or () if isinstance(one, dict)]
        return tuple(str(one.get("version")) for one in applications if one.get("name") == "rabbit")

    async def answers(self) -> bool:
        """Tell whether there is an API that lets us in."""
        return isinstance(await self._get("overview"), dict)

    async def _get(self, path: str) -> Any:
        if self._address.management is None:
            return None
        return await asyncio.to_thread(self._fetch, f"{self._address.management.rstrip('/')}/api/{path}")

    def _fetch(self, url: str) -> Any:
        secret = base64.b64encode(f"{self._address.user}:{self._address.password}".encode()).decode()
        try:
            request = Request(url, headers={"Authorization": f"Basic {secret}"})  # noqa: S310 - http or https, see address
            with urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - as above
                return json.load(answer)
        except (URLError, HTTPException, OSError, ValueError):
            return None


def _quoted(name: str) -> str:
    return quote(name, safe="")
