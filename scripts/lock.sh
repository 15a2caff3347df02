#!/bin/sh
# Pins every package the project needs, for Python 3.11 and newer on every system, with the hashes of its files.
# Rule: the lock file names versions and hashes alone, never an address to download from.
set -eu
cd "$(dirname "$0")/.."

UV="${UV:-uv}"
if ! "$UV" --version >/dev/null 2>&1; then
    echo "lock: uv was not found; install it (pipx install uv) or name it: make lock UV=/path/to/uv" >&2
    exit 1
fi
for group in dev check bench; do
    lock="requirements/$group.lock"
    case "$group" in
    dev) more=pyproject.toml ;; # what the project needs to run, and its own tools
    bench) more="--constraint requirements/dev.lock" ;; # what is compared shares versions where it shares packages
    *) more="" ;;
    esac
    "$UV" pip compile --no-config --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
        --no-emit-index-url --no-emit-find-links --no-header --no-annotate --group "$group" $more \
        --output-file "$lock"
    if grep -nE '://|^-|file:' "$lock" >&2; then
        echo "lock: $lock names an address; it must not" >&2
        exit 1
    fi
    echo "lock: $lock pins $(grep -c '==' "$lock") packages"
done
