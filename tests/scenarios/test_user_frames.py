"""Tracebacks and diagnoses show the user's frames, and those of libraries, but none of composesim's."""

from __future__ import annotations

import json
import re

import pytest

from tests.builders import ROOT
from tests.scenarios.conftest import Project

pytestmark = pytest.mark.train

# Rank 1 raises or hangs in a function that is called through a wrapper of ours: observers wrap a loader's iterator.
SCRIPT = """
import sys, time
import torch
import torch.distributed as dist

def collate(samples):
    if sys.argv[1] == "hang" and dist.get_rank() == 1:
        time.sleep(3600)
    if sys.argv[1] == "raise" and dist.get_rank() == 1:
        raise KeyError("no such digit")
    return samples

dist.init_process_group("gloo")
try:
    while True:
        for batch in torch.utils.data.DataLoader([1, 2], collate_fn=collate):
            dist.barrier()
except KeyError as error:
    raise ValueError("bad batch") from error
"""
SCENARIO = """
steps:
- at: {event: init, after: 2s}
  fault: {kind: rank-raise, rank: 1}
expect:
- exit_code: 1
"""


def files_of(traceback: str) -> list[str]:
    """Return the file of each frame."""
    return re.findall(r'File "([^"]+)"', traceback)


def ours(files: list[str], project: Project) -> list[str]:
    """Return those of composesim: the package, or the copy of the node's code in the run's folder."""
    folders = (str(ROOT / "compose_sim"), str(project.folder / ".composesim"))
    return [file for file in files if file.startswith(folders)]


@pytest.mark.parametrize("words", [("--launcher", "warm"), ("--launcher", "torchrun"), ("--launcher", "env"), ("-m",)])
def test_an_exception_and_what_led_to_it_show_no_frame_of_ours(project: Project, words: tuple[str, ...]) -> None:
    run, script = project.named("raises"), project.write("train.py", SCRIPT)
    program = [*words, "train" if words == ("-m",) else script, "raise"]

    outcome = project.run("up", "--engine", "local", "--nodes", "2", "--name", run, "--json", *program)

    cause = outcome.report["cause"]
    tracebacks = cause["traceback"].split("Traceback (most recent call last):\n")[1:]
    firsts = [next(file for file in files_of(each) if not file.startswith("<frozen ")) for each in tracebacks]
    assert (cause["rank"], cause["message"]) == (1, "ValueError: bad batch")
    assert firsts == [str(project.folder / script)] * 2
    assert ours(files_of(cause["traceback"]), project) == []
    log = (project.folder / ".composesim" / "runs" / run / "logs" / "node-1.1.log").read_text()
    assert ours(files_of(log), project) == []


def test_a_hang_shows_no_frame_of_ours(project: Project) -> None:
    options = ("--engine", "local", "--nodes", "2", "--hang-timeout", "3s", "--json")

    outcome = project.run("check", *options, project.write("train.py", SCRIPT), "hang")

    cause = outcome.report["cause"]
    assert cause["message"].startswith("rank 1 on node-1 sleeps at train.py, line 8: `time.sleep(3600)`")
    assert files_of(cause["traceback"])
    assert ours(files_of(cause["traceback"]), project) == []


def test_an_injected_exception_shows_no_frame_of_ours(project: Project) -> None:
    run, scenario = project.named("injected"), project.write("raise.yaml", SCENARIO)
    script = project.write("train.py", SCRIPT)

    outcome = project.run("play", scenario, "--engine", "local", "--nodes", "2", "--name", run, "--json", script, "run")

    assert outcome.status == 0, outcome.stdout + outcome.stderr
    lines = (project.folder / ".composesim" / "runs" / run / "events" / "node-1.jsonl").read_text().splitlines()
    (exception,) = (event["data"] for event in map(json.loads, lines) if event["kind"] == "exception")
    assert exception["type"] == "InjectedFault"
    assert files_of(exception["traceback"])[0] == str(project.folder / script)
    assert ours(files_of(exception["traceback"]), project) == []
