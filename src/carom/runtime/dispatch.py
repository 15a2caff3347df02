"""A handler's signature, read once: which parameter is the payload, which the message, and how to call it.

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
_SESSIONS = {("sqlalchemy.orm.session", "Session"), ("sqlalchemy.ext.asyncio.session", "AsyncSession")}
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Handler:
    """A function and how each of its parameters is filled from a message."""

    function: Callable[..., Any]
    name: str
    is_async: bool
    positional: tuple[Fill, ...]
    keyword: tuple[tuple[str, Fill], ...]

    def prepare(self, message: Message) -> Callable[[], Any]:
        """Return the call that handles this message. Raises DecodeError when the payload cannot be read."""
        arguments = [fill(message) for fill in self.positional]
        if not self.keyword:
            return _Call(self.function, arguments, {})
        return _Call(self.function, arguments, {name: fill(message) for name, fill in self.keyword})

    def prepare_batch(self, messages: Sequence[Message]) -> Callable[[], Any]:
        """Return the call that handles these messages at once: every parameter gets a list."""
        arguments = [[fill(message) for message in messages] for fill in self.positional]
        keyword = {name: [fill(message) for message in messages] for name, fill in self.keyword}
        return _Call(self.function, arguments, keyword)


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


def read_handler(function: Callable[..., Any], codecs: Registry, *, batch: bool = False) -> Handler:
    """Read a handler's signature. Raises SignatureError when somebody would have to guess."""
    name = _name(function)
    parameters = _parameters(function, name)
    annotations = _annotations(function, name)
    payload = _payload(parameters, annotations, name, batch=batch)
    positional: list[Fill] = []
    keyword: list[tuple[str, Fill]] = []
    for parameter in parameters:
        annotation = annotations.get(parameter.name, Any)
        if parameter.name == payload:
            fill = _reader(annotation, codecs, name, batch=batch)
        elif _is_message(annotation, batch=batch):
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
    return Handler(function, name, _is_async(function), tuple(positional), tuple(keyword))


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
    free = []
    for parameter in parameters:
        annotation = annotations.get(parameter.name, Any)
        if _is_session(annotation):
            raise SignatureError(
                f"{name} asks for a database session in {parameter.name!r}, and this app has no database to open one on"
            )
        if not _is_message(annotation, batch=batch):
            free.append(parameter)
    needed = [parameter for parameter in free if parameter.default is inspect.Parameter.empty] or free[:1]
    if len(needed) > 1:
        names = ", ".join(repr(parameter.name) for parameter in needed)
        raise SignatureError(
            f"{name} has {len(needed)} parameters that could be the payload: {names}. Exactly one receives it; "
            "annotate the others (Message) or give them defaults"
        )
    if not parameters:
        raise SignatureError(f"{name} takes no parameter: give it one for the payload, or one annotated with Message")
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


def _is_session(annotation: Any) -> bool:
    plain = _plain(annotation)
    return (getattr(plain, "__module__", ""), getattr(plain, "__qualname__", "")) in _SESSIONS


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
