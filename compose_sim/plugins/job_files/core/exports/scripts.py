"""Write a job as a shell script: for sbatch, or one line of torchrun per host."""

from __future__ import annotations

import math
import shlex

from compose_sim.plugins.job_files.core.exports.job import Job, torchrun

# The address by which Slurm itself reaches the first node, because other nodes need not know its name: torchrun would wait for it
# without an error. The port depends on the job, so that two jobs on one node do not meet.
_RENDEZVOUS = """\
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
head=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
port=$((20000 + SLURM_JOB_ID % 10000))
"""


def slurm(job: Job) -> str:
    """
    Return a script for sbatch that starts torchrun once per node.

    The rendezvous is static: torchrun's c10d waits forever on nodes whose names share an address (torch issue 73656).
    """
    directives = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        **({"cpus-per-task": math.ceil(job.cpus)} if job.cpus else {}),
        **({"mem": f"{-(-job.memory_bytes // (1 << 20))}M"} if job.memory_bytes else {}),
        **({"gpus-per-node": f"{job.accelerator}:{job.gpus}".lstrip(":")} if job.gpus else {}),
        **({"time": _slurm_time(job.timeout_s)} if job.timeout_s else {}),
        "output": f"{job.name}.%j.log",
        **{key: value for key, value in job.slurm.items() if key != "sbatch"},
    }
    lines = ["#!/bin/bash", *(f"#SBATCH --{name}={value}" for name, value in directives.items())]
    lines += [f"#SBATCH {job.slurm['sbatch']}"] if "sbatch" in job.slurm else []
    return "\n".join([*lines, "set -euo pipefail", *_exports(job), _RENDEZVOUS + _attempts(job), ""])


def torchrun_lines(job: Job) -> str:
    """Return one command line per host; MASTER_ADDR is the address of the first host."""
    lines = [*_exports(job), ': "${MASTER_ADDR:?set it to the address of the first host}"']
    for number in range(job.nodes):
        command = torchrun(job, node_rank=str(number), master='"$MASTER_ADDR"', port=str(job.port))
        lines += [f"# on host {number}", f"{' '.join(command)} {shlex.join(job.program)}"]
    return "\n".join([*lines, ""])


def _attempts(job: Job) -> str:
    """Return the start of all nodes. A failed rank ends all of them, and a new attempt starts all of them."""
    command = torchrun(job, node_rank='"$SLURM_NODEID"', master='"$0"', port='"$1"')
    inner = shlex.quote(f'exec {" ".join(command)} "${{@:2}}"')
    start = f"srun --kill-on-bad-exit=1 bash -c {inner} \\\n  "
    if not job.max_restarts:
        return f'{start}"$head" "$port" {shlex.join(job.program)}'
    return (
        f"for attempt in {{0..{job.max_restarts}}}; do\n"
        f'{start}"$head" "$((port + attempt))" {shlex.join(job.program)} && exit 0\n'
        "done\n"
        "exit 1"
    )


def _exports(job: Job) -> list[str]:
    """Return the variables; the script refuses to start without the secrets, which sbatch takes from its caller's environment."""
    plain = [f"export {name}={shlex.quote(value)}" for name, value in job.environment.items()]
    return [*plain, *(f': "${{{name}:?export it before you submit this script}}"' for name in job.secrets)]


def _slurm_time(seconds: float) -> str:
    """Return days-hours:minutes:seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02d}:{minutes:02d}:{rest:02d}"
