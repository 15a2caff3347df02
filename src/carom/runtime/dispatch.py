"""A handler's signature, read once: which parameter is the payload, which the message or a session, and how to call it.

Rule: a signature that cannot be filled fails when it is declared, with a sentence, and not when a message comes.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from carom.codecs import Registry
from carom.core.message import Message
from carom.errors import ConfigurationError, SignatureError

Fill: TypeAlias = Callable[[Message], Any]
_SESSIONS = {
    ("sqlalchemy.orm.session", "Session"): "Session",
    ("sqlalchemy.ext.asyncio.session", "AsyncSession"): "AsyncSession",
}
"""Known by name, because a database is optional and its library is an adapter's."""
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Handler:
    """A function and how each of its parameters is filled from a message.

    ``session`` is the place or the name of the parameter that is filled with the session of our transaction.
    """

    function: Callable[..., Any]
    name: str
    is_async: bool
    positional: tuple[Fill, ...]
    keyword: tuple[tuple[str, Fill], ...]
    session: int | str | None = None

    def prepare(self, message: Message, session: object = None) -> Callable[[], Any]:
        """Return the call that handles this message. Raises DecodeError when the payload cannot be read."""
        arguments = [fill(message) for fill in self.positional]
        keyword = {name: fill(message) for name, fill in self.keyword} if self.keyword else {}
        if self.session is not None:
            self._give(session, arguments, keyword)
        return _Call(self.function, arguments, keyword)

    def prepare_batch(self, messages: Sequence[Message], session: object = None) -> Callable[[], Any]:
        """Return the call that handles these messages at once: every parameter gets a list, but for the session."""
        arguments: list[Any] = [[fill(message) for message in messages] for fill in self.positional]
        keyword: dict[str, Any] = {name: [fill(message) for message in messages] for name, fill in self.keyword}
        if self.session is not None:
            self._give(session, arguments, keyword)
        return _Call(self.function, arguments, keyword)

    def _give(self, session: object, arguments: list[Any], keyword: dict[str, Any]) -> None:
        if isinstance(self.session, int):
            arguments[self.session] = session
        elif self.session is not None:
            keyword[self.session] = session


class _Call:
    """A call with its arguments; cheaper than a partial to build, and it shows well in a traceback."""

    __slots__ = ("arguments", "function", "keyword")

    def __init__(self, function: Callable[..., Any], arguments: list[Any], keyword: dict[str, Any]) -> None:
        self.function = function
        self.arguments = arguments
        self.keyword = keyword

    def __call__(self) -> Any:
        return self.function(*self.arguments, **self.keyword)


Coroutine: TypeAlias = Callable[..., Awaitable[Any]]


def read_handler(
    function: Callable[..., Any], codecs: Registry, *, batch: bool = False, database: bool = False
) -> Handler:
    """Read a handler's signature. Raises SignatureError when somebody would have to guess.

    ``database`` says that there is one, so that a session can be given.
    """
    name = _name(function)
    parameters = _parameters(function, name)
    annotations = _annotations(function, name)
    asking = _asking_for_session(parameters, annotations, name, is_async=_is_async(function), database=database)
    payload = _payload([one for one in parameters if one is not asking], annotations, name, batch=batch)
    positional: list[Fill] = []
    keyword: list[tuple[str, Fill]] = []
    session: int | str | None = None
    for parameter in parameters:
        annotation = annotations.get(parameter.name, Any)
        if parameter.name == payload:
            fill = _reader(annotation, codecs, name, batch=batch)
        elif parameter is asking or _is_message(annotation, batch=batch):
            fill = _itself
        else:
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY or len(positional) != parameters.index(parameter):
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise SignatureError(
                    f"{parameter.name!r} of {name} can only be given by its place, behind a parameter that keeps its "
                    "default: put it first, or take the '/' away"
                )
            keyword.append((parameter.name, fill))
        else:
            positional.append(fill)
        if parameter is asking:
            session = parameter.name if keyword and keyword[-1][0] == parameter.name else len(positional) - 1
    return Handler(function, name, _is_async(function), tuple(positional), tuple(keyword), session)


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    if inspect.isclass(function):
        raise SignatureError(f"{name} is a class; a handler is a function, a method or an object that can be called")
    if any(is_generator(_bare(function)) for is_generator in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)):
        raise SignatureError(f"{name} yields, so calling it would handle nothing: let it return instead")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise SignatureError(f"{name} has no signature to read: {error}") from error
    parameters = list(signature.parameters.values())
    for parameter in parameters:
        if parameter.kind in _VARIADIC:
            raise SignatureError(f"{name} takes {parameter}: name the parameters, so that each can be filled")
    return parameters


