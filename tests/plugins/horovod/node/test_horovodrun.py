"""The role `horovodrun` behaves like the program that it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node.harness import NODE_CODE

PROGRAM = """
import json, multiprocessing, sys

def task(queue):
    queue.put("decimal" in sys.modules)

if __name__ == "__main__":
    found = {}
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=task, args=(queue,))
        process.start()
        found[method] = queue.get()
        process.join()
    print(json.dumps({"arguments": sys.argv, **found}))
    sys.exit(7)
"""


def test_its_forked_processes_have_the_module(tmp_path: Path) -> None:
    program = tmp_path / "horovodrun"
    program.write_text(PROGRAM)
    command = [sys.executable, str(NODE_CODE / "__main__.py"), "horovodrun", "decimal", str(program), "-np", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (7, "")
    assert f'{{"arguments": ["{program}", "-np", "4"], "fork": true, "spawn": false}}' in done.stdout


@pytest.mark.parametrize("error", ["ImportError", "OSError", "RuntimeError"])
def test_a_broken_module_does_not_keep_it_from_starting(tmp_path: Path, error: str) -> None:
    (tmp_path / "broken.py").write_text(f"raise {error}('no libcudart.so')")
    program = tmp_path / "horovodrun"
    program.write_text("import gc; print('started', gc.isenabled())")
    command = [sys.executable, str(NODE_CODE / "__main__.py"), "horovodrun", "broken", str(program)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("started True\n", "")
