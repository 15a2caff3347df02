"""A topology as text for people: what listens, what happens to its failures, and what exists for that.

Rule: no line depends on the width of a terminal; what is too long is long, never cut.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

import click
from rich.cells import cell_len

from carom.cli.output import shown
from carom.core.durations import text
from carom.core.routing import NO_HEADERS, router
from carom.core.settlement import Layout
from carom.core.topology import DEFAULT_EXCHANGE, Exchange, Queue, Topology
from carom.core.wire import Address
from carom.layouts import sampled
from carom.runtime.app import App
from carom.runtime.listener import Listener


def picture(app: App, layout_name: str, layout: Layout) -> str:
    """Return the whole of an app's topology as text."""
    topology = layout.topology
    blocks = [
        click.style(shown(app.name), bold=True)
        + shown(f": layout {layout_name}, exchange {app.exchange}, namespace {app.namespace}"),
        *(_listener(one, app.exchange, layout) for one in app.listeners),
        _section("exchanges", ("name", "kind", "", ""), [_exchange_row(one) for one in topology.exchanges]),
        _section("queues", ("name", "kind", "waits", "dead letters to", "limits"), map(_queue_row, topology.queues)),
        _section("bindings", ("from", "key", "to"), list(_binding_rows(topology))),
    ]
    return "\n\n".join(block for block in blocks if block)


def _listener(listener: Listener, exchange: str, layout: Layout) -> str:
    plan, find = listener.plan, router(layout.topology)

    def reached(address: Address) -> str:
        return shown(", ".join(sorted(find(address.exchange, address.routing_key, NO_HEADERS))))

    width = max((cell_len(shown(key)) for key in plan.keys), default=0)
    ways = [
        shown(f"  {exchange} ── {_padded(shown(key), width)} ──▶ {plan.queue} ──▶ {listener.handler.name}")
        for key in plan.keys
    ] or [shown(f"  {plan.queue} ──▶ {listener.handler.name}   (bound to nothing)")]
    waits = [(text(delay), reached(layout.delay_address(plan.queue, delay))) for delay in _used(listener, layout)]
    longest = max((len(delay) for delay, _ in waits), default=0)
    ways += [f"      a failure waits {delay:>{longest}} in {queue}, and comes back" for delay, queue in waits]
    ways.append(f"      the last failure ends in {reached(layout.dead_address(plan.queue))}")
    return "\n".join(
        [
            click.style(shown(plan.queue), bold=True),
            *ways,
            f"  {_manner(listener)}",
            "",
            *(f"  {shown(line)}".rstrip() for line in plan.retry.table().splitlines()),
        ]
    )


def _used(listener: Listener, layout: Layout) -> list[int]:
    """Return the delays of the layout that this listener's policy can ask for."""
    policy, there = listener.plan.retry, layout.delays(listener.queue)
    if policy.open_ended:
        return list(sampled(layout, listener.queue))
    wanted = [delay for delay in policy.possible_delays() if delay > 0]
    return sorted({there[min(bisect_left(there, delay), len(there) - 1)] for delay in wanted}) if there else []


def _manner(listener: Listener) -> str:
    parts = [f"{listener.concurrency} at once", f"prefetch {listener.prefetch}"]
    if listener.batch is not None:
        parts.append(f"batches of {listener.batch}")
    if listener.timeout_ms is not None:
        parts.append(f"timeout {text(listener.timeout_ms)}")
    return ", ".join([*parts, f"crash limit {listener.plan.crash_limit}"])


def _exchange_row(exchange: Exchange) -> tuple[str, ...]:
    flags = ["" if exchange.durable else "transient", "internal" if exchange.internal else ""]
    alternate = "" if exchange.alternate is None else f"unroutable to {exchange.alternate}"
    return exchange.name, exchange.kind, " ".join(flag for flag in flags if flag), alternate


_SAID_ELSEWHERE = {"x-queue-type", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key"}


def _queue_row(queue: Queue) -> tuple[str, ...]:
    limits = [f"{name.removeprefix('x-')}={value}" for name, value in queue.arguments if name not in _SAID_ELSEWHERE]
    waits = "" if queue.ttl_ms is None else text(queue.ttl_ms)
    kind = queue.kind if queue.durable else f"{queue.kind}, transient"
    return queue.name, kind, waits, _dead_letters(queue), " ".join(limits)


def _dead_letters(queue: Queue) -> str:
    exchange, key = queue.dead_letter_exchange, queue.dead_letter_key
    if exchange is None:
        return ""
    if exchange == DEFAULT_EXCHANGE:
        return f"queue {key}" if key is not None else "the queue of their key"
    return exchange if key is None else f"{exchange} as {key}"


def _binding_rows(topology: Topology) -> Iterator[tuple[str, ...]]:
    for one in topology.bindings:
        target = one.target if one.to == "queue" else f"{one.target} (exchange)"
        more = " ".join(f"{name}={value}" for name, value in one.arguments)
        yield one.source, f"{one.key} {more}".strip(), target


def _section(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows in columns as wide as what is in them; a column with nothing in it is left out."""
    cells = [[shown(cell) for cell in row] for row in rows]
    used = [column for column in range(len(headings)) if any(row[column] for row in cells)]
    if not used:
        return ""
    table = [[headings[column] for column in used], *([row[column] for column in used] for row in cells)]
    widths = [max(cell_len(row[column]) for row in table) for column in range(len(used))]
    lines = ["  " + "  ".join(map(_padded, row, widths)).rstrip() for row in table]
    return "\n".join([click.style(title, bold=True), click.style(lines[0], dim=True), *lines[1:]])


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - cell_len(cell))
