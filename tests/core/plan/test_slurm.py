"""The options of sbatch that a request becomes, and those that are refused."""

from __future__ import annotations

import pytest

from compose_sim.core.plan.slurm import submit_options
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError


@pytest.mark.parametrize(
    "options",
    [
        *(
            "--requeue",
            "--req",
            "--array=1-3",
            "-a1-3",
            "--ar 1",
            "--comment=x",
            "--com x",
            "--export=NONE",
            "--wait",
            "-W",
        ),
        *(
            "--test-only",
            "--help",
            "-h",
            "-V",
            "--usage",
            "--wrap=true",
            "train.sbatch",
            "--qos=high train.sbatch",
            "'",
        ),
    ],
)
def test_options_that_would_take_the_job_away_are_refused(options: str) -> None:
    with pytest.raises(SpecError, match="--sbatch"):
        submit_options(ClusterSpec(sbatch=options))


def test_other_options_come_last_and_win() -> None:
    options = "-w node-1 --qos high --exclusive --time=5:00 --export-file=a --use-min-nodes --wait-all-nodes=1"

    found = submit_options(ClusterSpec(nodes=3, time="1:00:00", cpus=1.5, sbatch=options))

    assert found == (
        *("--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=2", "--time=1:00:00", "--no-requeue"),
        *options.split(),
    )
