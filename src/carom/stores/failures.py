"""Failures: what an error of a driver means, whichever driver it is.

Rule: an error of the database's becomes one of Carom's, `from` it, and never repeats an address or its credentials.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from socket import gaierror

from sqlalchemy.exc import DBAPIError, DisconnectionError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from carom.core.message import clip
from carom.errors import CaromError, DatabaseUnavailable, SchemaMismatch, StoreError

PASSING = frozenset({"40001", "40P01", "55P03"})
"""Serialization failure, deadlock, a lock that could not be had."""
ABSENT = frozenset({"57P01", "57P02", "57P03", "57P05", "53300", "25006"})
"""Shut down by an administrator, crashed, starting up, idle for too long, too many clients; a standby, after a failover
to another that this connection does not know of."""
MISSING = frozenset({"42P01", "42703", "3F000"})
"""No such table, column or schema."""
_MYSQL_PASSING = frozenset({1213, 1205, 1020})
_MYSQL_ABSENT = frozenset({2002, 2003, 2005, 2006, 2013, 2014, 2055, 1040, 1053, 1077, 1079, 1290, 4031})
_MYSQL_MISSING = frozenset({1146, 1054, 1049})
_LOST = (
    "connection was closed",
    "connection is closed",
    "server closed the connection",
    "connection has been closed",
    "terminating connection",
    "the connection is lost",
    "connection not open",
    "connection failed",
    "could not connect",
)
_LOST_TYPES = frozenset({"ConnectionDoesNotExistError", "ConnectionTimeout"})
_UNREACHABLE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ETIMEDOUT})
_MYSQL_DRIVERS = frozenset({"pymysql", "aiomysql", "asyncmy", "MySQLdb"})
_DRIVERS = frozenset({"asyncpg", "psycopg", "psycopg2", "aiosqlite", "sqlite3", *_MYSQL_DRIVERS})
_SENTENCE_BYTES = 300


def is_passing(error: BaseException) -> bool:
    """Tell whether a transaction failed for being beside others, and may just be run again."""
    return any(_passing(one) for one in chain(error))


def is_absence(error: BaseException) -> bool:
    """Tell whether the database was not there."""
    return any(_absent(one) for one in chain(error))


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all it comes from: what it wraps, its causes, and the members of groups."""
    seen: set[int] = set()
    todo: list[BaseException] = [error]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            todo.extend(one.exceptions)
        orig = getattr(one, "orig", None)
        todo.extend(inner for inner in (orig, one.__cause__) if isinstance(inner, BaseException))


def sqlstate(error: BaseException) -> str:
    """Return the code of an error as PostgreSQL's drivers tell it, each in its own way."""
    for name in ("sqlstate", "pgcode"):
        code = getattr(error, name, None)
        if isinstance(code, str):
            return code
    return ""


@contextmanager
def translated(doing: str, where: str) -> Iterator[None]:
    """Raise what goes wrong inside as an error of Carom's."""
    try:
        yield
    except CaromError:
        raise
    except (SQLAlchemyError, OSError, EOFError) as error:
        raise translation(error, doing, where) from error
    except Exception as error:
        if not _is_driver(error):
            raise
        raise translation(error, doing, where) from error


def translation(error: BaseException, doing: str, where: str) -> StoreError:
    """Return the error of Carom's that stands for one of the database's."""
    said = _said(error)
    if is_absence(error):
        return DatabaseUnavailable(f"{where} is not there for {doing}: {said}")
    if any(_missing(one) for one in chain(error)):
        return SchemaMismatch(f"the tables for {doing} are not in {where}: {said}; run carom db upgrade")
    return StoreError(f"{where} refused {doing}: {said}")


def _said(error: BaseException) -> str:
    """Return what the driver said, without the statement and its values."""
    innermost = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    while type(innermost).__module__.startswith("sqlalchemy") and innermost.__cause__ is not None:
        innermost = innermost.__cause__
    lines = str(innermost).strip().splitlines()
    return clip(lines[0] if lines else type(innermost).__name__, _SENTENCE_BYTES)


def _is_driver(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in _DRIVERS


def _number(error: BaseException) -> int:
    """Return the number of an error of MySQL's."""
    found = error.args[0] if error.args and type(error).__module__.partition(".")[0] in _MYSQL_DRIVERS else 0
    return found if isinstance(found, int) else 0


def _passing(error: BaseException) -> bool:
    if sqlstate(error) in PASSING or _number(error) in _MYSQL_PASSING:
        return True
    return isinstance(error, sqlite3.OperationalError) and ("locked" in str(error) or "busy" in str(error))


def _absent(error: BaseException) -> bool:
    state = sqlstate(error)
    if state in ABSENT or state.startswith("08") or _number(error) in _MYSQL_ABSENT:
        return True
    if isinstance(error, ConnectionError | TimeoutError | DisconnectionError | PoolTimeout | gaierror):
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(error, sqlite3.OperationalError):
        return "unable to open" in str(error) or "disk I/O" in str(error)
    return not state and _is_lost(error)


def _is_lost(error: BaseException) -> bool:
    """Tell from the words of an error that has no code: libpq and asyncpg make such themselves."""
    if type(error) is OSError:
        return error.errno in _UNREACHABLE or "Multiple exceptions" in str(error)
    if not _is_driver(error) and not isinstance(error, OperationalError | InterfaceError):
        return False
    text = str(error).lower()
    return type(error).__name__ in _LOST_TYPES or any(said in text for said in _LOST)


def _missing(error: BaseException) -> bool:
    if sqlstate(error) in MISSING or _number(error) in _MYSQL_MISSING:
        return True
    return isinstance(error, sqlite3.OperationalError) and ("no such table" in str(error) or "no column" in str(error))
