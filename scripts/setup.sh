#!/bin/sh
# Builds the private environment .venv from requirements/dev.lock, and installs the project into it, editable.
# `setup.sh NAME` adds the packages of requirements/NAME.lock.
# Rule: quiet when all is well, nothing outside this directory, no address of any package index; a failure says what
# happened and what to install. The one exception is Debian's part of venv: as root it is installed with apt-get.
set -eu
cd "$(dirname "$0")/.."

LOCK=requirements/dev.lock
LOG=build/setup.log
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
unset PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV || true

say() { printf 'setup: %s\n' "$*" >&2; }

fail() {
    say "$@"
    exit 1
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

has_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# Sets `python` to the first one that is new enough, preferring those that can make virtual environments.
find_python() {
    python=""
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python \
        /usr/local/bin/python3 /opt/homebrew/bin/python3 /usr/bin/python3; do
        if is_new_enough "$candidate"; then
            python="${python:-$candidate}"
            if has_venv "$candidate"; then
                python="$candidate"
                return
            fi
        fi
    done
    [ -n "$python" ] || fail "no Python of at least 3.11 was found (looked for python3, python3.14 ... python3.11)." \
        "Install one (Debian, Ubuntu: apt-get install python3 python3-venv; macOS: brew install python)" \
        "or name it: make setup PYTHON=/path/to/python3"
}

# Debian and Ubuntu keep a part of the standard library, ensurepip, in a package of its own.
add_venv_module() {
    package="$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        fail "$python cannot make virtual environments: its modules venv and ensurepip are missing." \
            "Debian, Ubuntu: sudo apt-get install $package. Elsewhere: install a complete Python, at least 3.11."
    fi
    say "installing $package"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install -y --no-install-recommends "$package"; } >"$LOG" 2>&1 </dev/null || true
    has_venv "$python" || fail "apt-get could not install $package; $LOG has what it said. Install it and try again."
}

run() { # what it is for, command...
    purpose="$1"
    shift
    if ! "$@" >"$LOG" 2>&1 </dev/null; then
        tail -n 20 "$LOG" >&2
        fail "could not $purpose; the lines above are what was said, all of it is in $LOG."
    fi
}

locked="$(pwd) $(cksum <"$LOCK")" # scripts in an environment hold its path, so a moved checkout is built anew
project="$(cksum <pyproject.toml)"

is_built() { [ "$(cat .venv/.locked 2>/dev/null)" = "$locked" ] && is_new_enough .venv/bin/python; }

is_installed() { [ "$(cat .venv/.project 2>/dev/null)" = "$project" ]; }

mkdir -p build
if ! is_built; then
    find_python
    has_venv "$python" || add_venv_module
    say "building .venv with $("$python" --version), once"
    run "make the environment .venv" "$python" -m venv --clear .venv
    run "install the packages of $LOCK" .venv/bin/python -m pip install --require-hashes --requirement "$LOCK"
    echo "$locked" >.venv/.locked
fi
if ! is_installed; then
    run "install carom itself" .venv/bin/python -m pip install --no-deps --no-build-isolation --editable .
    echo "$project" >.venv/.project
fi
for name in "$@"; do
    lock="requirements/$name.lock"
    pinned="$(cksum <"$lock")"
    if [ "$(cat ".venv/.$name" 2>/dev/null)" != "$pinned" ]; then
        say "adding the packages of $lock, once"
        run "install the packages of $lock" .venv/bin/python -m pip install --require-hashes --requirement "$lock"
        echo "$pinned" >".venv/.$name"
    fi
done
