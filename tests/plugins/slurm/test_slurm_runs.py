"""Runs on a real Slurm of four nodes on this machine: how they end, what they leave, and what bad input does."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from compose_sim.plugins.registry import built_in
from compose_sim.plugins.slurm.core.endings import job_ending
from tests.builders import ROOT
from tests.cli.commands.test_cmd_view import served
from tests.contract.bench import until
from tests.scenarios.conftest import Project

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm_cluster")]

COMPOSESIM = [sys.executable, "-m", "compose_sim"]
COMMAND = [*COMPOSESIM, "up", "--engine", "slurm"]
SLEEPS = ("--recipe", "exec", "--", "sh", "-c", "touch $COMPOSESIM_SHARED/begun; exec sleep 600")
TRUE = ("--recipe", "exec", "--", "true")


def slurm(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def fields_of(job: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in slurm("scontrol", "show", "job", "-o", "-d", job).split() if "=" in word)


def jobs_of(run: str) -> list[str]:
    return slurm("squeue", "--me", "--noheader", "--format=%i", f"--name=composesim-{run}").split()


def bring_back(node: str) -> None:
    """Return a node to service, which it may have done itself."""
    subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], check=False, capture_output=True)
    until(lambda: "State=IDLE " in slurm("scontrol", "show", "node", node))


def requeue(job: str) -> None:
    """Requeue a job as an operator may, although it was submitted with `--no-requeue`."""
    slurm("scontrol", "update", f"jobid={job}", "requeue=1")
    slurm("scontrol", "requeue", job)


def composesim(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMPOSESIM, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        text=True,
        capture_output=True,
        check=False,
    )


def up(folder: Path, run: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "--name", run, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def events_of(folder: Path, run: str) -> list[dict[str, Any]]:
    files = (folder / ".composesim" / "runs" / run).rglob("*.jsonl")
    return [json.loads(line) for path in files for line in path.read_text().splitlines() if line.endswith("}")]


@contextmanager
def silent_controller(cluster: Path) -> Iterator[None]:
    controller = int((cluster / "slurmctld.pid").read_text())
    os.kill(controller, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(controller, signal.SIGCONT)


def has_supervisor(folder: Path) -> bool:
    """Return whether the supervisor of a run in this folder is there: it must end before its cluster does."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return any("supervisor" in " ".join(line[:4]) and line[-1].startswith(str(folder)) for line in lines)


def wait_for_ranks(folder: Path, run: str, count: int) -> None:
    until(lambda: sum(event["kind"] == "rank-started" for event in events_of(folder, run)) == count)


def measured(folder: Path) -> set[str]:
    """Return the nodes of the only running run whose memory `stats` knows."""
    nodes = json.loads(composesim(folder, "stats", "--json").stdout)["nodes"]
    return {node["node"] for node in nodes if node["memory_bytes"]}


def job_of(folder: Path, run: str) -> str:
    """Return the job of a run, from the records that the job itself has written."""
    records = (folder / ".composesim" / "runs" / run / "control" / "slurm-records").read_text()
    job: str = json.loads(records.splitlines()[0])["job"]
    return job


