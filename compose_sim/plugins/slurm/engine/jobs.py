"""Find, submit and cancel the jobs of runs, and read what they record in the run folder.

A job names its run and the run's folder in its comment, so every shell finds it. In an allocation of the user, which is not ours to
cancel, the name of the first step holds the same.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compose_sim.core.plan.model import Plan
from compose_sim.engine.protocol import NodeStatus
from compose_sim.engine.run_folder.safe_files import SafeFolder, UnsafeFileError
from compose_sim.errors import CommandError, EngineError, EngineSilentError, EnvironmentMissingError, SpecError
from compose_sim.plugins.slurm.core.endings import RUNNING, WAITING, job_ending

ANSWERS_WITHIN_S = 60.0
_NO_CONTROLLER = ("Unable to contact slurm controller", "Socket timed out", "Connection refused", "Zero Bytes were")


def require_commands() -> None:
    """Raise EnvironmentMissingError if a command that the engine uses is not installed."""
    for command in ("sbatch", "srun", "squeue", "scancel", "scontrol"):
        if not shutil.which(command):
            raise EnvironmentMissingError(
                f"'{command}' was not found: this machine is not a login node of a Slurm cluster",
                hint=f"module load slurm, or which {command}",
            )


def ask(argv: Sequence[str], *, stdin: str = "", env: Mapping[str, str] | None = None, within_s: float = 0) -> str:
    """
    Return what a command of Slurm prints.

    Raises EnvironmentMissingError if it is not installed, EngineSilentError if the controller does not answer, else CommandError.
    """
    within_s = within_s or ANSWERS_WITHIN_S
    try:
        done = subprocess.run(
            argv, input=stdin, env=env, capture_output=True, text=True, errors="replace", timeout=within_s, check=False
        )
    except FileNotFoundError:
        require_commands()
        raise
    except subprocess.TimeoutExpired:
        raise EngineSilentError(
            f"the controller of the Slurm cluster has not answered '{argv[0]}' for {within_s:.0f} s",
            hint="scontrol ping",
        ) from None
    if done.returncode:
        output = (done.stderr or done.stdout).strip()
        if any(words in output for words in _NO_CONTROLLER):
            raise EngineSilentError(
                "the controller of the Slurm cluster does not answer", evidence=output, hint="scontrol ping"
            )
        raise CommandError(argv, done.returncode, output)
    return done.stdout


_MARK, _SEPARATOR = "composesim", "\x1f"
_GONE_WITHIN_S = 90.0  # an epilog may take long
_POLL_S = 0.2
NO_FOLDER = 96  # exit code of the batch script: the first node does not see the run's folder
_ONCE = """#!/bin/sh
[ -z "$SLURM_RESTART_COUNT" ] || exit 0 # requeued: the folder holds the run that has ended
"""
_SCRIPT = """
[ -w {folder}/logs ] || exit {no_folder}
exec {python} {folder}/node/__main__.py slurm-job >>{folder}/logs/slurm.out 2>&1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """A job that runs nodes, as `squeue` lists it."""

    job_id: str
    state: str
    run: str
    folder: str
    is_ours: bool = True  # False for an allocation of the user, in which only some steps are ours


def find_jobs(run: str | None = None, *, within_s: float = 0) -> list[SlurmJob]:
    """Return this user's jobs with nodes of a run, or of all runs."""
    listing = ["squeue", "--me", "--noheader"]
    # %T: state, %k: comment, %j: name of the step
    jobs = ask([*listing, "--states=all", "--format=%i|%T|%k"], within_s=within_s).splitlines()
    steps = ask([*listing, "--steps", "--format=%i|RUNNING|%j"], within_s=within_s).splitlines()
    found = []
    for line in (*jobs, *steps):
        job_id, state, comment = line.split("|", 2)
        mark, _, rest = comment.partition(" ")
        own_run, _, folder = rest.partition(" ")
        if mark == _MARK and run in (None, own_run) and state in (*RUNNING, *WAITING):
            own = SlurmJob(
                job_id=job_id.partition(".")[0], state=state, run=own_run, folder=folder, is_ours="." not in job_id
            )
            found.append(own)
    return found


def job_fields(job_id: str) -> Mapping[str, str]:
    """Return what `scontrol` knows about a job; empty if it has forgotten it."""
    try:
        text = ask(["scontrol", "show", "job", "--oneliner", "--details", job_id])
    except CommandError:
        return {}
    return dict(word.split("=", 1) for word in text.splitlines()[0].split() if "=" in word) if text.strip() else {}


def hosts_of(fields: Mapping[str, str]) -> list[str]:
    """Return the machines that a job has, or had."""
    return ask(["scontrol", "show", "hostnames", fields["NodeList"]]).split()


