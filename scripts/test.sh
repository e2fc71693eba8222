#!/usr/bin/env bash
# Do lint, types and tests pass? Runs every tier that this machine can run, and says which it could not.
#
#   scripts/test.sh [PYTEST ARGUMENTS]    with CI=true a missing Docker Engine is a failure
#
# Without arguments the tests run in lanes side by side: tests/lanes says how, and which failed test gets a second try.
set -euo pipefail
cd "$(dirname "$0")/.."

tiers="" # an expression of pytest -m, empty for all
not_run=()
beside=() # what is made while the lanes run tests that do not need it

leave_out() {
    tiers="${tiers:+$tiers and }not $1"
    not_run+=(--not-run "$2")
}

if ! engine=$(scripts/engine.sh --check 2>&1); then
    if [ "${CI:-}" = true ]; then
        echo "test.sh: CI=true asks for all tiers, and there is no engine for the docker tier. Type: make engine"
        echo "$engine"
        exit 1
    fi
    leave_out docker "docker: ${engine##*$'\n'} To run it: make engine (as root), then make test"
fi
if [ -x scripts/recipes.sh ]; then
    if [ "${CI:-}" = true ]; then
        beside+=(--beside recipes=scripts/recipes.sh)
    elif ! recipes=$(scripts/recipes.sh --check 2>&1); then
        leave_out recipes "recipes: ${recipes##*$'\n'} To run it: make recipes, then make test"
    fi
fi
if ! [ -e /proc/driver/nvidia/version ]; then
    leave_out gpu "gpu: this machine has no NVIDIA GPU."
fi

exec .venv/bin/python -m tests.lanes -m "$tiers" --beside check='make --no-print-directory check' \
    ${beside[@]+"${beside[@]}"} ${not_run[@]+"${not_run[@]}"} -- "$@"
