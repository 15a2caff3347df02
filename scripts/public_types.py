"""Tell whether the types of the public API are complete, as pyright sees them in an installed package.

Rule: what is public is what the modules below export, with all it has; how the rest is typed is mypy's business.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PUBLIC = ("carom", "carom.errors", "carom.ports", "carom.testing", "carom.testing.contracts")


def public_names() -> set[str]:
    """Name everything public by the module that defines it: ``carom.core.message.Message``."""
    names = set()
    for module in map(importlib.import_module, PUBLIC):
        exported = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
        for name in exported:
            value = getattr(module, name)
            defined_in = getattr(value, "__module__", module.__name__) or module.__name__
            if defined_in.startswith("carom"):
                names.add(f"{defined_in}.{getattr(value, '__qualname__', name)}")
    return names


def symbols() -> list[dict[str, Any]]:
    """Ask pyright about every symbol of the package; it looks where the first python on PATH has it installed."""
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    command = [str(tools / "basedpyright"), "--verifytypes", "carom", "--ignoreexternal", "--outputjson"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout  # noqa: S603 - our own tool, with fixed arguments
    found: list[dict[str, Any]] = json.loads(said)["typeCompleteness"]["symbols"]
    return found


def main() -> int:
    """Print what is incomplete and where; 1 if anything is, or if pyright saw nothing."""
    public = public_names()
    seen = [
        symbol
        for symbol in symbols()
        if any(symbol["name"] == name or symbol["name"].startswith(f"{name}.") for name in public)
    ]
    problems = {
        f"{problem.get('file', '')}:{problem['range']['start']['line'] + 1}: {symbol['name']}: {problem['message']}"
        for symbol in seen
        if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]
        for problem in symbol["diagnostics"]
    }
    print("\n".join(sorted(problems)))
    print(f"{len(seen)} public symbols, {len(problems)} of them incomplete: annotate these where they are assigned")
    return 1 if problems or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
