#!/usr/bin/env bash
# Lock, test and list the dependencies of composesim.
#
#   scripts/dependencies.sh lock      write requirements-dev.txt: every dependency for use and development, with its hashes
#   scripts/dependencies.sh lowest    run the tests that need no torch with the oldest versions that pyproject.toml accepts
#   scripts/dependencies.sh sbom      check the metadata in dist, and write dist/composesim-VERSION.cdx.json: what a user of the wheel in dist installs
set -euo pipefail
cd "$(dirname "$0")/.."

WORK=build/dependencies
LOCK=requirements-dev.txt
TOOLS=(uv==0.13.* cyclonedx-bom==7.* twine==6.*)
PURE=(tests/core tests/templates tests/test_architecture.py tests/engine/run_folder tests/cli/test_console.py tests/cli/views)
NOT_PURE=(
    --deselect tests/core/scenarios/test_scenario.py::test_the_published_schema_is_that_of_the_code # that of the locked pydantic
    --deselect tests/engine/run_folder/test_safe_files.py::test_up_ends_with_an_error_and_a_hint_in_a_linked_run_folder # needs torch
    --deselect tests/test_architecture.py::test_plan_imports_nothing_that_only_runs_and_reports_need # needs torch
)

main() {
    [ -x "$WORK/tools/bin/twine" ] || install_tools
    case "${1:-}" in
        lock) lock ;;
        lowest) lowest ;;
        sbom) sbom ;;
        *) echo "dependencies.sh: unknown word '${1:-}': lock, lowest or sbom" >&2; exit 2 ;;
    esac
}

install_tools() {
    .venv/bin/python -m venv --clear "$WORK/tools"
    "$WORK/tools/bin/python" -m pip install --quiet --disable-pip-version-check "${TOOLS[@]}"
}

# Without the address of the package index, which is a matter of each machine.
lock() {
    uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes --upgrade --quiet \
        --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' --output-file "$LOCK"
    echo "$LOCK: $(grep -c '==' "$LOCK") packages"
}

lowest() {
    uv venv --quiet --clear --python .venv/bin/python "$WORK/lowest"
    VIRTUAL_ENV=$WORK/lowest uv pip install --quiet --resolution lowest-direct --editable . --group test
    "$WORK/lowest/bin/python" -m pytest -q --timeout 600 -m 'not train and not docker and not gpu and not recipes' "${PURE[@]}" "${NOT_PURE[@]}"
}

sbom() {
    local wheel name
    "$WORK/tools/bin/twine" check --strict dist/*.whl dist/*.tar.gz
    for wheel in dist/composesim-*.whl; do
        name=$(basename "$wheel")
        uv venv --quiet --clear --python .venv/bin/python "$WORK/sbom"
        VIRTUAL_ENV=$WORK/sbom uv pip install --quiet --constraint "$LOCK" "$wheel"
        "$WORK/tools/bin/cyclonedx-py" environment --pyproject pyproject.toml --output-reproducible \
            --output-file "dist/${name%%-py3*}.cdx.json" "$WORK/sbom/bin/python"
    done
    ls dist/*.cdx.json
}

uv() { "$WORK/tools/bin/uv" "$@"; }

main "$@"
