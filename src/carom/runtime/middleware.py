"""Middleware: functions around every handler, the first declared outermost.

Rule: middleware is called with the message and with what calls the rest; what it returns or raises is the outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from carom.runtime.attempt import Attempt

Middleware: TypeAlias = Callable[[Any, Callable[[Any], Awaitable[Any]]], Awaitable[Any]]
Call: TypeAlias = Callable[[Any, Attempt], Awaitable[Any]]


def chain(innermost: Call, middleware: Sequence[Middleware]) -> Call:
    """Wrap a handler in its middleware. Built once; without middleware it costs nothing."""
    call = innermost
    for wrap in reversed(middleware):
        call = _wrapped(wrap, call)
    return call


def _wrapped(wrap: Middleware, inner: Call) -> Call:
    def call(subject: Any, attempt: Attempt) -> Awaitable[Any]:
        return wrap(subject, lambda passed: inner(passed, attempt))

    return call
