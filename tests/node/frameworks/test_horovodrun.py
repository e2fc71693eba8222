"""The role `horovodrun` behaves like the program that it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
