"""Auto: which layout suits a server and these policies, and why; a choice people can read.

Rule: what suits every server is chosen unless there is a reason that can be said in a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

from carom.core.lint import version_of
from carom.core.settlement import Plan
from carom.layouts.native import ladder
from carom.layouts.shared import distinct_delays

NATIVE_SINCE = (4, 3)
MANY_DELAYS = 28
"""From more distinct delays than this on, the queues of `binary` are fewer."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A layout by its name, and the sentence that says why."""

    name: str
    why: str


def choose(server: str, plans: tuple[Plan, ...]) -> Choice:
    """Return the layout for a server of this version, which is empty when it does not say one."""
    retrying = [plan for plan in plans if plan.retry.attempts > 1]
    fitting = [plan.queue for plan in retrying if ladder(plan) is not None]
    new = version_of(server) >= NATIVE_SINCE
    if new and fitting:
        which = "every policy waits" if len(fitting) == len(retrying) else f"the policies of {', '.join(fitting)} wait"
        return Choice("native", f"RabbitMQ {server} delays by itself, and {which} in equal steps")
    delays = distinct_delays(plans)
    if len(delays) > MANY_DELAYS and not any(delay % 1_000 for delay in delays):
        return Choice("binary", f"the policies ask for {len(delays)} distinct delays, and 28 queues make any of them")
    if new:
        return Choice("shared", f"RabbitMQ {server} delays by itself, but in equal steps, and no policy here waits so")
    version = f"RabbitMQ {server}" if server else "a server that does not say its version"
    return Choice("shared", f"it means the same everywhere, and {version} does not delay by itself")
