"""Run the master and one agent per node inside a Slurm job: what the batch script starts, on the first node of the allocation.

composesim and this process exchange lines of JSON through two files in the run's folder, which all nodes share. In RECORDS this process
tells which node has started or exited; in REQUESTS composesim asks it to start a node or to stop all of them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ....node.shared import roles
from ....node.shared.process import STOP_NOTE, shell_status

RECORDS, REQUESTS, JOB_FILE = "control/slurm-records", "control/slurm-requests", "control/slurm-job"
MASTER = "master"
_OF_THE_JOB = ("SLURM_CONF", "SLURM_JOB_ID")
_POLL_SECONDS = 0.1
_MASTER_LISTENS_WITHIN = 60.0
_LAST_BYTES = 1 << 16
_OUT_OF_MEMORY = re.compile(rb"^slurmstepd.*(oom_kill|exceeded memory limit)", re.MULTILINE)
# Answer of the test of a node -> what is wrong there, and what to do.
_SHARE = "work in a folder that all nodes share, or composesim --runs-dir FOLDER …"
_FAULTS = {
    "1": ("does not see the folder of the run", _SHARE),
    "2": ("does not see the working directory", _SHARE),
    "3": (
        "does not see the Python of the nodes, {python}",
        "composesim up --python PYTHON …, of an environment that all nodes share",
    ),
    "4": ("has no torch in {python}", "{python} -m pip install torch"),
}
_HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
_TEST = """
[ "$(cat "$0" 2>/dev/null)" = "$SLURM_JOB_ID" ] || exec echo "$SLURMD_NODENAME" 1
cd "$1" 2>/dev/null || exec echo "$SLURMD_NODENAME" 2
[ -x "$2" ] || exec echo "$SLURMD_NODENAME" 3
"$2" -c "$3" || exec echo "$SLURMD_NODENAME" 4
echo "$SLURMD_NODENAME" 0
"""


class JobError(Exception):
    """The nodes cannot be started. `hint` is a command to type."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def main(arguments: list[str]) -> int:
    """Run the job, and return the exit code."""
    return _Job(Path(os.environ["COMPOSESIM_DIR"])).run()


