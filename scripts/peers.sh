#!/bin/sh
# Builds the private environment .venv-bench with what Carom is measured against, from requirements/bench.lock.
# `peers.sh PYTHON` builds it with that Python, so that everybody who is measured runs on the same one.
# Rule: apart from .venv, which stays lean; quiet when all is well; a failure says what happened.
set -eu
cd "$(dirname "$0")/.."

LOCK=requirements/bench.lock
LOG=build/peers.log
PYTHON="${1:-.venv/bin/python}"
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
unset PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV || true

run() { # what it is for, command...
    purpose="$1"
    shift
    if ! "$@" >"$LOG" 2>&1 </dev/null; then
        tail -n 20 "$LOG" >&2
        echo "peers: could not $purpose; the lines above are what was said, all of it is in $LOG." >&2
        exit 1
    fi
}

version="$("$PYTHON" -c 'import sys; print(sys.version)')"
locked="$(pwd) $version $(cksum <"$LOCK")"
[ "$(cat .venv-bench/.locked 2>/dev/null)" != "$locked" ] || exit 0
mkdir -p build
echo "peers: building .venv-bench, once" >&2
run "make the environment .venv-bench" "$PYTHON" -m venv --clear .venv-bench
run "install the packages of $LOCK" .venv-bench/bin/python -m pip install --require-hashes --requirement "$LOCK"
echo "$locked" >.venv-bench/.locked
