"""A handler's signature is read once, and what cannot be filled fails when it is declared."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Awaitable, Iterable, Sequence
from typing import Annotated, Any, Optional, TypedDict

import msgspec
import pydantic
import pytest
from sqlalchemy.orm import Session

from carom import App, Message
from carom.codecs import standard
from carom.errors import ConfigurationError, DecodeError, SignatureError
from carom.runtime.dispatch import read_handler
from carom.testing import Harness


class Struct(msgspec.Struct):
    n: int


@dataclasses.dataclass
class Data:
    n: int


class Model(pydantic.BaseModel):
    n: float


@pydantic.dataclasses.dataclass
class Checked:
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def positive(cls, value: int) -> int:
        if value < 1:
            raise ValueError("not positive")
        return value


class Typed(TypedDict):
    n: int


class Unknown:
    """Nobody knows how this looks in JSON."""


AsyncSession = type("AsyncSession", (), {"__module__": "sqlalchemy.ext.asyncio.session"})
"""Known by its name: the real one takes a library that nothing here needs."""

ONE = Message(body=b'{"n": 1}', id="m-1", routing_key="k")


def taking(annotation):
    def handle(order):
        return order

    if annotation is not inspect.Parameter.empty:
        handle.__annotations__ = {"order": annotation}
    return handle


def given(function, message=ONE):
    return read_handler(function, standard()).prepare(message)()


@pytest.mark.parametrize(
    ("annotation", "body", "payload"),
    [
        (Struct, b'{"n": 1}', Struct(1)),
        (Data, b'{"n": 1}', Data(1)),
        (Model, b'{"n": 1}', Model(n=1)),
        (Checked, b'{"n": 1}', Checked(1)),
        (list[Model], b'[{"n": 1}]', [Model(n=1)]),
        (Model | None, b"null", None),
        (Typed, b'{"n": 1}', {"n": 1}),
        (dict, b'{"n": 1}', {"n": 1}),
        (dict[str, int], b'{"n": 1}', {"n": 1}),
        (list, b"[1]", [1]),
        (list[int], b"[1]", [1]),
        (str, b'"one"', "one"),
        (int, b"1", 1),
        (bytes, b"\xff\x00", b"\xff\x00"),
        (Any, b'{"n": 1}', {"n": 1}),
        (object, b'{"n": 1}', {"n": 1}),
        (None, b"null", None),
        (inspect.Parameter.empty, b"[1, null]", [1, None]),
        (Struct | None, b"null", None),
        (Annotated[int, msgspec.Meta(gt=0), "a note"], b"1", 1),
    ],
)
def test_a_payload_is_what_its_annotation_says(annotation, body, payload):
    found = given(taking(annotation), Message(body=body))
    assert found == payload
    assert type(found) is type(payload)


@pytest.mark.parametrize("annotation", [Struct, Data, Model, Checked, Typed, dict, list[Model], str, int, Any, None])
@pytest.mark.parametrize(
    "body", [b"", b"{", b"nope", b"NaN", b'{"n": NaN}', b"\xff", b'{"n": "\xff"}', b"[" * 100_000, b'"\\ud800"']
)
def test_what_cannot_be_read_is_a_decode_error(annotation, body):
    with pytest.raises(DecodeError):
        given(taking(annotation), Message(body=body))


@pytest.mark.parametrize("annotation", [Struct, Data, Model, Checked, Typed, dict[str, int]])
@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b'{"n": "one"}', b'{"n": []}'])
def test_json_of_another_shape_is_a_decode_error(annotation, body):
    with pytest.raises(DecodeError):
        given(taking(annotation), Message(body=body))


def test_a_constraint_in_an_annotation_is_kept():
    with pytest.raises(DecodeError):
        given(taking(Annotated[int, msgspec.Meta(gt=0)]), Message(body=b"-1"))
    with pytest.raises(DecodeError, match="not positive"):
        given(taking(Checked), Message(body=b'{"n": 0}'))


def test_the_message_is_filled_by_annotation_wherever_it_stands():
    def first(message: Message, order: dict):
        return order, message

    def keyword(order: dict, *, other: int = 5, message: Message):
        return order, message, other

    def optional(order: dict, message: Optional[Message] = None):  # noqa: UP045 - people still write it so
        return order, message

    def union(order: dict, message: Message | None = None):
        return order, message

    def annotated(order: dict, message: Annotated[Message, "a note"]):
        return order, message

    def twice(order: dict, message: Message, again: Message):
        return order, message, again

    for function in (first, optional, union, annotated):
        assert given(function) == ({"n": 1}, ONE)
    assert given(keyword) == ({"n": 1}, ONE, 5)
    assert given(twice) == ({"n": 1}, ONE, ONE)


def test_a_handler_may_take_the_message_alone():
    assert given(lambda_of_message()) is ONE


def lambda_of_message():
    def handle(message: Message):
        return message

    return handle


def test_defaults_keep_their_values_and_a_lone_default_is_the_payload():
    def with_defaults(order: dict, limit: int = 7, *, tag: str = "t"):
        return order, limit, tag

    def behind(order: dict, limit: int = 7, message: Message = ONE):
        return order, limit, message

    def only(order: dict | None = None):
        return order

    assert given(with_defaults) == ({"n": 1}, 7, "t")
    assert given(behind, Message(body=b"{}")) == ({}, 7, Message(body=b"{}"))
    assert given(only) == {"n": 1}


def test_partials_methods_objects_and_wrapped_functions_are_handlers():
    class Shop:
        def bound(self, order: Struct):
            return order.n

        @staticmethod
        def static(order: Struct):
            return order.n

        @classmethod
        def of_class(cls, order: Struct):
            return order.n

        def __call__(self, order: Struct, message: Message):
            return order.n

    def with_client(client, order: Struct):
        return order.n

    @functools.lru_cache
    def cached(order: Annotated[Struct, "hashable by luck"]):
        return 1

    @functools.wraps(with_client)
    def wrapper(*args, **kwargs):
        return with_client(*args, **kwargs)

    shop = Shop()
    for function in (
        shop.bound,
        Shop.static,
        Shop.of_class,
        shop,
        functools.partial(with_client, "client"),
        functools.partial(functools.partial(with_client), "client"),
        functools.partial(wrapper, "client"),
        functools.partial(shop),
        lambda order: order["n"],
    ):
        assert given(function) == 1
    assert read_handler(cached, standard()).positional
    assert read_handler(functools.partial(with_client, "client"), standard()).name == "with_client"


def test_a_handler_is_async_when_calling_it_makes_a_coroutine():
    async def plain(order): ...

    class Shop:
        async def bound(self, order): ...
        async def __call__(self, order): ...

    class Sync:
        def __call__(self, order): ...

    @functools.wraps(plain)
    def runs_it_to_its_end(order): ...

    for function in (plain, Shop().bound, Shop(), functools.partial(plain), functools.partial(Shop())):
        assert read_handler(function, standard()).is_async
    for function in (Sync(), functools.partial(Sync()), lambda order: None, runs_it_to_its_end, print_one):
        assert not read_handler(function, standard()).is_async


def print_one(order): ...


def test_a_batch_handler_gets_lists():
    def batch(orders: list[Struct], messages: list[Message]):
        return orders, messages

    def sequence(orders: Sequence[Struct], *, messages: Sequence[Message]):
        return orders, messages

    for function in (batch, sequence):
        call = read_handler(function, standard(), batch=True).prepare_batch([ONE, ONE])
        assert call() == ([Struct(1), Struct(1)], [ONE, ONE])
    for function in (taking(list), taking(inspect.Parameter.empty)):
        assert read_handler(function, standard(), batch=True).prepare_batch([ONE])() == [{"n": 1}]


def generator(order):
    yield order


async def async_generator(order):
    yield order


def with_args(*orders): ...
def with_kwargs(**orders): ...
def two_payloads(order: dict, other: dict): ...
def no_parameters(): ...
def asks_for_session(order: dict, session: Session): ...
def asks_for_async_session(order: dict, session: AsyncSession | None): ...
def unresolvable(order: NotImportedAnywhere): ...  # noqa: F821 - that it is not there is the point
def no_type(order: 5): ...
def no_syntax(order: "1 +"): ...  # noqa: F722 - that it is no Python is the point
def no_attribute(order: dataclasses.Missing): ...
def only_by_place(order: dict, other: int = 1, message: Message = ONE, /): ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (with_args, r"with_args takes \*orders: name the parameters"),
        (with_kwargs, r"with_kwargs takes \*\*orders"),
        (two_payloads, "2 parameters that could be the payload: 'order', 'other'"),
        (no_parameters, "takes no parameter"),
        (asks_for_session, "a database session in 'session', and this app has no database"),
        (asks_for_async_session, "a database session in 'session', and this app has no database"),
        (unresolvable, "names must exist at module level"),
        (no_type, "cannot be read"),
        (no_syntax, "is not a type"),
        (no_attribute, "names must exist at module level"),
        (only_by_place, "can only be given by its place"),
        (generator, "yields"),
        (async_generator, "yields"),
        (functools.partial(generator), "yields"),
        (Unknown, "is a class"),
        (taking(Unknown), "nothing is known of how Unknown looks in JSON"),
        (taking(list[Unknown]), "Unknown"),
        (taking(dict[str, Unknown | None]), "Unknown"),
        (taking(tuple[int, Unknown]), "Unknown"),
        (taking(Iterable[int]), "Iterable"),
        (taking(Awaitable), "Awaitable"),
        (taking(Struct | Data), "cannot be read"),
        (getattr, "no signature to read"),
    ],
)
def test_what_nobody_can_fill_is_refused_when_it_is_declared(function, says):
    with pytest.raises(SignatureError, match=says):
        App().listen("k", queue="q")(function)


@pytest.mark.parametrize("annotation", [dict, Struct, int, tuple[Struct, ...]])
def test_a_batch_handler_whose_payload_is_no_list_is_refused(annotation):
    with pytest.raises(SignatureError, match="its payload is a list"):
        App().listen("k", queue="q", batch=10)(taking(annotation))


async def test_the_decorated_function_stays_callable_as_it_was():
    app = App("embedded://", observers=())
    seen = []

    def handle(order: Struct, message: Message | None = None) -> str:
        seen.append(order.n)
        return "its own answer"

    declared = app.listen("k", queue="q")(handle)
    assert declared is handle
    assert declared(Struct(5)) == "its own answer"
    async with Harness(app) as h:
        await h.publish("k", Struct(6))
    assert seen == [5, 6]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": ""}, "no queue name"),
        ({"queue": "q" * 240}, "no queue name"),
        ({"queue": "q\ud800"}, "no queue name"),
        ({"queue": 7}, "7 is no queue name"),
        ({"queue": "amq.q"}, "belong to the broker"),
        ({"concurrency": 0}, "say 1 or more"),
        ({"concurrency": True}, "say 1 or more"),
        ({"concurrency": "5"}, "say 1 or more"),
        ({"prefetch": 0}, "say 1 or more"),
        ({"batch": 0}, "say 1 or more"),
        ({"crash_limit": 0}, "say 1 or more"),
        ({"prefetch": 65_536}, "more than a broker can be told"),
        ({"batch": 65_536}, "more than a broker can be told"),
        ({"timeout": 0}, "timeout of nothing"),
        ({"timeout": "soon"}, "not a duration"),
        ({"timeout": -1}, "negative"),
        ({"retry": "2s"}, "not a retry policy"),
        ({"retry": ("soon",)}, "not a duration"),
        ({"idempotent": True}, "takes a database"),
        ({"batch": 10, "prefetch": 5}, "could never be complete"),
    ],
)
def test_an_option_that_cannot_work_is_refused_with_a_sentence(options, says):
    with pytest.raises(ConfigurationError, match=says):
        App().listen("k", **{"queue": "q", **options})(taking(list))


@pytest.mark.parametrize("key", ["k" * 256, "k\ud800", 5])
def test_a_binding_key_that_cannot_be_is_refused(key):
    with pytest.raises(ConfigurationError, match="no binding key"):
        App().listen(key, queue="q")(print_one)


def test_forgotten_parentheses_are_noticed():
    with pytest.raises(ConfigurationError, match="with parentheses"):
        App().listen(print_one)


def test_two_listeners_on_one_queue_are_refused():
    app = App()
    app.listen("a", queue="q")(print_one)
    with pytest.raises(ConfigurationError, match="would both take from queue 'q'"):
        app.listen("b", queue="q")(taking(dict))
    assert len(app.listeners) == 1


def test_without_a_queue_the_app_and_the_function_name_it():
    app = App(name="billing")
    app.listen("a", "a", "b")(print_one)
    assert app.listeners[0].queue == "billing.print_one"
    assert app.listeners[0].plan.keys == ("a", "b")


def test_prefetch_follows_from_what_may_run_at_once():
    app = App()
    app.listen("a", queue="a", concurrency=3)(print_one)
    app.listen("b", queue="b", batch=50)(taking(list))
    app.listen("c", queue="c", batch=5000)(taking(list))
    app.listen("d", queue="d", concurrency=9000)(print_one)
    app.listen("e", queue="e", prefetch=7)(print_one)
    assert [one.prefetch for one in app.listeners] == [12, 100, 5000, 2000, 7]
