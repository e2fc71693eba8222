#!/usr/bin/env bash
# Run the linters, the type checker and every tier of tests that this machine can run; report the tiers that it cannot.
#
#   scripts/test.sh [PYTEST ARGUMENTS]    with CI=true a missing Docker Engine is a failure
#
# Without arguments three pytest workers share the tests (tests/conftest.py says how), and the linters run beside them. No failed test
# is tried again. With arguments one pytest runs.
set -euo pipefail
cd "$(dirname "$0")/.."

LOGS=build/tests      # the logs of what runs beside the tests, and JUnit files
TEST_TIMEOUT_S=900    # of one test with its fixtures
tiers=""              # an expression of pytest -m; empty for all
not_run=()

main() {
    find_tiers
    if [ $# -gt 0 ]; then run_pytest "$tiers" "$@"; exit; fi
    mkdir -p "$LOGS"
    local check recipes="" lowest="" status=0
    make --no-print-directory check >"$LOGS/check.log" 2>&1 &
    check=$!
    if [ "${CI:-}" = true ]; then
        scripts/recipes.sh >"$LOGS/recipes.log" 2>&1 & # takes minutes, and tests of other tiers do not need it
        recipes=$!
        scripts/dependencies.sh lowest >"$LOGS/lowest.log" 2>&1 &
        lowest=$!
    fi
    in_parallel "${tiers:+($tiers) and }not recipes" --junitxml="$LOGS/tests.xml" || status=1
    if wants recipes; then
        if [ -n "$recipes" ]; then await "$recipes" recipes 'scripts/recipes.sh' || status=1; fi
        in_parallel "${tiers:+($tiers) and }recipes" --junitxml="$LOGS/recipes.xml" || status=1
    fi
    await "$check" check 'make check' || status=1
    if [ -n "$lowest" ]; then await "$lowest" lowest 'make lowest' || status=1; fi
    for reason in ${not_run[@]+"${not_run[@]}"}; do echo "Not run: $reason"; done
    exit "$status"
}

find_tiers() {
    local engine recipes slurm
    if ! engine=$(scripts/engine.sh --check 2>&1); then
        if [ "${CI:-}" = true ]; then
            echo "test.sh: CI=true asks for all tiers, and no Docker Engine answers. Try: make engine"
            echo "$engine"
            exit 1
        fi
        leave_out docker "docker: ${engine##*$'\n'} To run it: make engine (as root), then make test"
    fi
    if [ "${CI:-}" != true ] && ! recipes=$(scripts/recipes.sh --check 2>&1); then
        leave_out recipes "recipes: ${recipes##*$'\n'} To run it: make recipes, then make test"
    fi
    if [ "${CI:-}" != true ] && ! slurm=$(scripts/slurm.sh --check 2>&1); then
        leave_out slurm "slurm: ${slurm##*$'\n'} To run it: make slurm (as root)"
    fi
    leave_out exhaustive "exhaustive: more scripts of kinds that were tested. To run it: make exhaustive"
    if ! [ -e /proc/driver/nvidia/version ]; then
        leave_out gpu "gpu: this machine has no NVIDIA GPU."
    fi
}

leave_out() {
    tiers="${tiers:+$tiers and }not $1"
    not_run+=("$2")
}

wants() { [[ "$tiers" != *"not $1"* ]]; }

# Three for two cores: many tests wait for timeouts and for Docker, a sixth of the time with two workers.
in_parallel() { run_pytest "$1" -n 3 --dist loadfile "${@:2}"; }

run_pytest() { .venv/bin/python -m pytest --timeout "$TEST_TIMEOUT_S" --durations 15 -m "$1" "${@:2}"; }

await() {
    if wait "$1"; then echo "passed: $3"; return; fi
    echo "failed: $3; the end of $LOGS/$2.log:"
    tail -n 60 "$LOGS/$2.log"
    return 1
}

main "$@"
