#!/usr/bin/env bash
# Prove that plug-ins are optional: in a copy of this checkout without them, test what needs no engine, the documents and the demo.
#
#   scripts/without.sh PYTHON NAME… [-- PYTEST ARGUMENTS]    a plug-in is its folder, its tests and its pages
set -euo pipefail
cd "$(dirname "$0")/.."

main() {
    local python=$1 copy plugin
    shift
    copy=$(mktemp -d)
    # shellcheck disable=SC2064  # expanded now: the variable is local
    trap "rm -rf '$copy'" EXIT
    git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
        if [ -e "$file" ]; then printf '%s\0' "$file"; fi # not one that is deleted but still in the index
    done | tar --create --null --files-from=- | tar --extract --directory="$copy"
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        plugin=$1
        shift
        [ -d "compose_sim/plugins/$plugin" ] || fail "'$plugin' is not a plug-in. There is: $(known)"
        rm -rf "$copy"/{compose_sim,tests,docs}/plugins/"$plugin"
    done
    [ $# -eq 0 ] || shift
    cd "$copy"
    git init --quiet && git add --all # tests ask git for the files
    export PYTHONPATH=$copy
    "$python" -m scripts.write_reference >/dev/null # the pages that list verbs and recipes
    local unable="gpu or slurm or recipes"
    docker info >/dev/null 2>&1 || unable="docker or $unable"
    "$python" -m pytest -p no:cacheprovider -m "not (train or docker or $unable)" "$@" # as `make fast`
    "$python" -m pytest -p no:cacheprovider -m "(train or docker) and not ($unable)" tests/test_documents.py # their commands
    "$python" -m compose_sim up --nodes 4 train_ddp.py
}

known() { find compose_sim/plugins -mindepth 2 -maxdepth 2 -name __init__.py -printf '%h\n' | xargs -n 1 basename | sort | xargs; }

fail() {
    echo "without.sh: $1" >&2
    exit 2
}

main "$@"
