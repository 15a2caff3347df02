"""RabbitMQ's management API, read only, where there is one: what AMQP cannot say.

Rule: what an app needs does not depend on it: there, whatever it fails with means that it was not asked. Who asks it
on purpose is told what it failed with. Credentials go to the host they are for and into no sentence.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from carom.brokers.rabbitmq.address import Address
from carom.core.lint.reading import definitions
from carom.core.lint.seen import Inventory
from carom.errors import BrokerError, BrokerUnavailable, ConfigurationError, NotPermitted

TIMEOUT_S = 3.0
PATIENCE_S = 30.0
"""How long a list may take that somebody asked for."""
UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 401, 403, 404
_LISTS = {"exchanges": "exchanges", "queues": "queues", "bindings": "bindings", "policies": "policies"}


class Management:
    """Asks the management API of a broker, with the credentials of the broker's own URL."""

    def __init__(self, address: Address) -> None:
        """Ask nothing yet."""
        self._address = address
        self._api = None if address.management is None else Api(address.management, address.user, address.password)

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

    async def observe(self) -> Inventory:
        """Return everything in the vhost. Raises ConfigurationError without an API, and what the API fails with."""
        if self._api is None:
            raise ConfigurationError(
                "arguments, bindings and policies are known to the management API alone: give its address with "
                "?management=http://host:15672 in the broker's URL"
            )
        return await self._api.observe(self._address.vhost)

    async def held(self, queue: str) -> int | None:
        """Return how many messages a queue has, as it was some seconds ago; None when nobody knows."""
        return None if self._api is None else await self._api.held(self._address.vhost, queue)

    async def _get(self, path: str) -> Any:
        if self._api is None:
            return None
        try:
            return await self._api.get(path, TIMEOUT_S)
        except BrokerError:
            return None


class Api:
    """A management API by its own URL, ``http://user:password@host:15672``."""

    def __init__(self, url: str, user: str, password: str) -> None:
        """Ask nothing yet."""
        self._url = f"{url.rstrip('/')}/api/"
        self._secret = base64.b64encode(f"{user}:{password}".encode()).decode()

    async def observe(self, vhost: str | None = None) -> Inventory:
        """Return everything this user may see, in one vhost or in all. What it may not see is left out.

        Raises BrokerUnavailable, NotPermitted or BrokerError.
        """
        overview = await self.get("overview")
        if not isinstance(overview, dict):
            raise BrokerError("the management API gives no overview: is this a RabbitMQ?")
        place = "" if vhost is None else f"/{_quoted(vhost)}"
        found: dict[str, Any] = {"rabbitmq_version": overview.get("rabbitmq_version", "")}
        for key, path in _LISTS.items():
            found[key] = await self.get(path + place)
        found["vhosts"] = [{"name": vhost}] if vhost is not None else await self.get("vhosts")
        found["operator_policies"] = await self._if_permitted("operator-policies" + place)
        found["feature_flags"] = await self._if_permitted("feature-flags")
        careless = _without_ack(await self._if_permitted("consumers" + place))
        for queue in found["queues"]:
            queue["without_ack"] = careless[queue.get("vhost"), queue.get("name")]
        return definitions(found, vhost=vhost or "/")

    async def held(self, vhost: str, queue: str) -> int | None:
        """Return how many messages a queue has, in whose hands ever; None when nobody knows yet. Some seconds old."""
        found = await self._if_permitted(f"queues/{_quoted(vhost)}/{_quoted(queue)}")
        count = found.get("messages") if isinstance(found, dict) else None
        return count if isinstance(count, int) else None

    async def get(self, path: str, timeout_s: float = PATIENCE_S) -> Any:
        """Return one answer. Raises BrokerUnavailable, NotPermitted or BrokerError."""
        return await asyncio.to_thread(self._fetch, path, timeout_s)

    async def _if_permitted(self, path: str) -> Any:
        try:
            return await self.get(path)
        except NotPermitted:
            return []
        except BrokerError as error:
            if isinstance(error.__cause__, HTTPError) and error.__cause__.code == NOT_FOUND:
                return []
            raise

    def _fetch(self, path: str, timeout_s: float) -> Any:
        request = Request(self._url + path, headers={"Authorization": f"Basic {self._secret}"})  # noqa: S310 - http(s) alone
        try:
            with build_opener(_Staying).open(request, timeout=timeout_s) as answer:
                return json.load(answer)
        except HTTPError as error:
            _refused(error, path)
        except (URLError, HTTPException, OSError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise BrokerUnavailable(f"the management API cannot be reached: {reason}") from error
        except ValueError as error:
            raise BrokerError(f"the management API answers {path!r} with something that is no JSON") from error


class _Staying(HTTPRedirectHandler):
    """Goes nowhere else: credentials are for the host they were given for."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow nothing."""


def api(url: str) -> Api:
    """Return the API of a URL with its credentials; guest's where it has none. Raises ConfigurationError."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:  # which would show what was given, a password maybe
        raise ConfigurationError("the address of the management API cannot be read: http://user:…@host:15672") from None
    if parts.scheme not in {"http", "https"} or not host or "@" in parts.path:
        raise ConfigurationError("the address of the management API begins with http:// or https:// and has a host")
    place = f"[{host}]" if ":" in host else host
    where = f"{parts.scheme}://{place}{'' if port is None else f':{port}'}{parts.path}"
    return Api(where, unquote(parts.username or "guest"), unquote(parts.password or "guest"))


def _refused(error: HTTPError, path: str) -> NoReturn:
    error.close()
    if error.code in {UNAUTHORIZED, FORBIDDEN}:
        raise NotPermitted(
            f"the management API lets this user not read {path!r}: give it the tag monitoring, with "
            "'rabbitmqctl set_user_tags', and permissions in the vhost"
        ) from error
    raise BrokerError(f"the management API answers {path!r} with {error.code} {error.reason}") from error


def _without_ack(consumers: Any) -> Counter[tuple[Any, Any]]:
    """Count the consumers of each queue that do not acknowledge."""
    careless: Counter[tuple[Any, Any]] = Counter()
    for one in consumers if isinstance(consumers, list) else ():
        queue = one.get("queue")
        if one.get("ack_required") is False and isinstance(queue, dict):
            careless[queue.get("vhost"), queue.get("name")] += 1
    return careless


def _quoted(name: str) -> str:
    return quote(name, safe="")
