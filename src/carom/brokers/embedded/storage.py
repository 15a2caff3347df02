"""What the log of a broker file asks of SQLite: its tables, its transactions, and its errors as sentences.

Rule: no exception of SQLite or of the operating system leaves this room; each becomes one of `carom.errors`.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from carom.errors import BrokerUnavailable, CaromError, ConfigurationError, NotPermitted

FORMAT = 1
"""The version of the tables, of the commands and of what the engine makes of them."""
BUSY_S = 5.0
"""How long SQLite waits for somebody who does not take turns, such as its own shell."""
_APPLICATION = 0x4361726F
_WAL_BYTES = 16 * 1024 * 1024
_SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
    "CREATE TABLE log (seq INTEGER PRIMARY KEY, session TEXT NOT NULL, commands BLOB NOT NULL)",
    "CREATE TABLE snapshot (part INTEGER PRIMARY KEY, seq INTEGER NOT NULL, now_ms INTEGER NOT NULL, state BLOB)",
    "CREATE TABLE session (id TEXT PRIMARY KEY)",
    f"PRAGMA application_id = {_APPLICATION}",
)


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Make every COMMIT durable, and the tables if they are missing. One process at a time."""
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    if not is_ours(db, path):
        with transaction(db, "BEGIN IMMEDIATE"):
            for statement in _SCHEMA:
                db.execute(statement)
            db.execute("INSERT INTO meta VALUES ('format', ?)", (FORMAT,))


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Say in a sentence what SQLite and the operating system say in codes."""
    try:
        yield
    except sqlite3.Error as error:
        raise _sentence(error, path) from error
    except PermissionError as error:
        raise NotPermitted(_no_permission(path, error)) from error
    except OSError as error:
        raise BrokerUnavailable(f"the broker file {path} cannot be used: {error}") from error


@contextlib.contextmanager
def transaction(db: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Commit what is done inside, or undo it."""
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def check_place(path: Path, *, must_exist: bool) -> None:
    """Find what is wrong with a path before SQLite says that it is `unable to open database file`."""
    if path.is_dir():
        raise ConfigurationError(f"{path} is a directory: name a file in it, such as {path / 'carom.db'}")
    if not path.parent.is_dir():
        raise ConfigurationError(f"the directory {path.parent} of the broker file does not exist: create it first")
    if must_exist and not path.exists():
        raise BrokerUnavailable(f"there is no broker file {path}: an application that uses it creates it")


def is_ours(db: sqlite3.Connection, path: Path) -> bool:
    """Tell whether there are tables of ours; raise ConfigurationError for somebody else's or newer ones."""
    (tables,) = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    if not tables:
        return False
    (application,) = db.execute("PRAGMA application_id").fetchone()
    if application != _APPLICATION:
        raise ConfigurationError(f"{path} is a database of something else: give the broker a file of its own")
    (version,) = db.execute("SELECT MAX(value) FROM meta WHERE name = 'format'").fetchone()
    if version != FORMAT:
        raise ConfigurationError(
            f"{path} has format {version} and this version of Carom reads format {FORMAT}: "
            "use the version that wrote it, or start with a new file"
        )
    return True


def _sentence(error: sqlite3.Error, path: Path) -> CaromError:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_NOTADB:
            return ConfigurationError(f"{path} is not a broker file, nor any SQLite database: name another file")
        case sqlite3.SQLITE_CORRUPT:
            return ConfigurationError(f"the broker file {path} is damaged ({error}): restore it from a backup")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return NotPermitted(_no_permission(path, error))
        case sqlite3.SQLITE_FULL:
            return BrokerUnavailable(f"no room for the broker file {path} ({error}): free some space on its disk")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return BrokerUnavailable(f"another program keeps the broker file {path} locked: look for who has it open")
    return BrokerUnavailable(f"the broker file {path} cannot be used: {error}")


def _no_permission(path: Path, error: Exception) -> str:
    return f"this user cannot write the broker file {path} ({error}): check its permissions and those of its directory"