class _Job:
    """The processes of one run: the master, and one `srun` for each node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plan: dict[str, Any] = json.loads((folder / "plan.json").read_text())
        self._nodes = {node["name"]: node for node in self._plan["nodes"]}
        self._run: str = self._plan["run"]
        self._python: str = self._plan["python"]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._address, self._port = "", 0
        self._worst = 0
        self._read = 0  # bytes of the requests
        self._kill_at = float("inf")

    def run(self) -> int:
        """Start the master and the first nodes, and return when all of them have ended."""
        signal.signal(signal.SIGTERM, lambda *_: None)  # for the agents, which report how they end
        if (
            "SLURM_STEP_ID" in os.environ
        ):  # in an allocation of the user: srun would take the size of this step for that of the job
            for name in [name for name in os.environ if name.startswith("SLURM_") and name not in _OF_THE_JOB]:
                del os.environ[name]
        try:
            self._find_nodes()
            self._check_nodes()
            self._start_master()
            for name in list(self._nodes)[: self._plan["initial_node_count"]]:
                self._start_node(name)
        except (JobError, OSError) as error:
            hint = getattr(error, "hint", "") or f"composesim logs --run {self._run}"
            self._record("failed", message=str(error), hint=hint)
            self._end_master()
            return 1
        self._record("running")
        while self._processes:
            self._reap()
            self._handle_requests()
            time.sleep(_POLL_SECONDS)
        self._record("finished")
        return self._worst

    def _find_nodes(self) -> None:
        allocated = _output("squeue", "--noheader", f"--jobs={os.environ['SLURM_JOB_ID']}", "--format=%N").strip()
        names = _output("scontrol", "show", "hostnames", allocated).split()
        if len(names) < len(self._nodes):
            message = f"the allocation has {len(names)} nodes, and the run needs {len(self._nodes)}"
            raise JobError(message, f"composesim up --engine slurm --nodes {len(names)} …")
        self._hosts = dict(zip(self._nodes, names))
        # Not the name, which the other nodes need not know: Slurm itself reaches the node at this address.
        found = re.search(r"NodeAddr=(\S+)", _output("scontrol", "show", "node", names[0]))
        self._address = found.group(1) if found else names[0]

    def _check_nodes(self) -> None:
        """Raise JobError unless every node sees this folder, and the same one at the same path, and a Python with torch."""
        (self._folder / JOB_FILE).write_text(os.environ["SLURM_JOB_ID"])
        hosts, folder = list(self._hosts.values()), self._plan["working_directory"]
        needs = _HAS_TORCH if self._plan["recipe"] == "ddp" else ""
        command = ["sh", "-c", _TEST, str(self._folder / JOB_FILE), folder, self._python, needs]
        answers = _output(*self._srun(f"{self._run}/check", ",".join(hosts), len(hosts)), "--chdir=/", *command)
        seen = dict(line.split() for line in answers.splitlines() if len(line.split()) == 2)
        for host in hosts:
            if seen.get(host) != "0":
                silent = ("did not answer the test of its files", f"scontrol show node {host}")
                what, hint = _FAULTS.get(seen.get(host, ""), silent)
                raise JobError(f"{host} {what}".format(python=self._python), hint.format(python=self._python))

    def _start_master(self) -> None:
        environment = {**os.environ, "COMPOSESIM_NODE": MASTER}
        with (self._folder / "logs" / f"{MASTER}.out").open("ab") as output:
            process = subprocess.Popen(
                self._words(self._plan["master"]["command"]),
                env=environment,
                cwd=self._plan["working_directory"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes[MASTER] = process
        events, deadline = self._folder / "events" / f"{MASTER}.jsonl", time.monotonic() + _MASTER_LISTENS_WITHIN
        while not self._port:
            lines = events.read_text().splitlines() if events.exists() else []
            started = [event for event in map(json.loads, lines) if event["kind"] == "master-started"]
            self._port = started[-1]["data"]["port"] if started else 0
            if not started and (process.poll() is not None or time.monotonic() > deadline):
                raise JobError("the master did not start to listen: see logs/master.out")
            time.sleep(_POLL_SECONDS)
        self._record("started", node=MASTER, host=self._hosts["node-0"])

    def _start_node(self, name: str) -> None:
        node, host = self._nodes[name], self._hosts[name]
        master = {"COMPOSESIM_MASTER": f"{self._address}:{self._port}", "COMPOSESIM_INTERFACE_TO": self._address}
        output = str(self._folder / "logs" / f"{name}.out")
        command = [
            *self._srun(f"{self._run}/{name}", host, 1),
            *("--output", output.replace("%", "%%"), "--open-mode=append", "--kill-on-bad-exit=0"),
            *("--chdir", self._plan["working_directory"]),
            *(self._python, *roles.command("slurm-task", "run", *self._words(node["command"]))[1:]),
        ]
        with (self._folder / "logs" / f"{name}.srun").open("ab") as errors:
            self._processes[name] = subprocess.Popen(
                command,
                env={**os.environ, **node["environment"], **master},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        self._record("started", node=name, host=host)

    def _reap(self) -> None:
        """Record the nodes that have exited, and end the master when composesim asked for the end of all nodes."""
        for name, process in list(self._processes.items()):
            status = process.poll()
            if status is not None:
                del self._processes[name]
                code = shell_status(status)
                self._worst = max(self._worst, code)
                self._record("exited", node=name, exit_code=code, oom=self._ran_out_of_memory(name))
        if self._kill_at < float("inf"):
            if self._processes.keys() <= {MASTER}:
                self._end_master()
            elif time.monotonic() > self._kill_at:
                self._kill_at = time.monotonic() + 5.0
                self._signal_nodes("KILL")

    def _ran_out_of_memory(self, name: str) -> bool:
        """Return whether Slurm reported that it or the kernel killed a process of the node for its memory limit."""
        with suppress(OSError), (self._folder / "logs" / f"{name}.out").open("rb") as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - _LAST_BYTES))
            return bool(_OUT_OF_MEMORY.search(output.read()))
        return False

    def _handle_requests(self) -> None:
        try:
            text = (self._folder / REQUESTS).read_bytes()
        except OSError:
            return
        end = text.rfind(b"\n") + 1
        lines, self._read = text[self._read : end].splitlines(), max(end, self._read)
        for request in map(json.loads, lines):
            if "stop" in request:
                self._kill_at = min(self._kill_at, time.monotonic() + request["stop"])
                (self._folder / STOP_NOTE).touch()
                self._signal_nodes("TERM")
                self._signal_nodes("CONT")  # a frozen node does not react to SIGTERM
            elif request["start"] in self._nodes and request["start"] not in self._processes:
                self._start_node(request["start"])

    def _signal_nodes(self, name: str) -> None:
        """Send a signal to the first process of each node; KILL to all of them."""
        lines = _output("squeue", "--steps", f"--jobs={os.environ['SLURM_JOB_ID']}", "--noheader", "--format=%i %j")
        steps = [step for step, _, own in (line.partition(" ") for line in lines.splitlines()) if self._is_node(own)]
        if steps:
            subprocess.run(["scancel", "--quiet", f"--signal={name}", *steps], check=False)

    def _is_node(self, step: str) -> bool:
        run, _, node = step.strip().rpartition("/")
        return run == self._run and node in self._processes

    def _end_master(self) -> None:
        if MASTER in self._processes:
            self._processes[MASTER].terminate()

    def _words(self, command: list[str]) -> list[str]:
        """Put the address of the first node, which is known only here, in place of the master's name."""
        return [word.replace(self._plan["master"]["name"], self._address) for word in command]

    def _srun(self, name: str, hosts: str, count: int) -> list[str]:
        where = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", f"--nodelist={hosts}"]
        return ["srun", "--overlap", *where, f"--job-name={name}"]

    def _record(self, kind: str, **data: Any) -> None:
        line = json.dumps({"kind": kind, "job": os.environ["SLURM_JOB_ID"], "t": time.time(), **data}) + "\n"
        with (self._folder / RECORDS).open("a") as file:
            file.write(line)


def _output(*argv: str) -> str:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode and not done.stdout:
        raise JobError(f"'{argv[0]}' exited with status {done.returncode}: {done.stderr.decode(errors='replace')}")
    sys.stderr.buffer.write(done.stderr)
    return done.stdout.decode()
