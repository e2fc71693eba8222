"""The options of sbatch that a request becomes, and those that are refused."""

from __future__ import annotations

import pytest

from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError
from compose_sim.plugins.slurm.core.cluster import submit_options


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


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        *[(each, "--nodes") for each in ("--nodes=3", "-N3", "-N 3", "--nod 3")],
        *[(each, "--nproc-per-node") for each in ("--ntasks=3", "-n3", "--ntasks-per-node 2")],
        *[(each, "--name") for each in ("--job-name=x", "-J x", "--job x")],
        *[("-c 4", "--cpus"), ("--mem=4G", "--memory"), ("-G 2", "--gpus-per-node")],
        *[(each, "leave it out") for each in ("--output=x", "-o x", "--error x", "--chdir=/", "--input x")],
    ],
)
def test_options_that_composesim_sets_name_the_one_to_use(options: str, instead: str) -> None:
    with pytest.raises(SpecError, match=f"--sbatch '{options.split()[0]}'") as caught:
        submit_options(ClusterSpec(sbatch=options))

    assert caught.value.hint in (f"composesim up {instead} …", instead)


def test_other_options_come_last_and_win() -> None:
    options = "-w node-1 --qos high --exclusive --time=5:00 --export-file=a --use-min-nodes --wait-all-nodes=1"

    found = submit_options(ClusterSpec(nodes=3, time="1:00:00", cpus=1.5, sbatch=options))

    assert found == (
        *("--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=2", "--time=1:00:00", "--no-requeue"),
        *options.split(),
    )
