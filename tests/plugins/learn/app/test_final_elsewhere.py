"""The last project runs on real machines with the commands of its page: under plain torchrun, and as a job of Slurm."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from compose_sim.plugins.learn.app.course_folder import PAGE, SOLUTION, read_course
from compose_sim.plugins.learn.app.workbook import Workbook
from tests.builders import PATIENCE_S, ROOT

COURSE = read_course()
FINAL = COURSE.lessons["30-final"]
COMMANDS = re.findall(r"`((?:torchrun|composesim) [^`]*30-final/[^`]*)`", FINAL.read(PAGE))


@pytest.fixture
def lessons(tmp_path: Path) -> Path:
    """The folder of a student who has solved the last project."""
    workbook = Workbook.begin(tmp_path / "lessons", COURSE, shipped=True)
    workbook.script(FINAL).write_text(FINAL.read(SOLUTION))
    return workbook.folder


@pytest.mark.train
def test_the_final_project_runs_under_torchrun(lessons: Path) -> None:
    done = shell(COMMANDS[0], lessons)

    assert done.returncode == 0, done.stderr
    assert_measured(done.stdout)


@pytest.mark.slurm
@pytest.mark.usefixtures("slurm_cluster")
def test_the_final_project_runs_as_a_job_of_slurm(lessons: Path) -> None:
    written = shell(COMMANDS[1], lessons)
    job = shell("sbatch --parsable --wait --output=job.log job.sh", lessons)
    log = (lessons / "job.log").read_text()

    assert (written.returncode, job.returncode) == (0, 0), written.stderr + job.stderr + log
    assert_measured(log)


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as it is typed in the environment of these tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=variables, capture_output=True, text=True, timeout=PATIENCE_S
    )


def assert_measured(printed: str) -> None:
    """Assert that each of four ranks has reported numbers within the bounds of the lesson; their lines may be mixed."""
    reports = [json.loads(line) for line in re.findall(r"\{\"outputs_differ[^}]*\}", printed)]

    assert len(reports) == 4, printed
    for name, bound in FINAL.lesson.required.metrics.items():
        assert [report[name] for report in reports if not bound.holds(report[name])] == []
