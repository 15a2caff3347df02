#!/bin/sh
# Runs the tests twice over: what decides (core, layouts) by its own tests alone, then everything.
# They start a RabbitMQ and a PostgreSQL of their own, see tests/servers; where a program for that is missing it is
# installed here or what to install is said.
# Rule: core and layouts are covered to the last branch by tests/core and tests/layouts; the whole to 90 %.
set -eu
cd "$(dirname "$0")/.."
trap 'exit 130' INT         # after the tests, which a Ctrl-C ends too, have ended their servers
export CAROM_TEST_SHELL=$$ # the tests end when this shell is ended from elsewhere

.venv/bin/python -m tests.servers

mkdir -p build
said=build/test-pure.log
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

.venv/bin/python -m pytest tests --cov --cov-report=term:skip-covered --cov-fail-under=90 --durations=15 \
    </dev/null || exit 1
exit "$pure"
