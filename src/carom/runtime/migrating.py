"""Migrating: the steps of a migration are done, one after the other, on a broker that works meanwhile.

Rule: what is there is looked at before the first step and decides which steps there are; whoever is killed begins
again in the same way. A queue is deleted only when it is quiet, and is declared anew in the next breath.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol, cast

from carom import failpoints
from carom.core.drift import drift, there
from carom.core.lint import Vhost, of_topology, review
from carom.core.migration import Carried, Clear, Declare, Migration, Replace, Return, Step, Unbind, migration
from carom.core.topology import Queue, Topology
from carom.errors import ConfigurationError, NotConfirmed, TopologyMismatch
from carom.layouts.translation import Translation
from carom.ports import Broker, Changeable, Clock
from carom.runtime.clearing import Notice, clear
from carom.runtime.moving import Mover

TRIES = 20
"""How often to begin again when workers of the old layout start, and bind what was unbound or make what was deleted."""
UNKNOWN_THERE = frozenset({"argument-ignored", "argument-refused"})
"""What a server would not do, though it may well declare it: found before anything is taken away."""


class _Both(Broker, Changeable, Protocol):
    """A broker that can be migrated."""


class Migrating:
    """A migration of one broker to a wanted topology."""

    def __init__(
        self, broker: Broker, clock: Clock, notice: Notice, patience_ms: int, translation: Translation | None = None
    ) -> None:
        """Do nothing yet. Raises ConfigurationError for a broker that nobody can look into."""
        if not isinstance(broker, Changeable):
            raise ConfigurationError("only a RabbitMQ can be migrated")
        self._broker = cast("_Both", broker)
        self._clock = clock
        self._notice = notice
        self._patience_ms = patience_ms
        self._translation = translation

    async def planned(self, wanted: Topology) -> Migration:
        """Return the steps from what is there now, or why this server cannot do what is wanted."""
        seen = await self._broker.observe()
        asked = replace(of_topology(wanted), version=seen.version)
        refused = tuple(f"{one.subject} {one.says}" for one in review(asked) if one.code in UNKNOWN_THERE)
        if refused:
            return Migration(obstacles=refused)
        (vhost,) = seen.vhosts
        return migration(wanted, there(vhost), Carried() if self._translation is None else self._translation.carried)

    async def run(self, wanted: Topology, once: Iterable[Topology]) -> tuple[str, ...]:
        """Do every step; return what stays of what is left over, each with its reason.

        Raises TopologyMismatch when there is no way, and NotConfirmed when queues do not become quiet.
        """
        before = tuple(once)
        for left in range(TRIES, 0, -1):
            steps = await self.planned(wanted)
            if steps.obstacles:
                raise TopologyMismatch(steps.obstacles)
            try:
                for step in steps.steps:
                    if not isinstance(step, Clear):
                        self._notice(str(step))
                        await self._do(step)
                break
            except TopologyMismatch:
                if left == 1:
                    raise
                self._notice("a worker of the old layout has made its queue or its bindings again: once more")
        self._notice(str(Clear()))
        return await self._cleared(wanted, before)

    async def _do(self, step: Step) -> None:
        if isinstance(step, Declare):
            await self._broker.declare(step.topology)
        elif isinstance(step, Unbind):
            for binding in step.bindings:
                await self._broker.unbind(binding)
        elif isinstance(step, Replace):
            await self._replace(step)
        elif isinstance(step, Return):
            await self._return(step)
        if failpoints.ARMED:
            failpoints.reach(f"migrate.{type(step).__name__.lower()}")

    async def _replace(self, step: Replace) -> None:
        mover = Mover(self._broker, step.moves, self._clock, self._translation)
        await mover.until_quiet(self._patience_ms, lambda: self._alone(step.queues))
        self._notice(f"{mover.moved} messages were moved" + (" to stand-ins" if step.queues else ""))
        for queue in step.queues:
            await self._alone([queue])
            depth = (await self._broker.depths([queue.name]))[queue.name]
            if depth is not None and depth.ready:
                raise NotConfirmed(f"queue {queue.name!r} was empty, and now has {depth.ready} messages: run it again")
            await self._broker.remove_queue(queue.name)
            if failpoints.ARMED:
                failpoints.reach("migrate.deleted")
            await self._broker.declare(Topology(queues=(queue,)))

    async def _alone(self, queues: Sequence[Queue]) -> None:
        """Make sure that nothing leads to queues: a worker of the old layout that starts binds its own again."""
        names = {queue.name for queue in queues}
        for one in there(await self._vhost()).bindings:
            if one.to == "queue" and one.target in names:
                raise TopologyMismatch([f"queue {one.target!r} was bound to exchange {one.source!r} again"])

    async def _return(self, step: Return) -> None:
        mover = Mover(self._broker, step.moves, self._clock, self._translation)
        await mover.until_quiet(self._patience_ms)
        self._notice(f"{mover.moved} messages were moved back")
        seen = there(await self._vhost())
        for move in step.moves:
            await self._broker.remove_queue(move.queue)
        for binding in seen.bindings:
            if binding.source in step.exchanges:
                await self._broker.unbind(binding)
        for exchange in step.exchanges:
            await self._broker.remove_exchange(exchange)

    async def _cleared(self, wanted: Topology, once: tuple[Topology, ...]) -> tuple[str, ...]:
        vhost = await self._vhost()
        found = drift(wanted, vhost, once)
        old = {binding for one in once for binding in one.bindings}
        gone = {exchange.name for exchange in found.leftovers.exchanges}
        # A binding that somebody made by hand goes with the queue; only who asks for it, with 'apply', removes it.
        ours = tuple(one for one in found.leftovers.bindings if one in old or one.source in gone)
        leftovers = replace(found.leftovers, bindings=ours)
        return (*found.stays, *await clear(self._broker, leftovers, self._clock, self._notice))

    async def _vhost(self) -> Vhost:
        (vhost,) = (await self._broker.observe()).vhosts
        return vhost
