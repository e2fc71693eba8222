#!/usr/bin/env bash
# Run the tests marked gpu on this machine's GPUs, and print how real and emulated GPUs compare.
#
#   scripts/gpu_test.sh [PYTEST ARGUMENTS]    PYTHON: an interpreter with torch for CUDA, pytest and composesim's dependencies
#
# `make setup` is not needed: PYTHON may be that of the system, such as in a rented machine with its image.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
if [ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" # the command is started in other folders
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1             # a lent image has plugins that warn, and our warnings are errors
"$python" -c 'import torch; print("torch", torch.__version__, "·", torch.cuda.device_count(), "GPU(s)")'
# Without this a machine whose driver does not answer would compare emulated GPUs with themselves.
"$python" - <<'PYTHON'
import sys
from compose_sim.engine.host.gpus import inspect_gpus

inventory = inspect_gpus()
for gpu in inventory.gpus:
    print(gpu.index, gpu.uuid, gpu.model, f"{gpu.memory_bytes >> 20} MiB", "driver", inventory.driver)
if not inventory.gpus:
    sys.exit(f"composesim finds no GPU: {inventory.problem or 'there is no driver'}. Try: {inventory.hint or 'nvidia-smi'}")
PYTHON
together=()
if "$python" -c 'import xdist' 2>/dev/null; then together=(-p xdist.plugin -n 6); fi # what waits for CUDA to begin waits beside others
exec "$python" -m pytest -m gpu -rA "${together[@]}" "$@" tests/scenarios
