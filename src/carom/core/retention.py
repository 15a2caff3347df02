"""Retention: how long what was handled has to be remembered, so that nothing of it comes later.

Rule: what is forgotten could be handled twice. The inbox therefore remembers for longer than a message can be on its
way: through the longest ladder of retries, and then for as long as people may send a dead letter again.
Rule: only what a policy says beforehand is counted. A delay that a handler asks for, or the function of a custom
policy chooses, is not known here; such listeners need time to spare.
"""

from __future__ import annotations

from carom.core.durations import text
from carom.core.retry import RetryPolicy, stretched
from carom.errors import ConfigurationError


def ladder(policy: RetryPolicy) -> tuple[int, ...]:
    """Return the longest delay before every further attempt, jitter included, whichever errors come in turn."""
    policies = _with_overrides(policy)
    longest = max(len(one.delays_ms) for one in policies)
    return tuple(max(_after(one, attempt) for one in policies) for attempt in range(longest))


def check_retention(queue: str, policy: RetryPolicy, keep_seen_ms: int, replay_window_ms: int) -> None:
    """Refuse to forget too early, with the arithmetic. Raises ConfigurationError."""
    delays = ladder(policy)
    needed = sum(delays) + replay_window_ms
    if keep_seen_ms > needed:
        return
    raise ConfigurationError(
        f"keep_seen={text(keep_seen_ms)!r} is too short for {queue}: its retries may take {_sum(delays)}, and a dead "
        f"letter may be sent again for {text(replay_window_ms)} after that (replay_window), {text(needed)} together; a "
        "message that comes after it was forgotten would be handled twice. Say a longer keep_seen, a shorter "
        "replay_window, or fewer and shorter retries"
    )


def _with_overrides(policy: RetryPolicy) -> list[RetryPolicy]:
    found = [policy]
    for one in found:
        found.extend(retry for _, retry in one.overrides)
    return found


def _after(policy: RetryPolicy, attempt: int) -> int:
    return stretched(policy.delays_ms[attempt], policy.jitter, 3) if attempt < len(policy.delays_ms) else 0


def _sum(delays: tuple[int, ...]) -> str:
    """Write a ladder as a sum; a long one by its ends."""
    if not delays:
        return "no time"
    shown = [text(delay) for delay in delays]
    if len(shown) > _SHOWN:
        shown = [*shown[: _SHOWN - 2], "…", shown[-1]]
    total = text(sum(delays))
    return total if len(delays) == 1 else f"{' + '.join(shown)} = {total}"


_SHOWN = 6
