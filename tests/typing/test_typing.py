"""The public API is typed: a user's program passes the strict checkers, and a wrong one does not."""

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "public_api.py"
ROOT = PROGRAM.parent.parent.parent


def test_a_users_program_passes_mypy_strict(tmp_path):
    command = ["mypy", "--strict", "--warn-unused-ignores", "--config-file=", f"--cache-dir={tmp_path}", str(PROGRAM)]
    result = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "src" / "carom" / "py.typed").is_file()


def test_everything_public_is_there():
    import carom

    assert sorted(carom.__all__) == carom.__all__
    assert all(getattr(carom, name) for name in carom.__all__)
    assert json.dumps(carom.__all__)
