#!/bin/sh
# Runs the tests twice over: what decides (core, layouts) by its own tests alone, then everything.
# Rule: core and layouts are covered to the last branch by tests/core and tests/layouts; the whole to 90 %.
set -eu
cd "$(dirname "$0")/.."

said="$(mktemp)"
trap 'rm -f "$said"' EXIT

if COVERAGE_FILE=.coverage.pure .venv/bin/python -m pytest tests/core tests/layouts -q --no-header \
    --cov=carom.core --cov=carom.layouts --cov-report=term-missing:skip-covered --cov-fail-under=100 \
    >"$said" 2>&1 </dev/null; then
    echo "core and layouts: every branch covered by their own tests alone; $(tail -n 1 "$said")"
    pure=0
else
    cat "$said"
    echo "core and layouts: failed, or not every branch is covered by tests/core and tests/layouts alone (see above)"
    pure=1
fi

.venv/bin/python -m pytest tests --cov --cov-report=term:skip-covered --cov-fail-under=90 </dev/null || exit 1
exit "$pure"
