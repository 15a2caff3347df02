"""The log of a broker file: a replicated state machine whose log is an SQLite table.

Every process that has the file open applies all commands, in the order of the log, to an engine of its own, and so
all of them come to the same state. A command counts from the COMMIT that wrote it: before that nobody learns what it
did, and when the COMMIT fails the engine is built again from what the file says. Commands of one process that wait
for a commit share the next one, so that one fsync pays for many of them.

Costs: every process holds all messages in memory; a commit is one fsync; opening reads the last snapshot and the log
since then. From time to time whoever has written writes a snapshot, which takes as long as encoding all messages.

Rule: a journal belongs to one thread, and it alone touches its engine. What a turn did is told by its `Change`.
Rule: never open the broker file other than through SQLite: closing any descriptor of it would drop SQLite's locks.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import msgspec

from carom.brokers.embedded import commands as wire
from carom.brokers.embedded.commands import Cancel, Command, Consume, End, Settle, Tick
from carom.brokers.embedded.engine import Ended, Engine, Handed
from carom.brokers.embedded.sessions import Session, Turn, folder_of, wake
from carom.brokers.embedded.storage import BUSY_S, check_place, is_ours, prepare, transaction, translated
from carom.errors import BrokerError, BrokerUnavailable, CaromError, ConfigurationError

SNAPSHOT_AFTER = 4 * 1024 * 1024
"""How long the log may grow, in bytes, before a snapshot replaces it; or to twice the last one, if that is more."""
_PART = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Look:
    """A question to the engine: nothing is written, and it sees all that was asked before it."""

    question: Callable[[Engine], object]

    def apply(self, engine: Engine, _now_ms: int) -> object:
        """Ask it."""
        return self.question(engine)


@dataclass(frozen=True, slots=True)
class Request:
    """A command on its way to the log, encoded already if it can no longer change."""

    command: Command | Look
    encoded: msgspec.Raw | None = None


@dataclass(slots=True)
class Change:
    """What a turn did, as far as it concerns this session.

    ``answers`` are in the order of the requests: what the engine returned or the CaromError it raised. ``lost`` tells
    that somebody ended this session: everything it held has gone back.
    """

    session: str = ""
    answers: list[object] = field(default_factory=list)
    handed: list[Handed] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    due_ms: int | None = None
    lost: bool = False


_Ready: TypeAlias = list[tuple[Command | Look, msgspec.Raw | None]]


class Journal:
    """One process's connection to a broker file and its replica of the state in it."""

    def __init__(self, path: Path, *, observe: bool = False) -> None:
        """Prepare; nothing is opened. An observer writes nothing and has no session."""
        self.path = path
        self.folder = folder_of(path)
        self._presence: Session | None = None
        self._ended = False
        self._lost = False
        self._untold = False
        self._observe = observe
        self._db: sqlite3.Connection | None = None
        self._turn: Turn | None = None
        self._identity: tuple[int, int] = (0, 0)
        self._broken = False
        self._engine = Engine()
        self._seq = 0
        self._now_ms = 0
        self._log_bytes = 0
        self._snapshot_due = SNAPSHOT_AFTER
        self._held: set[int] = set()
        self._consumers: dict[str, str] = {}

    # -- opening and closing

    def open(self) -> None:
        """Open the file, create it if it is not there, and read it. What cannot be opened is not left open."""
        with translated(self.path):
            check_place(self.path, must_exist=self._observe)
            try:
                self._connect()
            except BaseException:
                self.close()
                raise

    def enter(self) -> Session:
        """Enter with a new session and register it, so that others can end it when this process has died."""
        with translated(self.path):
            self._mend()
            self._leave()
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self._presence = Session(self.folder)
            self._ended, self._lost, self._untold, self._held, self._consumers = False, False, False, set(), {}
            with self._writing() as db:
                db.execute("INSERT INTO session VALUES (?)", (self.session,))
            return self._presence

    @property
    def session(self) -> str:
        """Return the id of this session; empty before it has entered."""
        return "" if self._presence is None else self._presence.id

    def close(self) -> None:
        """Close the file and leave. Whether the session was ended is said by the commands before."""
        self._leave()
        if self._turn is not None:
            self._turn.shut()
            self._turn = None
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None

    def _leave(self) -> None:
        if self._presence is not None:
            self._presence.leave(settled=self._ended)
            self._presence = None

    # -- turns

    def turn(self, requests: Sequence[Request], now_ms: int) -> Change:
        """Learn what others wrote, do what is due, apply the requests and commit them together.

        Returns when everything is on disk. Raises BrokerUnavailable, and then nothing of it happened; or, when the
        failure came in the COMMIT itself, the next turn finds out whether it did.
        """
        with translated(self.path):
            change = Change()
            try:
                self._mend()
                if all(isinstance(request.command, Look) for request in requests):
                    self._read(change)
                    if self._observe or not self._is_due(now_ms):
                        change.answers = [self._answer(request.command) for request in requests]
                        return self._told(change, woken=())
                return self._commit(requests, now_ms, change)
            except BaseException:
                self._untold = True
                raise

    def registered(self) -> list[str]:
        """Return the sessions that are registered as alive, and those that have something in the engine."""
        with translated(self.path):
            registered = {row[0] for row in self._open_db().execute("SELECT id FROM session")}
            return sorted(registered | set(self._engine.held) | {session for session, _ in self._engine.consumers})

    @property
    def snapshot_is_due(self) -> bool:
        """Tell whether the log has outgrown the last snapshot."""
        return self._log_bytes > self._snapshot_due

    def snapshot(self) -> Change:
        """Replace the log by a snapshot, if nobody else did meanwhile."""
        with translated(self.path):
            change = Change()
            try:
                self._mend()
                with self._writing() as db:
                    self._catch_up(db)
                    self._measure(db)
                    if self.snapshot_is_due:
                        self._write_snapshot(db)
                self._collect(change)
                return self._told(change, woken=())
            except BaseException:
                self._untold = True
                raise

    # -- inside

    def _connect(self) -> None:
        """Open SQLite, see that the file is ours, and build the replica."""
        fresh = not self.path.exists()
        db = self._db = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_S)
        if fresh:
            self.path.chmod(0o600)  # the files beside it get the same
        ours = is_ours(db, self.path)
        if self._observe and not ours:
            raise BrokerUnavailable(f"nothing has been written to {self.path} yet: start an application that uses it")
        if not self._observe:
            self._prepare(db)
        status = self.path.stat()
        self._identity = (status.st_dev, status.st_ino)
        self._reload(db)
        self._broken = False

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Make the folder of sessions and the tables, if they are missing."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if self._turn is None:
            self._turn = Turn(self.folder)
        with self._turn.taken():
            prepare(db, self.path)

    def _mend(self) -> None:
        """After a failure, open the file again and find out what is true."""
        if not self._broken:
            return
        if self._db is not None:
            self._db.close()
            self._db = None
        self._check_identity()
        self._connect()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Hold the write lock for a transaction. If it fails, the replica is not to be trusted any more."""
        db = self._open_db()
        if self._turn is None:
            raise BrokerError(f"{self.path} is open for reading only")
        with self._turn.taken():
            self._check_identity()
            try:
                with transaction(db, "BEGIN IMMEDIATE"):
                    yield db
            except BaseException:
                self._broken = True
                raise

    def _open_db(self) -> sqlite3.Connection:
        if self._db is None:
            raise BrokerUnavailable(f"{self.path} is not open")
        return self._db

    def _check_identity(self) -> None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._identity:
            raise BrokerUnavailable(
                f"{self.path} was removed or replaced while it was open: stop, and start again on the new file"
            )

    def _is_due(self, now_ms: int) -> bool:
        due_ms = self._engine.next_due_ms()
        return due_ms is not None and due_ms <= max(now_ms, self._now_ms)

    def _read(self, change: Change) -> None:
        db = self._open_db()
        self._check_identity()
        try:
            with transaction(db, "BEGIN"):
                self._catch_up(db)
        except BaseException:
            self._broken = True
            raise
        self._collect(change)

    def _catch_up(self, db: sqlite3.Connection) -> None:
        """Apply what is in the log and not yet in the replica."""
        rows = db.execute("SELECT seq, commands FROM log WHERE seq > ? ORDER BY seq", (self._seq,)).fetchall()
        for seq, data in rows:
            if seq != self._seq + 1:
                self._reload(db)
                return
            self._replay(seq, data)

    def _reload(self, db: sqlite3.Connection) -> None:
        """Build the replica from the snapshot and the log: what we need of the log is no longer there."""
        parts = db.execute("SELECT seq, now_ms, state FROM snapshot ORDER BY part").fetchall()
        self._engine, self._seq, self._now_ms = Engine(), 0, 0
        if parts:
            self._seq, self._now_ms = parts[0][:2]
            self._engine = Engine.restore(b"".join(part[2] for part in parts))
        for seq, data in db.execute("SELECT seq, commands FROM log WHERE seq > ? ORDER BY seq", (self._seq,)):
            self._replay(seq, data)
        self._measure(db)
        self._engine.handed, self._engine.ended, self._untold = [], [], True
        known = db.execute("SELECT 1 FROM session WHERE id = ?", (self.session,)).fetchone()
        self._lost = bool(self.session) and known is None

    def _replay(self, seq: int, data: bytes) -> None:
        try:
            entry = wire.decode_entry(data)
            for command in entry.commands:
                command.apply(self._engine, entry.now_ms)
                if isinstance(command, End) and command.session == self.session:
                    self._lost = True
        except (msgspec.MsgspecError, CaromError, ValueError, TypeError, LookupError) as error:
            raise ConfigurationError(
                f"entry {seq} of {self.path} cannot be replayed ({error}): the file is damaged or was written by "
                "another version of Carom; restore it from a backup or start with a new one"
            ) from error
        self._seq = seq
        self._now_ms = max(self._now_ms, entry.now_ms)
        self._log_bytes += len(data)

    def _commit(self, requests: Sequence[Request], now_ms: int, change: Change) -> Change:
        """Apply and log in one transaction, and tell nobody before it is committed."""
        ready = [(one.command, one.encoded or _encoded(one.command)) for one in requests]
        with self._writing() as db:
            self._catch_up(db)
            self._collect(change)
            change.answers = self._write(db, ready, now_ms)
        woken = self._collect(change)
        for (command, _), answer in zip(ready, change.answers, strict=True):
            self._note(command, answer)
        return self._told(change, woken=woken)

    def _write(self, db: sqlite3.Connection, ready: _Ready, now_ms: int) -> list[object]:
        """Apply and log, at a time that never runs backwards in the log, whatever the clock does."""
        now_ms = max(now_ms, self._now_ms)
        logged: list[msgspec.Raw] = []
        answers: list[object] = []
        over = self._lost
        if self._is_due(now_ms):
            Tick().apply(self._engine, now_ms)
            logged.append(wire.encode(Tick()))
        for command, encoded in ready:
            if over and getattr(command, "session", "") == self.session:
                answers.append(BrokerUnavailable(f"the session with {self.path} was lost while waiting"))
                continue
            answer = self._answer(command, now_ms)
            answers.append(answer)
            if encoded is not None and not isinstance(answer, CaromError):
                logged.append(encoded)
                if isinstance(command, End):
                    db.execute("DELETE FROM session WHERE id = ?", (command.session,))
                    over = over or command.session == self.session
        if logged:
            data = wire.encode_entry(now_ms, logged)
            db.execute("INSERT INTO log VALUES (?, ?, ?)", (self._seq + 1, self.session, data))
            self._seq += 1
            self._now_ms = now_ms
            self._log_bytes += len(data)
        return answers

    def _answer(self, command: Command | Look, now_ms: int = 0) -> object:
        """Apply a command; an engine that raises a CaromError has changed nothing, so it is an answer."""
        try:
            return command.apply(self._engine, now_ms)
        except CaromError as error:
            return error

    def _note(self, command: Command | Look, answer: object) -> None:
        """Keep the books of this session, after the COMMIT: by them a reload tells what is new."""
        if isinstance(answer, CaromError):
            return
        if isinstance(command, Settle):
            self._held.difference_update(command.tags)
        elif isinstance(answer, Handed):
            self._held.add(answer.tag)
        elif isinstance(command, Consume):
            self._consumers[command.consumer] = command.queue
        elif isinstance(command, Cancel):
            self._consumers.pop(command.consumer, None)
        elif isinstance(command, End):
            self._ended = self._ended or command.session == self.session

    def _collect(self, change: Change) -> set[str]:
        """Take what the engine handed out: ours into the change; return the sessions of the rest."""
        engine = self._engine
        handed, engine.handed = engine.handed, []
        ended, engine.ended = engine.ended, []
        change.handed += [one for one in handed if one.session == self.session]
        change.ended += [one for one in ended if one.session == self.session]
        return ({one.session for one in handed} | {gone.session for gone in ended}) - {self.session}

    def _told(self, change: Change, woken: Collection[str]) -> Change:
        """Finish a change that is committed: from here on it has happened."""
        change.session, change.lost = self.session, self._lost
        self._ended = self._ended or self._lost
        if self._untold:
            self._tell_apart(change)
            self._untold = False
        self._held.update([one.tag for one in change.handed])
        for gone in change.ended:
            self._consumers.pop(gone.consumer, None)
        change.due_ms = self._engine.next_due_ms()
        if woken:
            wake(self.folder, woken)
        return change

    def _tell_apart(self, change: Change) -> None:
        """After a reload or a failure: what is ours in the replica and was not told yet."""
        change.handed = [one for one in self._engine.unsettled(self.session) if one.tag not in self._held]
        change.ended = [
            Ended(self.session, consumer, queue, f"queue {queue!r} was deleted")
            for consumer, queue in self._consumers.items()
            if (self.session, consumer) not in self._engine.consumers
        ]

    def _measure(self, db: sqlite3.Connection) -> None:
        """Find out how long the log since the last snapshot is, and how long it may become."""
        query = "SELECT COALESCE(MAX(seq), 0), COALESCE(SUM(LENGTH(state)), 0) FROM snapshot"
        seq, size = db.execute(query).fetchone()
        query = "SELECT COALESCE(SUM(LENGTH(commands)), 0) FROM log WHERE seq > ?"
        (self._log_bytes,) = db.execute(query, (seq,)).fetchone()
        self._snapshot_due = max(SNAPSHOT_AFTER, 2 * size)

    def _write_snapshot(self, db: sqlite3.Connection) -> None:
        """Write the state; the log keeps its last entry, by which everybody sees how far it went."""
        state = self._engine.snapshot()
        db.execute("DELETE FROM snapshot")
        for part, start in enumerate(range(0, len(state), _PART)):
            row = (part, self._seq, self._now_ms, state[start : start + _PART])
            db.execute("INSERT INTO snapshot VALUES (?, ?, ?, ?)", row)
        db.execute("DELETE FROM log WHERE seq < ?", (self._seq,))
        self._measure(db)


def _encoded(command: Command | Look) -> msgspec.Raw | None:
    return None if isinstance(command, Look) else wire.encode(command)
