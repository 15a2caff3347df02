"""FastAPI: the app lives as long as the web process, and a request announces in its own session.

    api = FastAPI(lifespan=lifespan(app))

    async def session() -> AsyncIterator[AsyncSession]: ...

    Emitting = Annotated[Emitter, Depends(emitter(app, session))]

    @api.post("/orders")
    async def place(order: Order, session: Annotated[AsyncSession, Depends(session)], emit: Emitting) -> None:
        async with session.begin():
            session.add(order)
            emit("order.placed", order, key=order.id)

Commit in the path operation, as here, and not after the ``yield`` of the dependency: from 0.118 on FastAPI ends its
dependencies after the answer was sent, and the answer would be a promise that a commit can still break.

Rule: an emitter does nothing that `App.emit` does not. Whose session it is, and who commits it, stays the program's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from fastapi import Depends, FastAPI

from carom.core.durations import Duration
from carom.core.message import Headers, Message
from carom.errors import ConfigurationError
from carom.runtime.app import App
from carom.runtime.publisher import Emit

Lifespan: TypeAlias = Callable[[FastAPI], AbstractAsyncContextManager[Mapping[str, Any] | None]]


def lifespan(
    app: App,
    around: Callable[[FastAPI], AbstractAsyncContextManager[Any]] | None = None,
    *,
    publish: bool | None = None,
    relay: bool = False,
    consume: bool = False,
) -> Lifespan:
    """Return a lifespan for `FastAPI` that starts an app before the first request and stops it after the last.

    By itself it only opens the database and checks its tables, which is all that emitting needs: orders are taken
    while the broker is away. ``publish`` connects to the broker too, for `App.publish`, and is the default where the
    app has no database; ``relay`` and ``consume`` do in this process what `carom run` does in another. ``around`` is
    the program's own lifespan: it begins first and ends last, and what it yields is the state of every request.
    """
    if relay and app.database is None:
        raise ConfigurationError(f"the app {app.name!r} has no database whose outbox it could relay")
    connects = bool(relay or consume or (app.database is None if publish is None else publish))

    @asynccontextmanager
    async def live(api: FastAPI) -> AsyncIterator[Mapping[str, Any] | None]:
        async with (around or _nothing)(api) as state:
            if connects:
                await app.start(consume=consume, relay=relay)
            elif app.database is not None:
                await app.store.open(app.database.tables)
            try:
                yield state
            finally:
                if connects:
                    await app.stop()
                elif app.database is not None:
                    await app.store.close()

    return live


@asynccontextmanager
async def _nothing(_api: FastAPI) -> AsyncIterator[None]:
    yield


@dataclass(frozen=True, slots=True)
class Emitter:
    """Announces in the session of one request: call it as `App.emit` is called, without the session."""

    app: App
    session: object

    def __call__(
        self,
        routing_key: str,
        payload: Any = None,
        *,
        key: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        headers: Headers | None = None,
        correlation_id: str | None = None,
    ) -> Message:
        """Announce a message in the request's transaction: see `App.emit`."""
        return self.app.emit(
            self.session,
            routing_key,
            payload,
            key=key,
            delay=delay,
            at=at,
            headers=headers,
            correlation_id=correlation_id,
        )

    def many(self, items: Iterable[Emit | tuple[Any, ...]]) -> list[Message]:
        """Announce many messages in the request's transaction: see `App.emit_many`."""
        return self.app.emit_many(self.session, items)


def emitter(app: App, session: Callable[..., Any]) -> Callable[..., Emitter]:
    """Return a dependency that gives an `Emitter` in the session that another dependency gives to the same request."""

    def emitting(session: Any = Depends(session)) -> Emitter:  # noqa: B008 - it is how FastAPI is told
        return Emitter(app, session)

    return emitting
