"""Values in a job file that are none, or that grow without end, are refused or left to the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.test_hostile_inputs import DIGITS
from tests.audit.test_hostile_script import composesim

SBATCH = "#!/bin/bash\n#SBATCH --nodes=2\n{}\nsrun torchrun --nnodes 2 train.py $A\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('trained')\n")
    return tmp_path


@pytest.mark.parametrize(
    "option", [f"--nodes={DIGITS}", f"--ntasks-per-node={DIGITS}", f"--time={DIGITS}", "--nodes=²"]
)
def test_a_number_of_a_job_file_that_is_none_is_refused(option: str, project: Path) -> None:
    (project / "job.sh").write_text(SBATCH.format(f"#SBATCH {option}"))

    assert "job.sh, line " in composesim(project, "plan", "--engine", "local", "-f", "job.sh", check=2).stdout


@pytest.mark.parametrize("doubled", ["A=$A$A$A$A$A$A$A$A$A$A\n", 'A=("${A[@]}" "${A[@]}" "${A[@]}" "${A[@]}")\n'])
def test_variables_of_a_job_file_that_grow_without_end_are_left_to_the_cluster(doubled: str, project: Path) -> None:
    (project / "job.sh").write_text(SBATCH.format("A=xxxxxxxxxx\nA=(x y)\n" + doubled * 30))

    composesim(project, "plan", "--engine", "local", "-f", "job.sh", check=0)
