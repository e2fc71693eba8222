"""A forked process leaves torch as it is when it exits, and loses nothing of the script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import ROOT

pytestmark = pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="with a GPU, everything is destroyed")

# The package stands for the real torch, which takes long to import.
TORCH = """
class Library:
    def __del__(self):
        print("torch is taken apart", flush=True)

library, hooks = Library(), []
print("torch is imported", flush=True)
"""
PROGRAM = """
import atexit, os, sys
from compose_sim.node.starters import quick_exit
from compose_sim.node.starters.import_ahead import import_ahead

with quick_exit.prepared():
    import_ahead("torch")
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

import torch

class Last:
    def __del__(self):
        import torch
        print(self.says, torch.hooks is hooks, flush=True)

hooks = torch.hooks
one, cycle = Last(), Last()
one.says, cycle.says, cycle.itself = "object", "cycle", cycle
del cycle
known_only_to_torch = open("hook.txt", "w")
known_only_to_torch.write("called")
torch.hooks.append(known_only_to_torch)
del known_only_to_torch
own = open("own.txt", "w")
own.write("written")
atexit.register(print, "handler", flush=True)
del one
sys.exit(7)
"""


def test_what_the_script_made_is_finished_and_torch_is_not(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    said = done.stdout.splitlines()
    # The parent, from which ranks are forked, exits here like any process.
    assert (done.returncode, done.stderr) == (7, "")
    assert said == ["torch is imported", "object True", "handler", "cycle True"]
    assert (tmp_path / "hook.txt").read_text() == "called"
    assert (tmp_path / "own.txt").read_text() == "written"
