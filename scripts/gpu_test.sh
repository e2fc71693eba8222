#!/usr/bin/env bash
# Do emulated GPUs show what this machine's GPUs show? Runs the tests marked gpu, and prints what they compared.
#
#   scripts/gpu_test.sh [PYTEST ARGUMENTS]    PYTHON=… is one with torch for CUDA, pytest and composesim's dependencies
#
# Needs no `make setup`: PYTHON may be the machine's own, as where a GPU is lent with its image.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
if [ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" # the command is started in other folders
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1             # a lent image has plugins that warn, and our warnings are errors
"$python" -c 'import torch; print("torch", torch.__version__, "·", torch.cuda.device_count(), "GPU(s)")'
exec "$python" -m pytest -m gpu -rA "$@" tests/scenarios
