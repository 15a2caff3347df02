"""What is installed from this repository is complete, and what it is built with is pinned.

Rule: these tests need no network: they read the lock files and build a wheel with what is installed already.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
PIN = re.compile(r"[a-z0-9-]+==[\w.]+( ; [^\\]+)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def distribution(requirement: str) -> str:
    """Take the name of what a requirement requires, written the way lock files write it."""
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-").replace(".", "-")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_file_holds_pins_and_hashes_and_nothing_else(lock):
    for line in lock.read_text(encoding="utf-8").splitlines():
        assert PIN.fullmatch(line) or HASH.fullmatch(line), f"{lock.name}: {line!r} is neither; run make lock"


@pytest.mark.parametrize("group", sorted(PROJECT["dependency-groups"]))
def test_everything_the_project_asks_for_is_pinned(group):
    asked = {distribution(requirement) for requirement in PROJECT["dependency-groups"][group]}
    if group == "dev":
        asked |= {distribution(requirement) for requirement in PROJECT["project"]["dependencies"]}
    text = (ROOT / "requirements" / f"{group}.lock").read_text(encoding="utf-8")
    missing = asked - set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))
    assert not missing, f"requirements/{group}.lock does not pin {sorted(missing)}: run make lock"


def test_the_command_and_the_plugin_are_where_the_project_says():
    for target in PROJECT["project"]["scripts"].values():
        module, _, name = target.partition(":")
        assert callable(getattr(importlib.import_module(module), name)), target
    for module in PROJECT["project"]["entry-points"]["pytest11"].values():
        importlib.import_module(module)


def test_a_wheel_holds_the_whole_package_its_types_and_its_licence(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    ours = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/carom").rglob("*") if path.is_file()}
    assert inside == {name for name in ours if "__pycache__" not in name}
    assert "carom/py.typed" in inside
    assert any(name.endswith("/licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())


def test_every_target_of_the_makefile_is_in_its_list():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z]+):", text, re.MULTILINE)
    described = re.findall(r"^([a-z]+):.*## \w", text, re.MULTILINE)
    assert targets == described, f"without a description: {sorted(set(targets) - set(described))}"
    assert set(targets) == set(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split())
