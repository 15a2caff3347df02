"""Classify: whether an error will pass, and how to write an error down without trusting it.

Rule: classes match as they do in an ``except`` clause, and the most specific one wins; a tie is permanent.
Rule: an exception is a stranger's code. Whatever it does, nothing here raises, and what is written is bounded.
"""

from __future__ import annotations

import linecache
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from types import TracebackType
from typing import TypeAlias

from carom.core.message import ERROR_LIMIT, ERROR_TYPE_LIMIT, TRACE_LIMIT, clip
from carom.errors import BrokerError, DecodeError, Reject, SignatureError

Errors: TypeAlias = Iterable[type[BaseException]]

PASSING: tuple[type[BaseException], ...] = (
    ConnectionError,
    TimeoutError,
    InterruptedError,
    BlockingIOError,
    BrokerError,
)
"""Transient unless a policy says otherwise: the world was not ready, the message has nothing to do with it."""

LASTING: tuple[type[BaseException], ...] = (
    DecodeError,  # the bytes will be the same next time
    SignatureError,  # the handler will be the same next time
    NotImplementedError,  # and so will code that does not exist
    Reject,  # the handler said so; from inside a task group it arrives here as one leaf among others
)
"""Permanent unless a policy says otherwise. Few: a TypeError may be a deploy in progress, so it is retried."""

_PASSING, _LASTING = frozenset(PASSING), frozenset(LASTING)

FRAMES = 24
"""How many frames of an error are written, the innermost."""
RELATED_FRAMES = 8
"""How many frames of each error that led to it."""
RELATED = 5
"""How many errors that led to it are written."""
_HEADLINE_LIMIT = 300
_LINE_LIMIT = 255


class Classification(StrEnum):
    """Whether a failure will pass. ``unknown`` is retried like ``transient``, but nobody promised anything."""

    TRANSIENT = "transient"
    UNKNOWN = "unknown"
    PERMANENT = "permanent"


_STRICTNESS = tuple(Classification)


@dataclass(frozen=True, slots=True)
class Description:
    """An error written down: plain text within the limits of the headers, safe to store anywhere."""

    type: str
    text: str
    trace: str


def classify(error: BaseException, permanent: Errors = (), transient: Errors = ()) -> Classification:
    """Return whether an error will pass: the two lists decide, and the defaults where the lists are silent.

    Of a group its leaves decide and the strictest wins. Causes and contexts are not looked at: an error that
    was raised *because of* a lost connection says what its author meant it to say.
    """
    lists = (tuple(permanent), tuple(transient))
    return strictest(said(type(leaf), *lists) or presumed(type(leaf)) for leaf in leaves(error))


def said(kind: type[BaseException], permanent: Errors, transient: Errors) -> Classification | None:
    """Return what two lists say of a class of errors; None when neither names it or anything above it."""
    lasting, passing = frozenset(permanent), frozenset(transient)
    if not lasting and not passing:
        return None
    for ancestor in kind.__mro__:
        if ancestor in lasting:
            return Classification.PERMANENT
        if ancestor in passing:
            return Classification.TRANSIENT
    return None


def presumed(kind: type[BaseException]) -> Classification:
    """Return what is presumed of a class of errors that no list names."""
    return said(kind, _LASTING, _PASSING) or Classification.UNKNOWN


def strictest(found: Iterable[Classification]) -> Classification:
    """Return the strictest: one permanent failure condemns, one unknown failure spoils a promise."""
    return max(found, key=_STRICTNESS.index, default=Classification.UNKNOWN)


def leaves(error: BaseException) -> tuple[BaseException, ...]:
    """Return the errors in a group, each once, in order; an error that is not a group is its own leaf.

    Iterative, and each nested group is entered once: neither depth nor sharing makes it slow.
    """
    if not isinstance(error, BaseExceptionGroup):
        return (error,)
    found: dict[int, BaseException] = {}
    entered: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, BaseExceptionGroup):
            found.setdefault(id(one), one)
        elif id(one) not in entered:
            entered.add(id(one))
            waiting.extend(reversed(_members(one)))
    return tuple(found.values())


def describe(error: BaseException) -> Description:
    """Write an error down. Never raises.

    Costs what the error's own ``str()`` costs, a walk along its traceback, and a look into the cache of source
    lines for at most ``FRAMES + RELATED * RELATED_FRAMES`` frames. When the trace is cut, its end is kept.
    """
    kind, words = named(error), worded(error)
    return Description(kind, words, _trace(error, _headline(kind, words)))


