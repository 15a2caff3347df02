"""Migration: the steps from the topology that is there to the one that is wanted, without losing a message.

A queue cannot be changed, and it cannot be renamed. So while it is replaced, a stand-in takes its place:

    declare      everything new, and a stand-in for each queue that differs and each that feeds one by its name
    redirect     what leads to a queue is bound to its stand-in, then unbound from the queue
    drain        move what is in the queues to their stand-ins, until they are quiet: nothing in them, in nobody's hands
    replace      delete the queue that is quiet, declare it anew
    return       what led to the stand-in leads to the queue again; move back what the stand-in holds
    remove       the stand-ins, when nothing is in them; then what is left over, when nobody uses it

Rule: the plan is made from what is there, stand-ins included, and from nothing else: whoever was killed plans again and
goes on. Every step can be done twice. A message is always in a queue that a later step empties into its own.
Rule: a message may come twice while ways are redirected, with the same id; none is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from carom.core.message import NAME_LIMIT
from carom.core.topology import Binding, Exchange, Queue, Topology, diff, quorum

STAND_IN = "carom.migrating."
"""How the name of a stand-in begins; what follows is the name of the queue. Its fanout exchange has the same name."""
BACK = "carom.migrating-back."
"""How the name of the exchange begins through which messages come back."""
_UNLIMITED = 1_000_000


@dataclass(frozen=True, slots=True)
class Move:
    """Move the messages of a queue through an exchange that takes any key, so that they keep theirs.

    ``home`` is the queue whose handler they are for, where that is certain. Without an ``exchange`` each message says
    where it belongs, which is a stand-in for those queues that have one (``standing``). ``certain`` says that nobody
    but the layout there was has written to the queue.
    """

    queue: str
    exchange: str
    home: str = ""
    certain: bool = False
    standing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Carried:
    """A change of layout: what is in queues that stay is ``rewritten``, what is in others goes ``away``."""

    rewritten: frozenset[str] = frozenset()
    away: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Declare:
    """Make these things; what is there as it should be is left alone."""

    topology: Topology
    why: str

    def __str__(self) -> str:
        things = [*(one.name for one in self.topology.exchanges), *(one.name for one in self.topology.queues)]
        ways = f" and {len(self.topology.bindings)} bindings" if self.topology.bindings else ""
        return f"declare {self.why}: {', '.join(dict.fromkeys(things)) or 'nothing new'}{ways}"


@dataclass(frozen=True, slots=True)
class Unbind:
    """Remove these bindings: another way was made before."""

    bindings: tuple[Binding, ...]

    def __str__(self) -> str:
        return "unbind " + ", ".join(f"{one.target} from {one.source}" for one in self.bindings)


@dataclass(frozen=True, slots=True)
class Replace:
    """Drain queues, with confirms, until they are quiet; then delete those that differ and declare them anew."""

    moves: tuple[Move, ...]
    queues: tuple[Queue, ...]

    def __str__(self) -> str:
        drained = ", ".join(move.queue for move in self.moves)
        anew = ", ".join(queue.name for queue in self.queues)
        return f"drain {drained} with confirms until nothing is in them and in nobody's hands, counted twice" + (
            f"; then delete and declare anew: {anew}" if anew else ""
        )


@dataclass(frozen=True, slots=True)
class Return:
    """Move back, with confirms, what stand-ins hold, until they are quiet; then remove them."""

    moves: tuple[Move, ...]
    exchanges: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"move back what is in {', '.join(move.queue for move in self.moves)}, with confirms; "
            "remove them when nothing is in them, counted twice"
        )


@dataclass(frozen=True, slots=True)
class Clear:
    """Remove what is left over, when it is empty and nobody uses it."""

    def __str__(self) -> str:
        return "remove what is left over, where it is empty and nobody uses it, looked at twice"


Step: TypeAlias = Declare | Unbind | Replace | Return | Clear


@dataclass(frozen=True, slots=True)
class Migration:
    """The steps, in order, or why there is no way."""

    steps: tuple[Step, ...] = ()
    obstacles: tuple[str, ...] = ()


def migration(wanted: Topology, there: Topology, carried: Carried = Carried()) -> Migration:
    """Return the steps from what is there to what is wanted; ``carried`` where messages are translated on the way."""
    found = diff(wanted, there)
    differing = {change.name for change in found.changed if change.thing == "queue"}
    obstacles = tuple(_obstacles(wanted, there, differing))
    if obstacles:
        return Migration(obstacles=obstacles)
    rewritten = {name for name in carried.rewritten if differing and there.queue(name) is not None}
    parked = (*sorted(differing), *sorted((_feeders(differing, there) | rewritten) - differing - carried.away))
    standing = tuple(dict.fromkeys((*parked, *_standing(there))))
    handled = {one.target for one in wanted.bindings if getattr(wanted.exchange(one.source), "public", False)}
    new = tuple(one for one in found.missing_bindings if one.to == "exchange" or one.target not in standing)
    beside = Topology(found.missing_exchanges, found.missing_queues, new)
    steps: list[Step] = [] if beside == Topology() else [Declare(beside, "what is new")]
    if standing:
        steps.append(Declare(_stand_ins(standing, differing, there), "stand-ins"))
    inward = tuple(one for name in sorted(differing) for one in _ways(name, there))
    if inward:
        steps.append(Unbind(inward))
    leaving = sorted(name for name in carried.away if there.queue(name) is not None)
    if differing:
        homes = {name: name if name in handled else "" for name in parked}
        moves = [Move(name, STAND_IN + name, home, certain=name in differing) for name, home in homes.items()]
        moves += [Move(name, "", certain=True, standing=standing) for name in leaving]
        steps.append(Replace(tuple(moves), tuple(queue for queue in wanted.queues if queue.name in differing)))
    if standing:
        steps += _return(wanted, there, standing, handled)
    if leaving and not differing:
        steps.append(Replace(tuple(Move(name, "", certain=True) for name in leaving), ()))
    return Migration((*steps, Clear()))


def is_stand_in(name: str) -> bool:
    """Tell whether something was made for a migration, which goes on when it is run again."""
    return name.startswith((STAND_IN, BACK))


def _obstacles(wanted: Topology, there: Topology, differing: set[str]) -> Iterator[str]:
    for change in diff(wanted, there).changed:
        if change.thing == "exchange":
            yield (
                f"exchange {change.name!r} has {change.argument} {change.actual!r} and {change.wanted!r} is wanted: "
                "publishers would meet no exchange while it is replaced; give it another name"
            )
    for name in sorted(differing):
        if len((BACK + name).encode()) > NAME_LIMIT:
            yield f"queue {name!r}: its name is too long for that of a stand-in"
        if any(one.argument("x-queue-type") == "stream" for one in (wanted.queue(name), there.queue(name)) if one):
            yield f"queue {name!r} is, or is to be, a stream: reading one takes nothing from it"


def _feeders(differing: set[str], there: Topology) -> set[str]:
    """Return the queues whose dead letters come to a queue by its name, so that unbinding does not stop them."""
    return {
        queue.name
        for queue in there.queues
        if queue.dead_letter_exchange == ""
        and (queue.dead_letter_key is None or queue.dead_letter_key in differing)
        and queue.name not in differing
        and differing
        and not is_stand_in(queue.name)
    }


def _standing(there: Topology) -> tuple[str, ...]:
    """Return the queues for which stand-ins, or parts of them, are there from an earlier time."""
    names = [one.name for one in there.exchanges] + [one.name for one in there.queues]
    return tuple(
        name.removeprefix(prefix) for prefix in (STAND_IN, BACK) for name in sorted(names) if name.startswith(prefix)
    )


def _stand_ins(standing: tuple[str, ...], differing: set[str], there: Topology) -> Topology:
    """Return the stand-ins, and the ways into those whose queue is to be replaced."""
    names = [STAND_IN + name for name in standing]
    return Topology(
        tuple(Exchange(name, "fanout") for name in names),
        tuple(quorum(name, delivery_limit=_UNLIMITED) for name in names),
        (
            *(Binding(name, name) for name in names),
            *(
                replace(one, target=STAND_IN + name)
                for name in standing
                if name in differing
                for one in _ways(name, there)
            ),
        ),
    )


def _return(wanted: Topology, there: Topology, standing: tuple[str, ...], handled: set[str]) -> Iterator[Step]:
    """Yield how what leads to the stand-ins leads to the queues again, and messages follow."""
    kept = tuple(
        replace(one, target=name) for name in standing for one in (*_ways(name, there), *_ways(STAND_IN + name, there))
    )
    new = tuple(one for one in wanted.bindings if one.to == "queue" and one.target in standing)
    back = tuple(Binding(BACK + name, name) for name in standing)
    exchanges = tuple(Exchange(BACK + name, "fanout") for name in standing)
    ways = tuple(dict.fromkeys((*kept, *new)))
    yield Declare(Topology(exchanges, (), (*ways, *back)), "the ways back")
    if kept:
        yield Unbind(tuple(dict.fromkeys(replace(one, target=STAND_IN + one.target) for one in kept)))
    names = tuple(STAND_IN + name for name in standing)
    yield Return(
        tuple(Move(STAND_IN + name, BACK + name, name if name in handled else "") for name in standing),
        (*names, *(BACK + name for name in standing)),
    )


def _ways(queue: str, there: Topology) -> tuple[Binding, ...]:
    """Return what leads to a queue, but for the exchanges of stand-ins."""
    return tuple(
        one for one in there.bindings if one.to == "queue" and one.target == queue and not is_stand_in(one.source)
    )