def settled_fields(fields: Mapping[str, str], *, within_s: float) -> Mapping[str, str]:
    """Return the fields of a job once it is no longer COMPLETING, which hides how it ended; as they are after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while fields.get("JobState") == "COMPLETING" and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        fields = job_fields(fields["JobId"])
    return fields


def ending_of(fields: Mapping[str, str], *, is_ours: bool) -> tuple[str, str]:
    """Return the reason to stop a run and what happened to its job; "" if nothing did."""
    if not is_ours:  # an allocation may have been requeued before this run
        return job_ending({**fields, "Restarts": "0"})
    first = fields.get("BatchHost", "")
    if "ResizeTime" in fields and first not in hosts_of(fields):  # `--no-kill` lets a job go on
        return "engine", f"the Slurm job {fields['JobId']} lost {first}, which ran the master of the run [NODE_FAIL]"
    return job_ending(fields)


def submit(plan: Plan, folder: Path, environment: Mapping[str, str]) -> str:
    """Submit the job of a run, and return its id."""
    argv = ["sbatch", "--parsable", "--export=ALL", "--output=/dev/null", f"--job-name={_MARK}-{plan.run}"]
    argv += [f"--comment={_MARK} {plan.run} {folder}", f"--chdir={plan.working_directory}", *plan.submit]
    try:
        return ask(argv, stdin=_ONCE + _script(plan, folder), env=environment).strip().partition(";")[0]
    except CommandError as error:
        raise SpecError(
            f"the Slurm cluster rejected a job with '{shlex.join(plan.submit)}'",
            evidence=error.output.strip(),
            hint="sinfo shows the partitions and their limits; sacctmgr show associations user=$USER",
        ) from None


def start_in_allocation(
    job_id: str, plan: Plan, folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start what the job of a run would start, as a step on the first node of an allocation."""
    fields = job_fields(job_id)
    if fields.get("JobState") != "RUNNING":
        state = fields.get("JobState", "unknown to Slurm")
        raise EngineError(f"SLURM_JOB_ID names the allocation {job_id}, which is {state}", hint="unset SLURM_JOB_ID")
    first = hosts_of(fields)[0]
    argv = ["srun", f"--jobid={job_id}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={first}"]
    argv += [f"--job-name={_MARK} {plan.run} {folder}", f"--chdir={plan.working_directory}"]
    with (folder / "logs" / "slurm.out").open("ab") as output:
        return subprocess.Popen(
            [*argv, "sh", "-c", _script(plan, folder)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for composesim
        )


def cancel(job: SlurmJob) -> None:
    """Kill all processes of a run, without the delay between SIGTERM and SIGKILL, and wait until they have ended."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    with suppress(CommandError):  # it has just ended
        if job.is_ours:
            ask(["scancel", "--quiet", "--full", "--signal=KILL", job.job_id])
            ask(["scancel", "--quiet", job.job_id])
    while not job.is_ours and (steps := _steps_of(job)) and time.monotonic() < deadline:  # one may be starting another
        with suppress(CommandError):
            ask(["scancel", "--quiet", "--signal=KILL", *steps])
        time.sleep(_POLL_S)
    wait_until_over(job, deadline=deadline)


def wait_until_over(job: SlurmJob, *, deadline: float) -> None:
    """Wait until a run has no process any more; raise EngineError if it has after the deadline."""
    while _steps_of(job) if not job.is_ours else is_under_way(job_fields(job.job_id)):
        if time.monotonic() > deadline:
            raise EngineError(f"Slurm has not ended job {job.job_id} yet", hint=f"scancel {job.job_id}")
        time.sleep(_POLL_S)


def is_under_way(fields: Mapping[str, str]) -> bool:
    """Return whether a job waits or runs."""
    return fields.get("JobState", "") in (*RUNNING, *WAITING)


def _steps_of(job: SlurmJob) -> list[str]:
    """Return the steps of a run in its job; none if the job is over."""
    try:
        lines = ask(["squeue", "--noheader", "--steps", f"--jobs={job.job_id}", "--format=%i|%j"]).splitlines()
    except CommandError:
        return []
    names = (f"{_MARK} {job.run} ", f"{job.run}/")
    return [step for step, _, name in (line.partition("|") for line in lines) if f"{name} ".startswith(names)]


def _script(plan: Plan, folder: Path) -> str:
    return _SCRIPT.format(folder=shlex.quote(str(folder)), python=shlex.quote(plan.python), no_folder=NO_FOLDER)


MASTER = "master"
_RECORDS = "control/slurm-records"


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return what the job has recorded. The file is opened each time: then a network file system shows what is new."""
    try:
        text = SafeFolder(folder).read_text(_RECORDS)
    except (OSError, UnsafeFileError):
        return []
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def read_nodes(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what is known of each node that was started: its host, since when it runs, and how it exited."""
    nodes: dict[str, dict[str, Any]] = {}
    for record in read_records(folder):
        if record["kind"] == "started":
            nodes[record["node"]] = record
        elif record["kind"] == "exited":
            nodes[record["node"]] = {**nodes.get(record["node"], {}), **record}
    return nodes


def status_of(job: SlurmJob, name: str, node: Mapping[str, Any], ranks: str) -> NodeStatus:
    """Return the status of a node of a job, from its record in `read_nodes`."""
    running = job.state in RUNNING and bool(node) and "exit_code" not in node
    return NodeStatus(
        run=job.run,
        node=name,
        role="master" if name == MASTER else "node",
        running=running,
        exit_code=node.get("exit_code"),
        oom_killed=bool(node.get("oom")),
        ranks=ranks,
        folder=job.folder,
        since=datetime.fromtimestamp(node["t"], UTC).isoformat(timespec="milliseconds") if running else "",
        handle=f"{node['host']}, job {job.job_id}" if running else "",
    )


def exited(run: str, node: str, code: int, *, oom: bool = False) -> NodeStatus:
    """Return the status of a node that has ended."""
    role = "master" if node == MASTER else "node"
    return NodeStatus(run=run, node=node, role=role, running=False, exit_code=code, oom_killed=oom)
