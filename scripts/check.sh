#!/bin/sh
# Checks the code without running it: lint, form, types, the directions of the imports, the rules of the house.
# Rule: every check runs, whatever the others say; a check that is content takes one line.
set -u
cd "$(dirname "$0")/.."
sh scripts/setup.sh check || exit 1

failed=""
said="$(mktemp)"
trap 'rm -f "$said"' EXIT

check() { # name, command...
    name="$1"
    shift
    if "$@" >"$said" 2>&1 </dev/null; then
        printf 'ok      %s\n' "$name"
    else
        cat "$said"
        printf 'FAILED  %s: %s\n' "$name" "$*"
        failed="$failed $name;"
    fi
}

check "lint" .venv/bin/ruff check --quiet .
check "form" .venv/bin/ruff format --check --quiet --diff .
check "types" .venv/bin/mypy --no-error-summary
check "types of the public API" .venv/bin/python scripts/public_types.py
check "directions of the imports" .venv/bin/lint-imports --no-logo
check "rules of the house" .venv/bin/python -m pytest -q --no-header tests/test_architecture.py

if [ -n "$failed" ]; then
    printf 'check: failed:%s\n' "${failed%;}"
    exit 1
fi
echo "check: all is well"
