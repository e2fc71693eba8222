#!/usr/bin/env bash
# Create or update .venv: the project (editable), its tools, and torch. Quick if nothing has changed.
#
#   PYTHON       the interpreter of .venv (default: the first python3 that is 3.11 or newer)
#   TORCH        the torch to install (default: the one in .venv, else the newest)
#   TORCH_INDEX  an additional package index, such as that of PyTorch's CPU builds
#   LOCKED       no: install the newest versions that pyproject.toml accepts, not those of requirements-dev.txt
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
STAMP=$VENV/composesim-setup
LOCK=requirements-dev.txt
DEFAULT_TORCH=torch

main() {
    local wanted
    wanted=$(fingerprint)
    install_hook
    if [ -x "$VENV/bin/composesim" ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$wanted" ]; then compile; return; fi
    make_venv
    echo "Installing composesim and its tools into $VENV ..."
    install_project
    install_torch
    compile
    echo "$wanted" >"$STAMP"
    echo "Ready: $VENV/bin/composesim, $("$VENV/bin/python" -W ignore -c 'import sys, torch
print("Python", sys.version.split()[0] + ", torch", torch.__version__)')"
}

# What pip does with packages that it copies: nodes start from bytecode, also where PYTHONDONTWRITEBYTECODE keeps Python from making it.
compile() { "$VENV/bin/python" -m compileall -q compose_sim; }

# Everything that would make another .venv.
fingerprint() {
    { cat pyproject.toml "$LOCK" scripts/setup.sh; echo "$PWD ${PYTHON:-} ${TORCH:-} ${TORCH_INDEX:-} ${LOCKED:-}"; } | sha256sum | cut -d ' ' -f 1
}

# Git runs it when a message has been written. A hook of the developer's own stays.
install_hook() {
    local hooks
    hooks=$(git rev-parse --git-path hooks 2>/dev/null) || return 0 # not a clone
    [ -e "$hooks/commit-msg" ] && return
    mkdir -p "$hooks" && ln -s "$PWD/scripts/commit_msg.sh" "$hooks/commit-msg" || echo "setup.sh: went on without the hook." >&2
}

make_venv() {
    if [ -x "$VENV/bin/python" ] && is_new_enough "$VENV/bin/python"; then return; fi
    local python
    python=$(find_python)
    "$python" -m venv --clear "$VENV" && return
    rm -rf "$VENV" # half a venv would look like a whole one the next time
    fail "'$python -m venv' failed; on Debian and Ubuntu it needs a package: apt-get install $(basename "$python")-venv"
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
        if is_new_enough "$candidate"; then echo "$candidate"; return; fi
    done
    fail "no Python 3.11 or newer (tried: ${PYTHON:-python3, python3.11 to 3.14}). Type: make setup PYTHON=/path/to/python3"
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

install_project() {
    if [ "${LOCKED:-yes}" = no ]; then
        pip install 'pip>=25.1' # the first with --group
        pip install --editable . --group dev
        return
    fi
    pip install --require-hashes --requirement "$LOCK" ||
        fail "the locked dependencies cannot be installed here. For the newest versions, without hashes: make setup LOCKED=no"
    pip install --no-deps --no-build-isolation --editable . # its build backend is locked too
}

install_torch() {
    if [ -z "${TORCH:-}" ] && "$VENV/bin/python" -W ignore -c 'import torch' 2>/dev/null; then return; fi
    if [ -z "${TORCH_INDEX:-}" ] && ! [ -e /proc/driver/nvidia/version ]; then
        echo "No NVIDIA GPU here, and TORCH_INDEX is not set: if the package index gives torch's CUDA build, that works too, but is some GB larger (make help)."
    fi
    echo "Installing ${TORCH:-$DEFAULT_TORCH}, by far the largest package ..."
    # NumPy, because collectives of objects need it; with what is downloaded, and how far
    QUIET= pip install "${TORCH:-$DEFAULT_TORCH}" numpy ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"}
}

pip() { "$VENV/bin/python" -m pip ${QUIET---quiet} --disable-pip-version-check --no-input "$@"; }

fail() {
    echo "setup.sh: $1" >&2
    exit 1
}

main "$@"
