"""Sessions in a handler's signature: who gets one, and what is said to those who cannot."""

from typing import Annotated

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session

from carom import App, ConfigurationError, Message
from carom.codecs import standard
from carom.errors import SignatureError
from carom.ports import Database
from carom.runtime.dispatch import read_handler

DATABASE = "sqlite+aiosqlite://"
ONE = Message(body=b"1", content_type="application/json")
LENT = object()


async def last(order: int, session: AsyncSession):
    return order, session


async def first(session: AsyncSession, order: int, message: Message):
    return order, session


async def by_name(order: int, *, session: AsyncSession | None = None):
    return order, session


async def behind_a_default(order: int, other: str = "own", session: AsyncSession | None = None):
    return order, session


async def annotated(order: int, session: Annotated[AsyncSession, "of ours"]):
    return order, session


@pytest.mark.parametrize("function", [last, first, by_name, behind_a_default, annotated])
async def test_the_session_may_be_anywhere_in_the_signature(function):
    handler = read_handler(function, standard(), database=True)
    assert await handler.prepare(ONE, LENT)() == (1, LENT)
    assert await handler.prepare(ONE, "another")() == (1, "another")


def test_a_thread_is_given_a_session():
    def handle(order: int, session: Session):
        return order, session

    assert read_handler(handle, standard(), database=True).prepare(ONE, LENT)() == (1, LENT)


async def test_a_batch_is_given_one_session():
    async def handle(orders: list[int], session: AsyncSession, messages: list[Message]):
        return orders, session, len(messages)

    handler = read_handler(handle, standard(), batch=True, database=True)
    assert await handler.prepare_batch([ONE, ONE], LENT)() == ([1, 1], LENT, 2)


def test_who_asks_for_none_gets_none():
    async def handle(order: int): ...

    assert read_handler(handle, standard(), database=True).session is None


class Own(AsyncSession): ...


async def asks_for_the_other(order: int, session: Session): ...
def thread_asks_for_the_other(order: int, session: AsyncSession): ...
async def asks_for_two(order: int, session: AsyncSession, again: AsyncSession): ...
async def asks_for_its_own(order: int, session: Own): ...
async def asks_for_a_list(orders: list[int], session: list[AsyncSession]): ...
async def asks_for_the_session_alone(session: AsyncSession): ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (asks_for_the_other, "is a coroutine and asks for Session in 'session'.* SQLAlchemy's own AsyncSession"),
        (thread_asks_for_the_other, "is called in a thread and asks for AsyncSession in 'session'.* own Session"),
        (asks_for_two, "asks for 2 sessions, and there is one transaction"),
        (asks_for_its_own, "asks for Own in 'session'"),
        (asks_for_a_list, r"asks for list\[AsyncSession\] in 'session'.* one for a whole batch"),
        (asks_for_the_session_alone, "takes no parameter for what came"),
    ],
)
@pytest.mark.parametrize("batch", [None, 10])
def test_what_cannot_be_given_is_refused_when_it_is_declared(function, says, batch):
    with pytest.raises(SignatureError, match=says):
        App(database=DATABASE).listen("k", queue="q", batch=batch)(function)


def test_what_is_no_session_is_a_payload_like_any_other():
    def handle(order: async_scoped_session): ...

    with pytest.raises(SignatureError, match="cannot be read"):
        App(database=DATABASE).listen("k", queue="q")(handle)


async def handling(order: int): ...


def test_a_memory_that_is_too_short_is_refused_when_the_listener_is_declared():
    app = App(database=Database(DATABASE, keep_seen="7d", replay_window="7d"), retry=("1h",))
    with pytest.raises(ConfigurationError, match=r"its retries may take 1h, .*7d1h together"):
        app.listen("k", queue="q", idempotent=True)(handling)
    app.listen("k", queue="q")(handling)


def test_another_database_has_to_remember_long_enough_too():
    app = App(database=DATABASE)
    app.listen("k", queue="q", idempotent=True, retry=("2d",))(handling)
    with pytest.raises(ConfigurationError, match="keep_seen='8d' is too short for q"):
        app.configure(database=Database(DATABASE, keep_seen="8d"))
    app.configure(database=Database(DATABASE, keep_seen="10d"))
