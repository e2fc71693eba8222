"""What the lesson on the flight recorder teaches holds for real dumps: they have its format, and its solution reads them."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
import torch

from compose_sim.app.listener import QuietListener
from compose_sim.app.request import Request
from compose_sim.app.session import Session
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.plugins.learn.app.course_folder import SCRIPT, SOLUTION, read_course

# Rank 3 has come to the next collective of all ranks; ranks 0 and 2 have not, because they wait for rank 1.
HANG = """\
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
three = dist.new_group([0, 1, 2])
for step in range(12):
    if step == 7 and rank == 1:
        time.sleep(600)
    if rank < 3:
        dist.all_reduce(torch.ones(4, 2), group=three)
    dist.all_reduce(torch.ones(1))
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """Return the solution of the lesson, which its program imports as `script`, and the program."""
    lesson = read_course().lessons["29-flight-recorder"]
    for name, text in {**lesson.own_files, SCRIPT: lesson.read(SOLUTION)}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("harness", "measure", "script"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    script, harness = (importlib.import_module(name) for name in ("script", "harness"))
    return script, harness


@pytest.mark.train
@pytest.mark.skipif(torch.__version__ < torch.torch_version.TorchVersion("2.13"), reason="gloo is not recorded")
def test_the_solution_reads_the_dumps_of_a_real_hang(tmp_path: Path, modules: tuple[ModuleType, ModuleType]) -> None:
    solution, harness = modules
    (tmp_path / "train.py").write_text(HANG)
    values = {"engine": "local", "script": "train.py", "nodes": 1, "nproc_per_node": 4, "hang_timeout": "4s"}
    session = Session(Request(spec=ClusterSpec.model_validate({**values, "gpus": "none"}), folder=tmp_path))
    report = session.run(QuietListener())
    files = (session.folder.path / "observations" / "flight").iterdir()
    dumps = {int(file.name.removeprefix("rank_")): pickle.loads(file.read_bytes()) for file in files}

    found = solution.diagnose(dumps)

    assert report.verdict == "hung"
    assert (found.ranks, found.group, found.number, found.line) == ([1], "1", 8, 12)
    assert Path(found.file).name == "train.py"
    made = harness.Job(Random(0), harness.KINDS[0], is_nccl=False).dumps()
    assert shape_of(made[0]) == shape_of(dumps[0])
    assert {each["state"] for each in dumps[0]["entries"]} == {"scheduled"}


def shape_of(value: Any) -> Any:
    """Return the keys and the types in a dump, of its last entry and of a frame of the script."""
    if isinstance(value, dict):
        named = all(key.isdecimal() for key in value)  # by group, of which there may be any number
        return (
            {"": shape_of(next(iter(value.values())))}
            if named
            else {key: shape_of(each) for key, each in value.items()}
        )
    if isinstance(value, list):
        return [shape_of(value[-1])] if value else []
    return tuple(map(shape_of, value)) if isinstance(value, tuple) else type(value)
