"""The statements of every version, for every dialect.

Rule: `statements` is the one source of what is in the database. A version that was released is never changed; a new
one is added at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from carom.stores.dialects import Names, dialect
from carom.stores.migrations import first

_VERSIONS: tuple[Callable[[Names], list[str]], ...] = (first.statements,)
LATEST = len(_VERSIONS)


def statements(name: str, schema: str | None = None, prefix: str = "carom_", since: int = 0) -> Sequence[str]:
    """Return what leads from one version (0: nothing is there) to the latest, for the dialect of that name.

    Each statement is complete, has no parameters, and is run as it is, without a semicolon at its end. The last of
    each version writes down that it was done. A schema has to be there.
    """
    names = Names(dialect(name), schema, prefix)
    found: list[str] = []
    for number, version in enumerate(_VERSIONS, start=1):
        if number > since:
            found += version(names)
            found.append(f"INSERT INTO {names.version} (version, applied_at) VALUES ({number}, {names.dialect.now})")
    return found
