"""Find, submit and cancel the jobs of runs. A job names its run and the run's folder in its comment, so every shell finds it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compose_sim.core.verdict.job_ending import RUNNING, WAITING
from compose_sim.engine.slurm.commands import ask
from compose_sim.errors import CommandError, EngineError, SpecError

_MARK, _SEPARATOR = "composesim", "\x1f"
_GONE_WITHIN_S = 90.0  # an epilog may take long
_POLL_S = 0.2
NO_FOLDER = 96  # exit code of the batch script: the first node does not see the run's folder
_SCRIPT = """#!/bin/sh
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


def find_jobs(run: str | None = None) -> list[SlurmJob]:
    """Return this user's jobs with nodes of a run, or of all runs."""
    # %T: state, %k: comment
    lines = ask(["squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%k"]).splitlines()
    found = []
    for line in lines:
        job_id, state, comment = line.split("|", 2)
        mark, _, rest = comment.partition(" ")
        own_run, _, folder = rest.partition(" ")
        if mark == _MARK and run in (None, own_run) and state in (*RUNNING, *WAITING):
            found.append(SlurmJob(job_id=job_id, state=state, run=own_run, folder=folder))
    return found


def job_fields(job_id: str) -> Mapping[str, str]:
    """Return what `scontrol` knows about a job; empty if it has forgotten it."""
    try:
        text = ask(["scontrol", "show", "job", "--oneliner", job_id])
    except CommandError:
        return {}
    return dict(word.split("=", 1) for word in text.splitlines()[0].split() if "=" in word) if text.strip() else {}


def submit(
    options: Sequence[str], *, run: str, folder: str, python: str, working_directory: str, env: Mapping[str, str]
) -> str:
    """Submit the job of a run, and return its id."""
    script = _SCRIPT.format(folder=shlex.quote(folder), python=shlex.quote(python), no_folder=NO_FOLDER)
    comment = f"{_MARK} {run} {folder}"
    argv = ["sbatch", "--parsable", "--export=ALL", "--output=/dev/null", f"--job-name={_MARK}-{run}"]
    argv += [f"--comment={comment}", f"--chdir={working_directory}", *options]
    try:
        return ask(argv, stdin=script, env=env).strip().partition(";")[0]
    except CommandError as error:
        raise SpecError(
            "the Slurm cluster rejected the job",
            evidence=error.output.strip(),
            hint="sinfo shows the partitions and their limits; sacctmgr show associations user=$USER",
        ) from None


def cancel(job: SlurmJob) -> None:
    """Kill all processes of a job, without the delay between SIGTERM and SIGKILL, and wait until it has ended."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    for words in (["--full", "--signal=KILL"], []):
        try:
            ask(["scancel", "--quiet", *words, job.job_id])
        except CommandError:  # it has just ended
            break
    wait_until_over(job, deadline=deadline)


def wait_until_over(job: SlurmJob, *, deadline: float) -> bool:
    """Wait until a job has no process any more; raise EngineError if it has after the deadline."""
    while job_fields(job.job_id).get("JobState", "") in (*RUNNING, *WAITING):
        if time.monotonic() > deadline:
            raise EngineError(f"Slurm has not ended job {job.job_id} yet", hint=f"scancel {job.job_id}")
        time.sleep(_POLL_S)
    return True