# --- How a job ends ---


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What happens to a run, and what must be reported."""

    program: tuple[str, ...] = SLEEPS
    sbatch: str = "--nodelist=node-0"
    happens: Callable[[str], object] | None = None  # to the job
    exit_code: int
    state: str = ""  # of the job, in the report
    slurm_says: str = ""  # the same, if that is another word


# scripts/slurm.sh lets them limit memory, but not on node-3.
HAS_CONTROL_GROUPS = Path("/sys/fs/cgroup/memory/cgroup.procs").exists()
TAKE_MEMORY = "x = b'x' * (400 << 20); import time; time.sleep(600)"
HUNGRY = ("--memory", "100m", "--recipe", "exec", "--", sys.executable, "-c", TAKE_MEMORY)
SAVES = """
trap "sleep 3; touch $COMPOSESIM_SHARED/saved; exit 0" TERM  # agents alone would wait for 2 s
touch $COMPOSESIM_SHARED/begun
while :; do sleep 1 & wait; done
"""
URGENT = ("sbatch", "--partition=urgent", "--nodelist=node-1", "--cpus-per-task=8", "--output=/dev/null", "--wrap=true")
ENDINGS = {
    "good": Ending(program=TRUE, exit_code=0, slurm_says="COMPLETED"),
    "status": Ending(program=("--recipe", "exec", "--", "sh", "-c", "exit 7"), exit_code=1, slurm_says="FAILED"),
    "hungry": Ending(program=HUNGRY, exit_code=1, slurm_says="FAILED"),
    "polled": Ending(program=HUNGRY, sbatch="--nodelist=node-3", exit_code=1, slurm_says="FAILED"),
    "canceled": Ending(happens=lambda job: slurm("scancel", job), exit_code=130, state="CANCELLED"),
    "late": Ending(
        happens=lambda job: slurm("scontrol", "update", f"jobid={job}", "endtime=now+1"), exit_code=124, state="TIMEOUT"
    ),
    "requeued": Ending(
        happens=requeue,
        exit_code=3,
        state="REQUEUED",
        slurm_says="CANCELLED",
    ),
    "preempted": Ending(
        program=("--recipe", "exec", "--", "sh", "-c", SAVES),
        sbatch="--nodelist=node-1",
        happens=lambda job: slurm(*URGENT),
        exit_code=3,
        state="PREEMPTED",
    ),
    "headless": Ending(  # node-2, which "lost" takes down, runs its master; the job goes on with node-3
        program=("--elastic", "1:2", *SLEEPS),
        sbatch="--nodelist=node-[2-3]",
        happens=lambda job: None,
        exit_code=3,
        state="NODE_FAIL",
        slurm_says="FAILED|CANCELLED",  # by the daemon of node-2, or by composesim, whoever is first
    ),
    "lost": Ending(
        sbatch="--nodelist=node-2",
        happens=lambda job: slurm("scontrol", "update", "nodename=node-2", "state=down", "reason=test"),
        exit_code=3,
        state="NODE_FAIL",
    ),
}


@dataclass(frozen=True)
class Ended:
    """How a run has ended."""

    exit_code: int
    output: str
    report: dict[str, Any]
    job: dict[str, str]
    folder: Path


@pytest.fixture(scope="module")
def ended(slurm_cluster: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ended]]:
    """Let one run end in each way, all at the same time."""
    folder = tmp_path_factory.mktemp("endings")
    processes = {
        run: up(folder, run, "--nodes", "1", "--sbatch", ending.sbatch, *ending.program)
        for run, ending in ENDINGS.items()
    }
    for run, ending in ENDINGS.items():
        if ending.happens:
            begun = folder / ".composesim" / "runs" / run / "shared" / "begun"
            until(begun.exists)
            ending.happens(job_of(folder, run))
    found = {}
    for run, process in processes.items():
        output, _ = process.communicate()
        own = folder / ".composesim" / "runs" / run
        report = own / "report.json"
        found[run] = Ended(
            process.returncode,
            output,
            json.loads(report.read_text()) if report.exists() else {},
            fields_of(job_of(folder, run)),
            own,
        )
    bring_back("node-2")
    yield found
    assert [run for run in ENDINGS if jobs_of(run)] == []


@pytest.mark.parametrize("run", ENDINGS)
def test_a_run_reports_what_ended_its_job(ended: dict[str, Ended], run: str) -> None:
    wanted, got = ENDINGS[run], ended[run]

    assert got.exit_code == wanted.exit_code, got.output
    assert got.job["JobState"] in (wanted.slurm_says or wanted.state).split("|"), got.job
    cause = (got.report["cause"] or {"message": ""})["message"]
    assert re.findall(r"\[([A-Z_]+)\]", cause) == ([wanted.state] if wanted.state else []), cause


def test_the_exit_code_of_a_rank_is_that_of_the_job(ended: dict[str, Ended]) -> None:
    assert ended["status"].job["DerivedExitCode"] == "7:0"
    assert ended["status"].report["cause"]["message"] == "rank 0 exited with status 7"


def test_a_preempted_rank_has_the_grace_period_of_the_partition(ended: dict[str, Ended]) -> None:
    assert (ended["preempted"].folder / "shared" / "saved").exists()


@pytest.mark.parametrize("run", ["hungry", "polled"])
def test_memory_is_the_cause_whether_the_kernel_kills_for_it_or_slurm(ended: dict[str, Ended], run: str) -> None:
    assert ended[run].report["cause"]["kind"] == "oom", ended[run].report["cause"]


def test_slurm_says_that_a_job_ran_out_of_memory() -> None:
    """With control groups, the kernel kills a rank, which ends a run before Slurm counts it: hence a job without composesim."""
    hungry = f"--wrap=exec {shlex.join([sys.executable, '-c', TAKE_MEMORY])}"
    options = ("--parsable", "--wait", "--mem=100M", "--output=/dev/null", "--nodelist=node-0")
    done = subprocess.run(["sbatch", *options, hungry], capture_output=True, text=True, check=False)

    reason, message = job_ending(fields_of(done.stdout.strip()))

    assert (reason, "[OUT_OF_MEMORY]" in message) == (("failure", True) if HAS_CONTROL_GROUPS else ("", False))


# --- What is left ---


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)], ids=["ctrl-c", "kill"])
def test_no_job_outlives_composesim(tmp_path: Path, number: signal.Signals, exit_code: int) -> None:
    run = f"gone-{number}"
    process = up(tmp_path, run, "--nodes", "2", *SLEEPS)
    wait_for_ranks(tmp_path, run, 2)

    process.send_signal(number)
    process.communicate()

    assert process.returncode == exit_code
    until(lambda: jobs_of(run) == [])


def test_a_pending_job_says_why_and_is_canceled_too(tmp_path: Path) -> None:
    process = up(tmp_path, "waits", "--nodes", "2", "--sbatch", "--begin=now+1hour", *TRUE)
    until(lambda: any("is pending: BeginTime" in str(event["data"]) for event in events_of(tmp_path, "waits")))

    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()

    assert process.returncode == 130, output
    assert "is pending: BeginTime" in output
    assert jobs_of("waits") == []


# --- In an allocation of the user ---


@pytest.fixture
def allocation() -> Iterator[str]:
    """Return an allocation of two nodes, as `salloc` makes one."""
    said = subprocess.run(
        ["salloc", "--no-shell", "--nodes=2", "--cpus-per-task=2"], check=True, capture_output=True, text=True
    ).stderr
    found = re.search(r"job allocation (\d+)", said)
    assert found
    yield found[1]
    assert fields_of(found[1])["JobState"] == "RUNNING"
    slurm("scancel", found[1])


def test_an_allocation_is_used_and_left_alone(tmp_path: Path, allocation: str) -> None:
    there = {"SLURM_JOB_ID": allocation}
    passed = composesim(tmp_path, "up", "--engine", "slurm", "--nodes", "2", "--name", "inside", *TRUE, **there)
    too_many = composesim(tmp_path, "up", "--engine", "slurm", "--nodes", "3", "--name", "wide", *TRUE, **there)
    killed = up(tmp_path, "killed", "--nodes", "2", *SLEEPS, **there)
    wait_for_ranks(tmp_path, "killed", 2)
    assert job_of(tmp_path, "killed") == allocation
    inside = composesim(tmp_path, "exec", "--run", "killed", "1", "--", "sh", "-c", "echo $SLURM_JOB_ID")
    killed.kill()
    killed.communicate()

    assert (passed.returncode, too_many.returncode) == (0, 2), passed.stderr + too_many.stderr
    assert "has 2 nodes, and the run needs 3" in too_many.stderr
    assert inside.stdout.strip() == allocation
    until(lambda: slurm("squeue", "--noheader", "--steps", f"--jobs={allocation}", "--format=%j").split() == [])
    assert jobs_of("inside") == jobs_of("wide") == jobs_of("killed") == []


# --- The other commands ---


def test_commands_work_from_another_shell_and_an_elastic_run_goes_on_without_a_lost_node(tmp_path: Path) -> None:
    started = composesim(
        *(tmp_path, "up", "--engine", "slurm", "--detach", "--elastic", "1:2", "--name", "tour", "--recipe", "exec"),
        *("--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE; exec sleep 600"),
    )
    assert started.returncode == 0, started.stderr
    wait_for_ranks(tmp_path, "tour", 2)
    runs = json.loads(composesim(tmp_path, "ps", "--json").stdout)["runs"]
    (run,) = (each for each in runs if each["run"] == "tour")
    assert (run["run"], run["engine"], run["state"]) == ("tour", "slurm", "under way")
    assert [node["state"] for node in run["nodes"]] == ["running"] * 3
    everywhere = composesim(tmp_path, "exec", "all", "--", "sh", "-c", "echo on $SLURMD_NODENAME").stdout
    hosts = re.findall(r"on (node-\d)", everywhere)
    assert len(set(hosts)) == 2, everywhere
    until(lambda: {"node-0", "node-1"} <= measured(tmp_path))
    with served(Project(tmp_path), "tour") as page:
        assert json.load(page.get("/runs"))["runs"] == [{"name": "tour", "is_running": True}]
    assert composesim(tmp_path, "fault", "pause", "node-1").returncode == 0
    assert composesim(tmp_path, "heal").returncode == 0

    lost = slurm("squeue", "--noheader", "--steps", "--format=%j %N", "--me").split("tour/node-1 ")[1].split()[0]
    try:
        slurm("scontrol", "update", f"nodename={lost}", "state=down", "reason=test")
        until(
            lambda: any(
                event["kind"] == "round" and event["data"]["world_size"] == 1 for event in events_of(tmp_path, "tour")
            )
        )
        until(lambda: "rank 0 of 1" in composesim(tmp_path, "logs", "--run", "tour").stdout)
    finally:
        bring_back(lost)
    down = composesim(tmp_path, "down")
    assert down.returncode == 0, down.stderr
    assert composesim(tmp_path, "wait", "--run", "tour").returncode == 130
    report = json.loads(composesim(tmp_path, "report", "--json", "tour").stdout)
    assert report["verdict"] == "interrupted"
    assert jobs_of("tour") == []


def test_a_script_is_checked_and_a_scenario_is_played(tmp_path: Path) -> None:
    for name in ("train_ddp.py", "data"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    # The second time that both nodes are there, the ranks end.
    (tmp_path / "loss.yaml").write_text(
        "cluster:\n  engine: slurm\n  nodes: 2\n  elastic: '1:2'\n  recipe: exec\n"
        "steps:\n  - at: {event: round, world_size: 2}\n    fault: {kind: kill, node: node-1}\n"
        "  - at: {event: round, world_size: 1}\n    heal: node-1\n"
        "expect:\n  - world_sizes: [2, 1, 2]\n  - exit_code: 0\n  - nothing_left: true\n"
    )
    program = ("sh", "-c", "[ $COMPOSESIM_GENERATION = 2 ] || exec sleep 600")

    checked = composesim(
        *(tmp_path, "check", "--engine", "slurm", "--gpus", "none", "--nodes", "2", "--nproc-per-node", "1"),
        *("train_ddp.py", "--epochs", "1"),
    )
    played = composesim(tmp_path, "play", "loss.yaml", "--", *program)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert played.returncode == 0, played.stdout + played.stderr


# --- Bad input ---


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["--partition", "nowhere"], 2, "invalid partition"),
        (["--time", "2:00:00"], 2, "time limit"),
        (["--nodes", "9"], 2, "ode count specification"),
        (["--sbatch", "--no-such-option"], 2, "no-such-option"),
        (["--with", "jupyter"], 2, "--with"),
        (["--recipe", "ray"], 2, "'ray'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_refused_with_what_slurm_says(
    tmp_path: Path, arguments: list[str], exit_code: int, words: str
) -> None:
    program = TRUE if "--recipe" not in arguments else ("--", "true")
    process = up(tmp_path, "refused", *arguments, *program)
    output, _ = process.communicate()

    assert process.returncode == exit_code, output
    assert words in output
    assert any(word in output.partition("Error:")[2].partition("Try:")[0] for word in arguments)
    assert "Try:" in output
    assert jobs_of("refused") == []
    assert not (tmp_path / ".composesim" / "runs" / "refused").exists()


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_folder_that_a_node_does_not_see(slurm_cluster: Path, nodes: int) -> None:
    """The last node has a disk of its own there. With one node, it is the one that runs the batch script."""
    where = ["--sbatch", "--nodelist=node-3"]
    process = up(slurm_cluster / "local", "hidden", "--nodes", str(nodes), *where, *TRUE)
    output, _ = process.communicate()

    assert process.returncode == 2, output
    assert re.search(r"node-3 does not see the folder of the run", output), output
    assert "--runs-dir" in output
    assert jobs_of("hidden") == []


def test_nodes_whose_python_has_no_torch(tmp_path: Path, slurm_cluster: Path) -> None:
    """The environment is on the disk of one node, and looks complete from the others."""
    (tmp_path / "train.py").write_text("")
    python = slurm_cluster / "local" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    process = up(tmp_path, "bare", "--nodes", "4", "--python", str(python), "train.py")
    output, _ = process.communicate()

    assert process.returncode == 2, output
    assert "node-3 does not see the Python of the nodes" in output
    assert jobs_of("bare") == []


def test_a_controller_that_does_not_answer(tmp_path: Path, slurm_cluster: Path) -> None:
    """Commands that list runs name it, and show what other engines have."""
    local = composesim(tmp_path, "up", "--engine", "local", "--detach", "--name", "beside-it", *SLEEPS)
    with silent_controller(slurm_cluster):
        process = up(tmp_path, "silent", *TRUE)
        output, _ = process.communicate()
        listed = composesim(tmp_path, "ps")
        ended = composesim(tmp_path, "down", "--run", "beside-it")

    assert local.returncode == 0, local.stderr
    assert process.returncode == 4, output
    assert "scontrol ping" in output
    assert (listed.returncode, "beside-it" in listed.stdout, "scontrol ping" in listed.stderr) == (0, True, True)
    assert ended.returncode == 0, ended.stderr


def test_a_run_goes_on_without_its_controller(tmp_path: Path, slurm_cluster: Path) -> None:
    process = up(
        *(tmp_path, "alone", "--nodes", "2", "--recipe", "exec", "--", "sh", "-c"),
        "until [ -e $COMPOSESIM_SHARED/go ]; do sleep 0.1; done",
    )
    wait_for_ranks(tmp_path, "alone", 2)
    with silent_controller(slurm_cluster):
        until(lambda: any("scontrol ping" in str(event["data"]) for event in events_of(tmp_path, "alone")))
    (tmp_path / ".composesim" / "runs" / "alone" / "shared" / "go").touch()
    output, _ = process.communicate()

    assert process.returncode == 0, output
    assert "scontrol ping" in output


def test_another_process_waits_for_a_run(tmp_path: Path) -> None:
    program = ("--recipe", "exec", "--", "sh", "-c", "until [ -e $COMPOSESIM_SHARED/go ]; do sleep 0.1; done; exit 3")
    process = up(tmp_path, "awaited", "--nodes", "1", "--detach", *program)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    waiting = subprocess.Popen(
        [*COMPOSESIM, "wait", "--run", "awaited"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    wait_for_ranks(tmp_path, "awaited", 1)
    assert waiting.poll() is None
    (tmp_path / ".composesim" / "runs" / "awaited" / "shared" / "go").touch()

    assert waiting.wait() == 1


def test_an_interrupted_run_is_canceled_as_soon_as_the_controller_answers(tmp_path: Path, slurm_cluster: Path) -> None:
    process = up(tmp_path, "late", "--nodes", "2", *SLEEPS)
    wait_for_ranks(tmp_path, "late", 2)
    with silent_controller(slurm_cluster):
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()

    assert process.returncode == 130, output
    until(lambda: jobs_of("late") == [])
    until(lambda: not has_supervisor(tmp_path))


def test_without_slurm_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    process = up(tmp_path, "none", *TRUE)
    output, _ = process.communicate()

    assert process.returncode == 4, output
    assert "'sbatch' was not found" in output


# --- Exports ---


@pytest.mark.skipif(not built_in("composesim.job_writers"), reason="no plug-in writes jobs")
def test_a_rendered_job_runs_on_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys\nopen(os.environ['RANK'], 'w').write(' '.join([os.environ['WORLD_SIZE'], os.environ['WORD'], *sys.argv[1:]]))\n"
    )
    options = (
        "--nodes",
        "2",
        "--nproc-per-node",
        "2",
        "--cpus",
        "1",
        "--memory",
        "1g",
        "--timeout",
        "5m",
        "--name",
        "taken",
    )
    rendered = composesim(
        *(tmp_path, "render", "there", "--engine", "slurm", "--gpus", "none", *options),
        *("--env", "WORD=it's $5", "train.py", "--note", "a b"),
    )
    assert rendered.returncode == 0, rendered.stderr
    code = tmp_path / "there" / "code"

    done = subprocess.run(
        ["sbatch", "--wait", "../job.sbatch"],
        cwd=code,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        check=False,
    )

    assert done.returncode == 0, "".join(path.read_text() for path in code.glob("taken.*.log"))
    assert [(code / str(rank)).read_text() for rank in range(4)] == ["4 it's $5 --note a b"] * 4
