"""Run nodes on a Slurm cluster: one job per run, one step per node, and one process in the job that starts them (node/job.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from compose_sim.core.faults.kind import Action, Pause, Signal, Start
from compose_sim.core.plan.model import Plan
from compose_sim.core.plan.node_roles import role_command
from compose_sim.engine.protocol import NodeStatus, Progress
from compose_sim.engine.run_folder.folder import RunFolder, end_of_output, try_read_plan
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.engine.subprocesses import run_on_lines, run_on_terminal, through_shell
from compose_sim.errors import CommandError, ComposesimError, EngineError, EngineSilentError, SpecError
from compose_sim.plugins.slurm.core.endings import RUNNING, WAITING, job_ending, job_exit_code
from compose_sim.plugins.slurm.engine import jobs

_REQUESTS = "control/slurm-requests"  # node/job.py explains them
_POLL_S = 0.1
_LOOK_S = 2.0  # between questions to the controller, which serves all users
_STARTED_WITHIN_S = 120.0
_PING_S = 5.0
_LISTED_WITHIN_S = 10.0
_ENDS_WITHIN_S = 10.0
_MASTER_ENDS_WITHIN_S = 3.0


class SlurmEngine:
    """Job steps, one per node."""

    name = "slurm"

    def __init__(self) -> None:
        """Submit nothing yet."""
        self._progress: Progress = lambda text: None
        self._folder: RunFolder | None = None
        self._job = ""
        self._launcher: subprocess.Popen[bytes] | None = None  # in an allocation, in place of the batch script
        self._noted = False  # what happened to the job
        self._was_silent = False  # the controller

    def describe(self) -> str:
        """Return the version of Slurm."""
        return jobs.ask(["sbatch", "--version"]).strip()

    def prepare(self, plan: Plan, progress: Progress) -> str:
        """Check that the commands of Slurm are there, and that the controller responds."""
        self._progress = progress
        jobs.require_commands()
        return plan.image

    def image_digest(self, image: str) -> str:
        """Return "": there is no image."""
        return ""

    def start(self, plan: Plan, folder: RunFolder) -> None:
        """Submit the job, or use the allocation of this process, and wait for the first nodes, however long the job is pending."""
        self._folder = folder
        folder.files.append(_REQUESTS, "")
        environment = {**os.environ, **plan.environment, "COMPOSESIM_ENGINE": self.name}
        if allocation := os.environ.get("SLURM_JOB_ID"):  # such as under salloc
            self._job, self._launcher = allocation, jobs.start_in_allocation(allocation, plan, folder.path, environment)
            message = f"in the allocation of Slurm job {allocation}; options for a job of its own have no effect"
        else:
            self._job = jobs.submit(plan, folder.path, environment)
            message = f"submitted as Slurm job {self._job}"
        self._progress(message)
        folder.append_event("note", message=message)
        self._await_job(folder)

    def _await_job(self, folder: RunFolder) -> None:
        shown, running_since, looked = "", 0.0, float("-inf")
        while True:
            records = jobs.read_records(folder.path)
            if failed := next((each for each in records if each["kind"] == "failed"), None):
                message = f"the nodes of Slurm job {self._job} cannot run: {failed['message']}"
                raise SpecError(message, evidence=self.output(folder.name, "slurm"), hint=failed["hint"])
            if any(each["kind"] == "running" for each in records):
                return
            if time.monotonic() - looked > _LOOK_S / 4:
                fields, looked = jobs.job_fields(self._job), time.monotonic()
                state, reason = fields.get("JobState", ""), fields.get("Reason", "")
                if not jobs.is_under_way(fields) or self._launcher_exited():
                    if len(jobs.read_records(folder.path)) > len(records):
                        continue
                    self._raise_ended(fields, folder)
                running_since = running_since or (time.monotonic() if state == "RUNNING" else 0.0)
                if state in WAITING and reason not in ("None", shown):
                    self._progress(f"Slurm job {self._job} is pending: {reason}. Ctrl-C cancels it.")
                    folder.append_event("note", message=f"Slurm job {self._job} is pending: {reason}")
                    shown = reason
            if running_since and time.monotonic() - running_since > _STARTED_WITHIN_S:
                raise EngineError(
                    f"Slurm job {self._job} runs, and has not started the nodes for {_STARTED_WITHIN_S:.0f} s",
                    evidence=self.output(folder.name, "slurm"),
                    hint=f"scontrol show job {self._job}",
                )
            time.sleep(_POLL_S)

    def _raise_ended(self, fields: Mapping[str, str], folder: RunFolder) -> None:
        message = job_ending(fields)[1] or f"Slurm job {self._job} ended before it started the nodes"
        where = fields.get("BatchHost", "its first node")
        code = self._launcher.returncode if self._launcher else job_exit_code(fields)
        if code == jobs.NO_FOLDER:
            hint = "work in a folder that all nodes share, or composesim --runs-dir FOLDER …"
            raise SpecError(f"{where} does not see the folder of the run, '{folder.path}'", hint=hint)
        raise EngineError(
            message,
            evidence=self.output(folder.name, "slurm") or f"{fields.get('JobState')}, exit code {code}",
            hint=f"scontrol show job {self._job}; sacct -j {self._job}",
        )

    def _launcher_exited(self) -> bool:
        return self._launcher is not None and self._launcher.poll() is not None

    def exits(self, plan: Plan) -> Iterator[NodeStatus]:
        """Follow what the job records, and the state of the job, which may end without a record."""
        running, seen, looked = {jobs.MASTER, *(node.name for node in plan.initial_nodes)}, 0, time.monotonic()
        folder = self._path_of(plan.run)
        while running and folder:
            new = jobs.read_records(folder)[seen:]
            seen += len(new)
            for record in new:
                if record["kind"] == "started":
                    running.add(record["node"])
                elif record["kind"] == "exited":
                    running.discard(record["node"])
                    self._look_at_job(record["job"], waits=record["exit_code"] != 0)
                    yield jobs.exited(plan.run, record["node"], record["exit_code"], oom=record["oom"])
            if not new and time.monotonic() - looked > _LOOK_S:
                fields, looked = self._look_at_job(self._job), time.monotonic()
                if fields is None:
                    continue
                is_over = fields.get("JobState") not in RUNNING or self._launcher_exited()
                if is_over and len(jobs.read_records(folder)) == seen:
                    code = self._launcher.returncode if self._launcher else job_exit_code(fields)
                    yield from [jobs.exited(plan.run, name, code) for name in sorted(running)]
                    return
            time.sleep(_POLL_S)

    def _look_at_job(self, job: str, *, waits: bool = True) -> Mapping[str, str] | None:
        """Record what happened to the job, and return what the controller knows. If it does not answer, say so once: nodes run on."""
        try:
            fields = jobs.job_fields(job)
            self._note_ending(fields, waits=waits)
            return fields
        except EngineSilentError as error:
            if self._folder and not self._was_silent:
                self._was_silent, message = True, f"{error.message}; the run continues. See: {error.hint}"
                self._progress(message)
                self._folder.append_event("note", message=message)
            return None

    def _note_ending(self, fields: Mapping[str, str], *, waits: bool = True) -> None:
        """Record what happened to the job, before its nodes' exits are taken for failures of the script, or for the end of it."""
        fields = jobs.settled_fields(fields, within_s=_ENDS_WITHIN_S * waits)
        reason, message = jobs.ending_of(fields, is_ours=not self._launcher)
        if reason and self._folder and not self._noted:
            self._noted = True
            self._folder.append_event("stopping", reason=reason, cause=reason, message=message)

    def perform(self, plan: Plan, folder: RunFolder, act: Action) -> None:
        """Have the job start a node, or signal its processes through a step on its machine."""
        if isinstance(act, Start):
            self._start_node(folder, act.node)
            return
        if not isinstance(act, Signal | Pause):
            raise EngineError(f"the slurm engine cannot perform {act!r}", hint="composesim up --engine docker …")
        name = act.name if isinstance(act, Signal) else "STOP" if act.on else "CONT"
        argv, node = self._on_node(plan.run, act.node), jobs.read_nodes(folder.path).get(act.node, {})
        if "exit_code" not in node:
            jobs.ask([*argv, *_task(folder.path, plan.python, "signal", plan.run, act.node, name)])

    def _start_node(self, folder: RunFolder, name: str) -> None:
        if "exit_code" not in (jobs.read_nodes(folder.path).get(name) or {"exit_code": None}):
            return
        before = sum(each["kind"] == "started" for each in jobs.read_records(folder.path))
        folder.files.append(_REQUESTS, json.dumps({"start": name}) + "\n")
        deadline = time.monotonic() + _STARTED_WITHIN_S
        while sum(each["kind"] == "started" for each in jobs.read_records(folder.path)) == before:
            if time.monotonic() > deadline:
                raise EngineError(f"Slurm has not started {name} again", hint=f"composesim ps --run {folder.name}")
            time.sleep(_POLL_S)

    def addresses(self, plan: Plan) -> Mapping[str, str]:
        """Return nothing: the network belongs to the cluster."""
        return {}

    def statuses(self, run: str | None = None) -> tuple[NodeStatus, ...]:
        """Return the nodes of each run that has a job."""
        statuses = []
        for job in jobs.find_jobs(run, within_s=_LISTED_WITHIN_S):
            plan, nodes = try_read_plan(job.folder), jobs.read_nodes(Path(job.folder))
            ranks = {node.name: ",".join(map(str, node.ranks)) for node in plan.nodes} if plan else {}
            statuses += [
                jobs.status_of(job, name, nodes.get(name, {}), ranks.get(name, "")) for name in (jobs.MASTER, *ranks)
            ]
        return tuple(statuses)

    def stop(self, run: str, *, grace_s: float) -> None:
        """Have the job end its nodes with SIGTERM, then the master; kill what is left after the grace period."""
        if self._job:
            self._note_ending(jobs.job_fields(self._job))
        self._noted = True  # what happens to the job from now on is our doing
        for job in jobs.find_jobs(run):
            if job.state in RUNNING:
                SafeFolder(Path(job.folder)).append(_REQUESTS, json.dumps({"stop": grace_s}) + "\n")
                with suppress(EngineError):  # `remove` cancels it
                    jobs.wait_until_over(job, deadline=time.monotonic() + grace_s + _ENDS_WITHIN_S)
        self.remove(run)

    def remove(self, run: str) -> None:
        """Cancel the job of a run. One that has ended its nodes gets a moment to end by itself, and counts as completed then."""
        for job in jobs.find_jobs(run):
            nodes = jobs.read_nodes(Path(job.folder))
            if nodes and all("exit_code" in node for name, node in nodes.items() if name != jobs.MASTER):
                with suppress(EngineError):
                    jobs.wait_until_over(job, deadline=time.monotonic() + _MASTER_ENDS_WITHIN_S)
                    continue
            jobs.cancel(job)

    def execute(self, run: str, node: str, argv: Sequence[str], write: Callable[[str], None] | None = None) -> int:
        """Run a command in a step on the node's machine, with the node's environment and working directory."""
        srun, folder = self._on_node(run, node), self._path_of(run)
        plan = try_read_plan(str(folder))
        if plan is None or folder is None:
            raise EngineError(f"run '{run}' has no plan", hint="composesim ps --all")
        words = _task(folder, plan.python, "exec", run, node, *through_shell(node, argv))
        if write:
            return run_on_lines([*srun, *words], lambda line: None if line.startswith("srun: ") else write(line))
        pty = ["--pty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
        return run_on_terminal([*srun, *pty, *words])

    def output(self, run: str, node: str, *, lines: int = 20) -> str:
        """Return the end of `logs/NODE.out`, where the node's first process prints."""
        folder = self._path_of(run)
        return end_of_output(folder, node, lines) if folder else ""

    def remaining_runs(self) -> Mapping[str, str]:
        """Return the runs that still have a job."""
        return dict(sorted((job.run, job.folder) for job in jobs.find_jobs(within_s=_LISTED_WITHIN_S)))

    def forget_absent_runs(self, over: str = "") -> None:
        """Do nothing: a run without a job has left nothing."""

    def problem(self) -> str:
        """Return that the controller does not respond, if so; record what happened to the job, if nodes ended because of it."""
        try:
            if self._job:
                self._note_ending(jobs.job_fields(self._job))
            jobs.ask(["scontrol", "ping"], within_s=_PING_S)
        except CommandError as error:
            return f"the controller of the Slurm cluster is down: {error.output.strip()}. Try: scontrol ping"
        except ComposesimError as error:
            return f"{error.message}. Try: {error.hint}"
        return ""

    def _on_node(self, run: str, node: str) -> list[str]:
        """Return the start of a command line that runs a program on the machine of a node, beside the node's own step."""
        job = next(iter(jobs.find_jobs(run)), None)
        host = jobs.read_nodes(Path(job.folder)).get(node, {}).get("host") if job else None
        if job is None or host is None:
            raise EngineError(f"'{node}' of run '{run}' is not running", hint=f"composesim ps --run {run}")
        return [
            *("srun", "--quiet", f"--jobid={job.job_id}", "--overlap"),
            *("--nodes=1", "--ntasks=1", f"--nodelist={host}"),
        ]

    def _path_of(self, run: str) -> Path | None:
        if self._folder and self._folder.name == run:
            return self._folder.path
        return next((Path(job.folder) for job in jobs.find_jobs(run)), None)


def _task(folder: Path, python: str, *arguments: str) -> list[str]:
    return [python, *role_command(str(folder), "slurm-task", *arguments)]
