"""A FastAPI program: the app lives as long as it does, and requests announce in their own sessions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from carom import App
from carom.errors import ConfigurationError, SchemaMismatch
from carom.integrations.fastapi import Emitter, emitter, lifespan
from carom.integrations.sqlalchemy import session_factory
from carom.ports import Database

SECONDS = 20
NOBODY = "amqp://guest:guest@127.0.0.1:1/"


@pytest.fixture
def database(tmp_path):
    return f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}"


@pytest.fixture
def app(tmp_path, database):
    return App(f"embedded:///{tmp_path / 'broker.db'}", database=database, name="shop")


@asynccontextmanager
async def client_of(api):
    """Give a client whose requests come between the start and the end of the program's life."""
    async with (
        api.router.lifespan_context(api) as state,
        httpx.AsyncClient(transport=httpx.ASGITransport(state_given(api, state)), base_url="http://shop") as client,
    ):
        yield client


def state_given(api, state):
    """Do with what a lifespan yields as a server does."""

    async def called(scope, receive, send):
        await api({**scope, "state": dict(state or {})}, receive, send)

    return called


def shop(app, **options):
    """Make a web program that takes orders."""
    sessions = session_factory(app)

    async def begun() -> AsyncIterator[AsyncSession]:
        async with sessions() as session:
            yield session

    api = FastAPI(lifespan=lifespan(app, **options))
    Emitting = Annotated[Emitter, Depends(emitter(app, begun))]  # noqa: N806 - a type

    @api.post("/orders", status_code=201)
    async def place(number: int, session: Annotated[AsyncSession, Depends(begun)], emit: Emitting) -> str:
        async with session.begin():
            message = emit("order.placed", {"id": number}, key=str(number))
            emit.many([("order.counted", number), ("order.counted", number)])
            if number < 0:
                raise HTTPException(422)
        return message.id

    return api


async def outbox(app):
    async with app.store.engines.asynchronous.connect() as connection:
        found = (await connection.execute(text("SELECT id, routing_key FROM carom_outbox ORDER BY seq"))).all()
    await app.store.close()
    return [tuple(row) for row in found]


async def test_what_a_request_emits_is_committed_with_its_session_or_not_at_all(app):
    async with client_of(shop(app)) as client:
        taken = await client.post("/orders", params={"number": 1})
        refused = await client.post("/orders", params={"number": -1})
    assert (taken.status_code, refused.status_code) == (201, 422)
    rows = await outbox(app)
    assert rows == [
        (taken.json(), "order.placed"),
        (rows[1][0], "order.counted"),
        (rows[2][0], "order.counted"),
    ]


async def test_emitting_needs_no_broker(tmp_path, database):
    app = App(NOBODY, database=database, name="shop")
    async with client_of(shop(app)) as client:
        assert (await client.post("/orders", params={"number": 1})).status_code == 201


async def test_tables_that_are_not_there_are_told_before_the_first_request(database):
    app = App(NOBODY, database=Database(database, tables="verify"), name="shop")
    with pytest.raises(SchemaMismatch):
        async with client_of(shop(app)):
            pytest.fail("it started")
    await app.store.close()


async def test_a_web_process_can_relay_and_consume_by_itself(app):
    handled = asyncio.Queue()

    @app.listen("order.placed")
    async def placed(order: dict) -> None:
        handled.put_nowait(order)

    async with client_of(shop(app, relay=True, consume=True)) as client:
        await client.post("/orders", params={"number": 7})
        assert await asyncio.wait_for(handled.get(), SECONDS) == {"id": 7}
    assert app.consumers == ()


async def test_without_a_database_it_connects_to_publish(tmp_path):
    app = App("embedded://", name="shop")

    @app.listen("ping")
    async def pinged(_body: bytes) -> None: ...

    api = FastAPI(lifespan=lifespan(app))

    @api.post("/ping")
    async def ping() -> str:
        return (await app.publish("ping")).id

    async with client_of(api) as client:
        assert (await client.post("/ping")).status_code == 200
    with pytest.raises(ConfigurationError, match="not started"):
        await app.publish("ping")


async def test_the_programs_own_life_is_around_the_app_s(app):
    seen = []

    @asynccontextmanager
    async def own(_api):
        seen.append("begin")
        yield {"colour": "red"}
        seen.append("end")

    async def opened(mode):
        seen.append("open")
        await type(app.store).open(app.store, mode)

    app.store.open = opened
    api = FastAPI(lifespan=lifespan(app, own))

    @api.get("/colour")
    async def colour(request: Request) -> str:
        return request.state.colour

    async with client_of(api) as client:
        assert (await client.get("/colour")).json() == "red"
    assert seen == ["begin", "open", "end"]


def test_relaying_without_a_database_is_refused_when_it_is_said():
    with pytest.raises(ConfigurationError, match="no database"):
        lifespan(App("embedded://"), relay=True)