def worded(error: BaseException) -> str:
    """Return what an error says, cut to what a header may hold. Never raises."""
    return _text(error, ERROR_LIMIT)


def named(error: BaseException) -> str:
    """Return the qualified name of an error's class, without the module for built-in ones. Never raises."""
    return _guarded(lambda: _qualified(type(error)), ERROR_TYPE_LIMIT, "an error whose class has no name")


def headline(error: BaseException) -> str:
    """Return an error as the last line of a traceback says it, cut to a few hundred bytes. Never raises."""
    return _headline(named(error), _text(error, _HEADLINE_LIMIT))


def _headline(kind: str, words: str) -> str:
    return f"{kind}: {clip(words, _HEADLINE_LIMIT)}".removesuffix(": ")


def _text(error: BaseException, limit: int) -> str:
    return _guarded(lambda: str(error), limit, "(an error that cannot say its text)")


def _qualified(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _guarded(read: Callable[[], str], limit: int, otherwise: str) -> str:
    """Read text from a stranger, cut before it is copied, with NUL written out: no database keeps one in text."""
    try:
        # str's own slicing: a subclass of str may do anything, and 10 MB are not worth encoding for 2 KB.
        cut = str.__getitem__(read(), slice(limit + 1))
    except BaseException:  # noqa: BLE001 - synchronous code of the error itself: what it raises is not for us to obey
        return otherwise
    return clip(cut.replace("\0", "\\x00"), limit)


def _members(group: BaseExceptionGroup[BaseException]) -> tuple[BaseException, ...]:
    # The group's own record of them: a subclass may have put anything in front of the attribute.
    members: tuple[BaseException, ...] = vars(BaseExceptionGroup)["exceptions"].__get__(group)
    return members


def _trace(error: BaseException, head: str) -> str:
    try:
        lines = [*_lines(error), head]
    except BaseException:  # noqa: BLE001 - attributes of the error or a source loader: theirs to raise, not to stop us
        return f"(no trace can be had of this error)\n{head}"
    kept: deque[str] = deque()
    room = TRACE_LIMIT - len("…\n")
    for line in reversed(lines):
        room -= len(line.encode("utf-8", errors="backslashreplace")) + 1
        if room < 0:
            kept.appendleft("…")
            break
        kept.appendleft(line)
    return clip("\n".join(kept), TRACE_LIMIT)


def _lines(error: BaseException) -> Iterator[str]:
    related = list(_related(error))
    for other, link in reversed(related):
        yield from _frames(other, RELATED_FRAMES)
        yield headline(other)
        yield ""
        yield link
        yield ""
    yield from _frames(error, FRAMES)


def _related(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """Yield the errors that led to this one, nearest first: those in a group, then causes and contexts."""
    if isinstance(error, BaseExceptionGroup):
        for leaf in reversed(leaves(error)[:RELATED]):
            yield leaf, "It is one of the errors in this group:"
        return
    one = error
    for _ in range(RELATED):
        if one.__cause__ is not None:
            one = one.__cause__
            yield one, "It caused this error:"
        elif one.__context__ is not None and not one.__suppress_context__:
            one = one.__context__
            yield one, "While it was handled, this error was raised:"
        else:
            return


def _frames(error: BaseException, limit: int) -> Iterator[str]:
    """Yield the innermost frames. Written by hand: `traceback` reads whole chains and parses source for carets."""
    place = error.__traceback__
    inner: deque[TracebackType] = deque(maxlen=limit)
    while isinstance(place, TracebackType):  # a real one cannot be endless
        inner.append(place)
        place = place.tb_next
    for step in inner:
        code = step.tb_frame.f_code
        linecache.lazycache(code.co_filename, step.tb_frame.f_globals)
        yield from _place(code.co_filename, step.tb_lineno or 0, code.co_qualname)


@lru_cache(maxsize=1024)  # the same few places fail again and again
def _place(file: str, line: int, function: str) -> tuple[str, ...]:
    told = clip(f'  File "{file}", line {line}, in {function}', _LINE_LIMIT)
    source = linecache.getline(file, line).strip()
    return (told, clip(f"    {source}".replace("\0", "\\x00"), _LINE_LIMIT)) if source else (told,)
