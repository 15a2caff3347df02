"""Batches: many messages in one call, and still an outcome for each.

Rule: one bad message must not condemn the others. A handler that knows which failed raises BatchFailure; when it
raises anything else, nobody knows, and the messages are handled again one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from carom.core.message import Message
from carom.core.outcome import Done, Failed, Interrupted, Outcome, Reject
from carom.errors import BatchFailure
from carom.runtime.attempt import DONE, outcome_of
from carom.runtime.inbox import Ended

InTransaction: TypeAlias = Callable[[Sequence[int]], Awaitable[Ended]]
"""Handles the messages at these places in one transaction; the answer tells of places among them."""
AttemptBatch: TypeAlias = Callable[[Sequence[Message]], Awaitable[Outcome]]


async def handle_batch(
    messages: Sequence[Message], attempt: AttemptBatch, is_readable: Callable[[Message], bool]
) -> list[Outcome]:
    """Return an outcome for each message, in their order."""
    if not messages:
        return []
    outcome = await attempt(messages)
    if isinstance(outcome, Done | Interrupted):
        return [outcome] * len(messages)
    told = _told(outcome, len(messages))
    if told is not None:
        return told
    if len(messages) == 1:
        return [outcome]
    if isinstance(outcome, Reject) and outcome.why == "malformed":
        return await _without_unreadable(messages, attempt, is_readable)
    return await _one_by_one(messages, attempt)


async def handle_in_transactions(
    size: int, attempt: InTransaction, is_readable: Callable[[int], bool]
) -> list[Outcome | None]:
    """Return an outcome for each message, in their order; None for a duplicate.

    Nothing of a batch that failed is left, so whoever did not fail is handled again: the others as a batch when the
    handler told which failed, and otherwise each on its own.
    """
    outcomes: dict[int, Outcome | None] = {}
    todo: deque[Sequence[int]] = deque([range(size)] if size else [])
    while todo:
        places = todo.popleft()
        ended = await attempt(places)
        outcomes |= {places[index]: known for index, known in ended.known.items()}
        new = [places[index] for index in ended.new]
        outcome = ended.outcome
        told = _told(outcome, len(new))
        if told is not None:
            outcomes |= {place: one for place, one in zip(new, told, strict=True) if one is not DONE}
            todo.append([place for place in new if place not in outcomes])
        elif isinstance(outcome, Done | Interrupted) or len(new) == 1:
            outcomes |= dict.fromkeys(new, outcome)
        else:
            is_malformed = isinstance(outcome, Reject) and outcome.why == "malformed"
            readable = [place for place in new if is_readable(place)] if is_malformed else []
            together = readable if len(readable) < len(new) else []
            todo.append(together)
            todo.extend([place] for place in new if place not in together)
        while todo and not todo[0]:
            todo.popleft()
    return [outcomes[place] for place in range(size)]


async def _one_by_one(messages: Sequence[Message], attempt: AttemptBatch) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for message in messages:
        outcome = await attempt((message,))
        told = _told(outcome, 1)
        outcomes.append(told[0] if told is not None else outcome)
    return outcomes


async def _without_unreadable(
    messages: Sequence[Message], attempt: AttemptBatch, is_readable: Callable[[Message], bool]
) -> list[Outcome]:
    """Handle the readable ones as a batch and each of the others alone, so that it gets its own rejection."""
    readable = [message for message in messages if is_readable(message)]
    if len(readable) in {0, len(messages)}:
        return await _one_by_one(messages, attempt)
    handled = iter(await handle_batch(readable, attempt, is_readable))
    kept = {id(message) for message in readable}
    return [next(handled) if id(message) in kept else await attempt((message,)) for message in messages]


def _told(outcome: Outcome, size: int) -> list[Outcome] | None:
    """Return what a BatchFailure says of each message; None when it says nothing usable."""
    if not isinstance(outcome, Failed) or not isinstance(outcome.error, BatchFailure):
        return None
    errors = outcome.error.errors
    if not errors or not all(isinstance(index, int) and 0 <= index < size for index in errors):
        return None
    return [outcome_of(errors[index]) if index in errors else DONE for index in range(size)]