def _annotations(function: Callable[..., Any], name: str) -> dict[str, Any]:
    target = inspect.unwrap(_bare(inspect.unwrap(function)))
    try:
        return typing.get_type_hints(target, include_extras=True)
    except (NameError, AttributeError) as error:
        raise SignatureError(
            f"an annotation of {name} cannot be resolved: {error}. Handlers are called by their annotations, so the "
            "names must exist at module level when the program runs, not only under TYPE_CHECKING"
        ) from error
    except (TypeError, SyntaxError) as error:
        raise SignatureError(f"an annotation of {name} is not a type: {error}") from error


def _payload(parameters: list[inspect.Parameter], annotations: dict[str, Any], name: str, *, batch: bool) -> str:
    """Return the name of the payload parameter, or an empty string when only the message is asked for."""
    free = [one for one in parameters if not _is_message(annotations.get(one.name, Any), batch=batch)]
    needed = [parameter for parameter in free if parameter.default is inspect.Parameter.empty] or free[:1]
    if len(needed) > 1:
        names = ", ".join(repr(parameter.name) for parameter in needed)
        raise SignatureError(
            f"{name} has {len(needed)} parameters that could be the payload: {names}. Exactly one receives it; "
            "annotate the others (Message) or give them defaults"
        )
    if not parameters:
        raise SignatureError(
            f"{name} takes no parameter for what came: give it one for the payload, or one annotated with Message"
        )
    return needed[0].name if needed else ""


def _reader(annotation: Any, codecs: Registry, name: str, *, batch: bool) -> Fill:
    if batch:
        annotation = _item(annotation, name)
    try:
        return codecs.reader(annotation)
    except ConfigurationError as error:
        raise SignatureError(f"the payload of {name} cannot be read: {error}") from error


def _item(annotation: Any, name: str) -> Any:
    """Return what one message of a batch is decoded into."""
    if annotation is Any or annotation is list:
        return Any
    if typing.get_origin(annotation) in {list, Sequence}:
        return typing.get_args(annotation)[0]
    raise SignatureError(
        f"{name} handles batches, so its payload is a list: annotate it as list[…], not {annotation!r}"
    )


def _is_message(annotation: Any, *, batch: bool) -> bool:
    """Tell whether this asks for the message, also as ``Message | None``; in a batch it is a list of them."""
    plain = _plain(annotation)
    if batch and typing.get_origin(plain) in {list, Sequence}:
        plain = typing.get_args(plain)[0]
    return plain is Message


def _asking_for_session(
    parameters: list[inspect.Parameter], annotations: dict[str, Any], name: str, *, is_async: bool, database: bool
) -> inspect.Parameter | None:
    """Return the parameter that asks for a session, if one does and it can be given."""
    asking = [(one, kind) for one in parameters if (kind := _session(annotations.get(one.name, Any)))]
    if not asking:
        return None
    parameter, kind = asking[0]
    if not database:
        raise SignatureError(
            f"{name} asks for a database session in {parameter.name!r}, and this app has no database to open one on"
        )
    if len(asking) > 1:
        raise SignatureError(f"{name} asks for {len(asking)} sessions, and there is one transaction: ask for one")
    given = "AsyncSession" if is_async else "Session"
    if kind != given:
        how = "is a coroutine" if is_async else "is called in a thread"
        raise SignatureError(
            f"{name} {how} and asks for {kind} in {parameter.name!r}: what it can be given is SQLAlchemy's own "
            f"{given}, one for a whole batch"
        )
    return parameter


def _session(annotation: Any) -> str:
    """Return which session this asks for, or an empty string; what is like one but is none is named as written."""
    plain = _plain(annotation)
    if typing.get_origin(plain) in {list, Sequence} and (items := typing.get_args(plain)):
        return f"list[{inner}]" if (inner := _session(items[0])) else ""
    if not inspect.isclass(plain):
        return ""
    for kind in plain.__mro__:
        if (kind.__module__, kind.__qualname__) in _SESSIONS:
            return _SESSIONS[kind.__module__, kind.__qualname__] if kind is plain else plain.__qualname__
    return ""


def _plain(annotation: Any) -> Any:
    """Return a type without ``Annotated`` around it and without ``None`` beside it."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _plain(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        others = [one for one in typing.get_args(annotation) if one is not types.NoneType]
        if len(others) == 1:
            return _plain(others[0])
    return annotation


def _itself(message: Message) -> Message:
    return message


def _is_async(function: Callable[..., Any]) -> bool:
    """Tell whether calling it makes a coroutine. What it wraps is not asked: a wrapper may run that to its end."""
    return inspect.iscoroutinefunction(_bare(function))


def _bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that is run in the end: of a partial the one inside, of an object its method."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return type(function).__call__


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", "") or type(function).__name__)
