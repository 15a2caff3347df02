"""A topology as a graph, in Mermaid and in Graphviz's DOT.

Rule: names are other people's. In a graph they are text inside quotes, whatever is in them; nodes have numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from carom.cli.output import shown
from carom.core.durations import text
from carom.core.topology import DEFAULT_EXCHANGE, Binding, Queue, Topology

Kind: TypeAlias = Literal["exchange", "queue", "delay"]
Line: TypeAlias = Literal["bound", "dead"]


@dataclass(frozen=True, slots=True)
class Node:
    """An exchange or a queue."""

    id: str
    kind: Kind
    label: str


@dataclass(frozen=True, slots=True)
class Edge:
    """A way a message can take: by a binding, or as a dead letter or expired."""

    source: str
    target: str
    label: str
    line: Line


@dataclass(frozen=True, slots=True)
class Graph:
    """What is drawn."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def graph(topology: Topology) -> Graph:
    """Return the exchanges and queues of a topology and every way between them."""
    ids = {("exchange", one.name): f"e{number}" for number, one in enumerate(topology.exchanges)}
    ids |= {("queue", one.name): f"q{number}" for number, one in enumerate(topology.queues)}
    nodes = (
        *(Node(ids["exchange", one.name], "exchange", f"{one.name} ({one.kind})") for one in topology.exchanges),
        *(_queue_node(ids["queue", one.name], one) for one in topology.queues),
    )
    edges = (*_bindings(topology, ids), *_alternates(topology, ids), *_deaths(topology, ids))
    return Graph(nodes, edges)


def mermaid(topology: Topology) -> str:
    """Return a Mermaid flowchart."""
    drawn = graph(topology)
    open_close = {"exchange": ("([", "])"), "queue": ("[", "]"), "delay": ("[/", "/]")}
    lines = ["flowchart LR"]
    for node in drawn.nodes:
        before, after = open_close[node.kind]
        lines.append(f'    {node.id}{before}"{_for_mermaid(node.label)}"{after}')
    for edge in drawn.edges:
        arrow = "-->" if edge.line == "bound" else "-.->"
        label = f'|"{_for_mermaid(edge.label)}"|' if edge.label else ""
        lines.append(f"    {edge.source} {arrow}{label} {edge.target}")
    return "\n".join(lines)


def dot(topology: Topology) -> str:
    """Return a graph for Graphviz."""
    drawn = graph(topology)
    shapes = {"exchange": "ellipse", "queue": "box", "delay": "cds"}
    lines = ["digraph topology {", "    rankdir=LR;", '    node [fontname="monospace"];']
    lines += [f"    {node.id} [shape={shapes[node.kind]}, label={_for_dot(node.label)}];" for node in drawn.nodes]
    for edge in drawn.edges:
        style = "" if edge.line == "bound" else ", style=dashed"
        lines.append(f"    {edge.source} -> {edge.target} [label={_for_dot(edge.label)}{style}];")
    return "\n".join([*lines, "}"])


def _queue_node(identity: str, queue: Queue) -> Node:
    if queue.ttl_ms is None:
        return Node(identity, "queue", queue.name)
    return Node(identity, "delay", f"{queue.name} (waits {text(queue.ttl_ms)})")


Ids: TypeAlias = dict[tuple[str, str], str]


def _bindings(topology: Topology, ids: Ids) -> Iterator[Edge]:
    for one in topology.bindings:
        source, target = ids.get(("exchange", one.source)), ids.get((one.to, one.target))
        if source and target:
            yield Edge(source, target, _binding_label(one), "bound")


def _binding_label(binding: Binding) -> str:
    more = ", ".join(f"{name}={value}" for name, value in binding.arguments)
    return f"{binding.key} {more}".strip()


def _alternates(topology: Topology, ids: Ids) -> Iterator[Edge]:
    for one in topology.exchanges:
        if one.alternate is not None and (target := ids.get(("exchange", one.alternate))):
            yield Edge(ids["exchange", one.name], target, "unroutable", "dead")


def _deaths(topology: Topology, ids: Ids) -> Iterator[Edge]:
    """Yield where queues send what died or expired in them; through the default exchange that is a queue."""
    for queue in topology.queues:
        exchange, key = queue.dead_letter_exchange, queue.dead_letter_key
        if exchange is None:
            continue
        why = "dead" if queue.ttl_ms is None else f"after {text(queue.ttl_ms)}"
        if exchange == DEFAULT_EXCHANGE:
            target = ids.get(("queue", key or ""))
        else:
            target = ids.get(("exchange", exchange))
            why = why if key is None else f"{why}, key {key}"
        if target:
            yield Edge(ids["queue", queue.name], target, why, "dead")


_SAFE: Callable[[str], bool] = re.compile(r"[A-Za-z0-9_. ,()=*-]").fullmatch  # type: ignore[assignment]  # a match is true


def _for_mermaid(label: str) -> str:
    """Write every character that could mean something to Mermaid as its number."""
    return "".join(one if _SAFE(one) else f"#{ord(one)};" for one in shown(label))


def _for_dot(label: str) -> str:
    escaped = shown(label).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
