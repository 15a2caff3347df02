"""App: declare listeners, wire, start, stop. The one facade.

Rule: declaring does nothing but check; everything that talks to a broker happens between start and stop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from carom import adapters
from carom.codecs import Registry, standard
from carom.core.durations import Duration, milliseconds
from carom.core.message import Message
from carom.core.retry import RetryPolicy
from carom.core.settlement import Layout, Plan
from carom.core.topology import Topology
from carom.errors import ConfigurationError
from carom.layouts import Choice, Chosen, as_auto, chosen
from carom.ports import Broker, Clock, Database, Location, Mode, Observer, Store
from carom.runtime import events, settings
from carom.runtime.announcing import Announcing
from carom.runtime.asking import Asking
from carom.runtime.choosing import suited
from carom.runtime.clock import RealClock
from carom.runtime.consumer import Consumer
from carom.runtime.gate import Gate
from carom.runtime.housekeeping import Housekeeping
from carom.runtime.later import delayed, later_listener, later_plan
from carom.runtime.listener import CRASH_LIMIT, Listener, Options, listener
from carom.runtime.middleware import Middleware
from carom.runtime.presence import Presence
from carom.runtime.publisher import Outgoing, Publisher
from carom.runtime.relay import PACE, Pace, Relay
from carom.runtime.signals import asking_to_stop
from carom.runtime.surroundings import Surroundings
from carom.runtime.suspects import Suspects

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Middleware)
O = TypeVar("O", bound=Outgoing)  # noqa: E741 - a type variable, not a number
Delays = RetryPolicy | Sequence[Duration] | None

DEFAULT_RETRY: Sequence[Duration] = ("1s", "10s", "1m", "5m")
_MODES = ("apply", "verify", "ignore")
RELAY_GRACE_MS = 2_000
"""What a relay has at least to finish what is on its way, when handlers took all of the grace."""
_UNSAID: Any = object()
_log = logging.getLogger("carom")


class App(Announcing):
    """Listeners on an exchange, and the way to publish to it.

    Nothing is connected before `start`, `run` or ``async with app:``. One app belongs to one event loop at a time.
    Its broker is given by a URL, by a list with the URL of each host of a cluster, by a function that is asked for
    either before every connection, so that credentials may change, or as an object.
    """

    relay: Relay | None = None
    _broker: Broker | None = None
    _store: Store | None = None
    _suspects: Suspects | None = None
    _housekeeping: Housekeeping | None = None
    _has_own_store = True
    _started = False
    choice: Choice | None = None  # what layout="auto" came to at the last start, and why

    def __init__(
        self,
        broker: Location | Broker = "embedded://",
        *,
        database: object = None,
        exchange: str = "events",
        namespace: str = "carom",
        layout: str | Chosen = "shared",
        name: str = "app",
        retry: Delays = DEFAULT_RETRY,
        grace: Duration = "30s",
        delays: Sequence[Duration] = (),
        topology: Mode = "apply",
        observers: Sequence[Observer] | None = None,
    ) -> None:
        """Check what is given; connect to nothing.

        ``database`` is a URL, an engine of SQLAlchemy's or a `Database`, which says more about it. ``layout`` is a name
        or one of `carom.layouts` with its switches. ``retry`` is the default for listeners, ``grace`` is how long
        running handlers may go on when the app stops, ``delays`` are those that ``publish(delay=…)`` may use,
        ``topology`` is whether to declare what is missing, only to verify it, or to ignore it.
        """
        if topology not in _MODES:
            raise ConfigurationError(f"topology={topology!r} is not one of {', '.join(_MODES)}")
        settings.check_names(exchange=exchange, namespace=namespace, name=name)
        self.name = name
        self.exchange = exchange
        self.namespace = namespace
        self.listeners: list[Listener] = []
        self.consumers: tuple[Consumer, ...] = ()
        self._address = settings.address(broker)
        self._database = settings.database(database)
        self.chosen_layout: Chosen = chosen(layout)
        self.layout_name: str = self.chosen_layout.name
        self._retry = retry
        self._grace_ms = milliseconds(grace)
        self._later = later_plan(namespace, tuple(delays))
        self._mode: Mode = topology
        self._observers: list[Observer] = list([adapters.logging_observer()] if observers is None else observers)
        self._middleware: list[Middleware] = []
        self._outgoing: list[Outgoing] = []
        self._codecs: Registry = standard()
        self._clock: Clock = RealClock()
        self._presence = Presence()
        self._publisher = self._make_publisher()
        self._asked_to_stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._ending = asyncio.Lock()

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None, **options: Any) -> Self:
        """Return an app configured by ``CAROM_…`` variables; what is given as an option wins over them."""
        found: dict[str, Any] = dict(settings.from_environment(os.environ if environment is None else environment))
        if "retry" in found:
            found["retry"] = settings.durations(found["retry"])
        return cls(**{**found, **options})

    # -- declaring -----------------------------------------------------------------------------------------

    def listen(
        self,
        *binding_keys: str,
        queue: str | None = None,
        retry: Delays = _UNSAID,
        concurrency: int = 16,
        prefetch: int | None = None,
        timeout: Duration | None = None,
        idempotent: bool = False,
        batch: int | None = None,
        crash_limit: int = CRASH_LIMIT,
    ) -> Callable[[F], F]:
        """Declare a listener; the function stays callable as it was. Raises ConfigurationError at once."""
        chosen = self._retry if retry is _UNSAID else retry
        if any(callable(key) for key in binding_keys):
            raise ConfigurationError('a listener is declared with parentheses: @app.listen("order.created")')
        options = Options(queue, chosen, concurrency, prefetch, timeout, idempotent, batch, crash_limit)

        def declare(function: F) -> F:
            if self._broker is not None:
                raise ConfigurationError(f"{function!r} cannot listen: the app {self.name!r} runs already")
            declared = listener(function, binding_keys, options, self.name, self._codecs, self._database)
            for other in self.listeners:
                if other.queue == declared.queue:
                    raise ConfigurationError(
                        f"{declared.handler.name} and {other.handler.name} would both take from queue "
                        f"{declared.queue!r}, each message going to one of them by chance: name another queue"
                    )
            self._layout((*self._plans(), declared.plan))
            self.listeners.append(declared)
            return function

        return declare

    def middleware(self, function: M) -> M:
        """Wrap every handler: ``async def timing(message, call): ...; return await call(message)``.

        The first declared is outermost. A batch handler's middleware is called with the list of messages.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(f"{function!r} yields: middleware says 'return await call(message)' instead")
        self._middleware.append(function)
        return function

    def outgoing(self, function: O) -> O:
        """See every message before it is published, and return it, changed or not."""
        if inspect.iscoroutinefunction(function):
            raise ConfigurationError(f"{function!r} is async, and what sees outgoing messages is a plain function")
        self._outgoing.append(function)
        return function

    def observe(self, observer: Observer) -> Observer:
        """Call this with everything that happens from the next start on; see `carom.runtime.events`."""
        self._observers.append(observer)
        return observer

    def unobserve(self, observer: Observer) -> None:
        """Stop calling this observer."""
        self._observers.remove(observer)

    @property
    def layout(self) -> Layout:
        """Return how this app's retries are laid out on the broker."""
        return self._layout(self._plans())

    def in_layout(self, name: str) -> Layout:
        """Return how its retries would be laid out in the layout of that name."""
        return self.layout if name == self.layout_name else self._layout(self._plans(), name)

    @property
    def topology(self) -> Topology:
        """Return everything this app needs to exist on the broker."""
        return self.layout.topology

    @property
    def database(self) -> Database | None:
        """Return the database it was given, and how it is used."""
        return self._database

    @property
    def store(self) -> Store:
        """Return the database as Carom uses it. Raises ConfigurationError in an app that has none."""
        if self._store is None:
            if self._database is None:
                raise ConfigurationError(
                    f"the app {self.name!r} has no database to emit into: say App(…, database='postgresql+asyncpg://…')"
                )
            self._store = adapters.store(self._database)
        return self._store

    @property
    def address(self) -> Location | Broker:
        """Return the broker it was given: where it is, or the broker itself."""
        return self._address

    @property
    def grace_ms(self) -> int:
        """Return how long running handlers may go on when the app stops."""
        return self._grace_ms

    def configure(
        self, *, broker: Location | Broker | None = None, database: object = None, grace: Duration | None = None
    ) -> None:
        """Let whoever runs the app decide otherwise than its program did; before it starts, not later."""
        if self._broker is not None:
            raise ConfigurationError(f"the app {self.name!r} runs already: configure it before it starts")
        if broker is not None:
            self._address = settings.address(broker)
        if database is not None:
            self._database, self._store = settings.database(database, self._database), None
            for declared in self.listeners:
                declared.check(self._database)
        if grace is not None:
            self._grace_ms = milliseconds(grace)

    # -- running -------------------------------------------------------------------------------------------

    async def run(self, *, consume: bool = True, relay: bool | None = None, collect: bool | None = None) -> None:
        """Run until SIGINT or SIGTERM, or until `ask_to_stop`.

        Then take no more, let running handlers finish within the grace, hand back the rest. A second signal
        does not wait. With a database it relays the outbox too, unless ``relay`` says no.
        """
        if collect:
            raise ConfigurationError("collect is not there yet: dead letters stay in their queues")
        self._check_stopped()
        self._renew()
        with asking_to_stop(self.ask_to_stop):
            try:
                await self._begin_unless_asked_to_stop(self._begin(consume=consume, relay=relay))
                await self._asked_to_stop.wait()
            finally:
                await self.stop()

    def ask_to_stop(self) -> None:
        """Let `run` come to its end; asked a second time, without waiting for handlers."""
        if self._asked_to_stop.is_set():
            self._hurry.set()
        self._asked_to_stop.set()

    async def start(
        self,
        *,
        consume: bool = True,
        relay: bool | None = None,
        broker: Broker | None = None,
        clock: Clock | None = None,
        store: Store | None = None,
        pace: Pace = PACE,
    ) -> None:
        """Connect, make the topology and the tables exist, begin to consume and, with a database, to relay.

        A broker, a clock, a store and the pace of a relay can be given instead of the app's own, for tests.
        """
        self._check_stopped()
        self._renew()
        await self._begin(consume=consume, relay=relay, broker=broker, clock=clock, store=store, pace=pace)

    async def _begin(
        self,
        *,
        consume: bool,
        relay: bool | None,
        broker: Broker | None = None,
        clock: Clock | None = None,
        store: Store | None = None,
        pace: Pace = PACE,
    ) -> None:
        if relay and self._database is None:
            raise ConfigurationError(f"the app {self.name!r} has no database whose outbox it could relay")
        self._clock = clock or RealClock()
        self._publisher = self._make_publisher()
        where = "" if self._database is None else settings.shown(self._database)
        self._presence = Presence(where, self.tell if self._observers else None)
        self._publisher.broker = self._broker = broker or self._connect()
        if store is not None:
            self._store, self._has_own_store = store, False
        try:
            if self._database is not None:
                await self.store.open(self._database.tables)
            await self._broker.open()
            if self.layout_name == "auto":
                self.choice = await suited(self._broker, self._plans(), self.in_layout, self._mode)
                self.chosen_layout = as_auto(self.choice)
            await self._restore()
            if self._database is not None and (consume or relay is not False):
                self._keep_outbox(self._broker, self._database, pace, relay=relay is not False)
            if consume:
                await self._consume(self._broker)
        except BaseException:
            await self.stop(grace=0)
            raise
        self._started = True
        self.tell(events.Started(app=self.name, queues=tuple(one.listener.queue for one in self.consumers)))

    async def stop(self, grace: Duration | None = None) -> None:
        """Take no more, finish what runs within the grace, hand back the rest, disconnect."""
        if self._broker is None:
            return
        grace_ms = self._grace_ms if grace is None else milliseconds(grace)
        async with self._ending:  # whoever asks a second time waits for the first
            if self._broker is not None:
                await self._end(self._broker, grace_ms)

    async def _end(self, broker: Broker, grace_ms: int) -> None:
        consumers, self.consumers = self.consumers, ()
        until = time.monotonic() + grace_ms / 1000
        began = bool(self._started or consumers)  # an app that never began has nothing to stop: its error says it all
        self._started = False
        if began:
            self.tell(events.Stopping(app=self.name, running=sum(one.running for one in consumers)))
        try:
            suspects, self._suspects = self._suspects, None
            if suspects is not None:
                await suspects.stop()
            await asyncio.gather(*(one.stop_taking() for one in consumers))
            abandoned = sum(await asyncio.gather(*(one.finish(grace_ms, self._hurry) for one in consumers)))
        finally:
            await self._leave_outbox(max(min(grace_ms, RELAY_GRACE_MS), int((until - time.monotonic()) * 1000)))
            self._broker = self._publisher.broker = None
            try:
                await broker.close()
            finally:
                await self._close_store()
        if began:
            self.tell(events.Stopped(app=self.name, abandoned=abandoned))

    async def __aenter__(self) -> Self:
        """Start, for use inside another program."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        await self.stop()

    @property
    def healthy(self) -> bool:
        """Tell whether every handler can still be stopped when its time is over."""
        return not any(one.stuck for one in self.consumers)

    @property
    def busy(self) -> int:
        """Return how many messages are in this app's hands."""
        return sum(one.busy for one in self.consumers)

    # -- inside --------------------------------------------------------------------------------------------

    def _plans(self) -> tuple[Plan, ...]:
        return tuple(one.plan for one in self.listeners)

    def _addressed(self, message: Message, delay: Duration | None) -> Message:
        return message if delay is None else delayed(message, delay, self._later, self.layout)

    async def _forward(self, message: Message) -> None:
        await self._publisher.publish((self._publisher.wire.outgoing(message),))

    def _layout(self, plans: tuple[Plan, ...], name: str | None = None) -> Layout:
        own = () if self._later is None else (self._later,)
        return (chosen(name) if name else self.chosen_layout).build(
            self.namespace, self.exchange, (*plans, *own), self.name
        )

    def _connect(self) -> Broker:
        if adapters.is_location(self._address):
            return adapters.broker(self._address, self._clock, self.tell)
        return cast("Broker", self._address)

    def _check_stopped(self) -> None:
        if self._broker is not None:
            raise ConfigurationError(f"the app {self.name!r} runs already")

    def _renew(self) -> None:
        """Make anew what belongs to one event loop and one run."""
        self._asked_to_stop, self._hurry, self._ending = asyncio.Event(), asyncio.Event(), asyncio.Lock()

    async def _begin_unless_asked_to_stop(self, begin: Coroutine[Any, Any, None]) -> None:
        """Start; a start that takes long, because the broker does or a handler hangs, can be stopped like a run."""
        asked = asyncio.ensure_future(self._asked_to_stop.wait())
        beginning = asyncio.ensure_future(begin)
        try:
            await asyncio.wait({asked, beginning}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            beginning.cancel()
        await asyncio.wait({beginning})
        if not beginning.cancelled():
            beginning.result()

    def _make_publisher(self) -> Publisher:
        notify = self.tell if self._observers else None
        return Publisher(self.exchange, self.name, self._codecs, self._clock, notify, self.layout.wire, self._outgoing)

    async def _restore(self) -> None:
        if self._broker is not None:
            await self._broker.declare(self.topology, self._mode)

    def _keep_outbox(self, broker: Broker, database: Database, pace: Pace, *, relay: bool) -> None:
        notify = self.tell if self._observers else None
        asking = Asking(self._presence, self._clock)
        self._housekeeping = Housekeeping(self.store, self._clock, asking, pace.prune_ms)
        self._housekeeping.start()
        if relay:
            self.relay = Relay(
                self.store,
                broker,
                self._clock,
                asking,
                notify,
                name=self.name,
                restore=self._restore,
                patience=database.patience,
                pace=pace,
            )
            self.relay.start()

    async def _close_store(self) -> None:
        if self._store is not None:
            await self._store.close()
        if not self._has_own_store:
            self._store, self._has_own_store = None, True

    async def _leave_outbox(self, grace_ms: int) -> None:
        housekeeping, self._housekeeping = self._housekeeping, None
        if housekeeping is not None:
            await housekeeping.stop()
        relay, self.relay = self.relay, None
        if relay is not None:
            await relay.stop(grace_ms, self._hurry)

    async def _settled(self) -> None:
        await asyncio.gather(*(one.settled() for one in self.consumers))

    async def _consume(self, broker: Broker) -> None:
        shared = Surroundings(
            broker=broker,
            layout=self.layout,
            clock=self._clock,
            gate=Gate(self._clock),
            notify=self.tell if self._observers else None,
            restore=self._restore,
            inbox=None if self._database is None else self.store,
            presence=self._presence,
            settled=self._settled,
            middleware=tuple(self._middleware),
            host=socket.gethostname(),
        )
        own = [] if self._later is None else [later_listener(self._later, self._codecs, self._forward)]
        self.consumers = tuple(Consumer(one, shared) for one in (*self.listeners, *own))
        if self.consumers:
            self._suspects = Suspects({one.listener.queue: one for one in self.consumers}, shared)
            await self._suspects.drain()
            for consumer in self.consumers:
                await consumer.start()
            await self._suspects.start()

    def tell(self, event: object) -> None:
        """Call every observer with an event; for brokers that are made outside, to report what happens to them."""
        for observer in self._observers:
            try:
                observer(event)
            except Exception:  # noqa: BLE001 - logged; an observer changes nothing
                _log.exception("the observer %r failed on %s", observer, type(event).__name__)
