"""Write a job as a shell script, for sbatch or torchrun, as a stack for Docker Swarm or as a task for SkyPilot."""

from __future__ import annotations

import math
import shlex

from compose_sim.errors import SpecError
from compose_sim.plugins.job_files.core.exports.job import Job, Object, as_yaml, torchrun

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


def swarm(job: Job) -> str:
    """Return a stack with one service per node, since the replicas of one service do not know their numbers."""
    return as_yaml(
        {
            "services": {f"node-{number}": _service(job, number) for number in range(job.nodes)},
            "networks": {"cluster": {"driver": "overlay"}},
        }
    )


def _service(job: Job, number: int) -> Object:
    shared_memory = {"type": "tmpfs", "target": "/dev/shm", "tmpfs": {"size": job.shm_bytes}}
    command = torchrun(job, node_rank=str(number), master="node-0", port=str(job.port))
    limits = {
        **({"cpus": f"{job.cpus:g}"} if job.cpus else {}),
        **({"memory": str(job.memory_bytes)} if job.memory_bytes else {}),
    }
    gpus = {"generic_resources": [{"discrete_resource_spec": {"kind": "NVIDIA-GPU", "value": job.gpus}}]}
    needed = {**({"limits": limits} if limits else {}), **({"reservations": gpus} if job.gpus else {})}
    variables = {name: _literal(value) for name, value in job.environment.items()}
    variables |= {name: f"${{{name}:?export it before you deploy}}" for name in job.secrets}
    return {
        "image": job.image,
        "command": [*command, *map(_literal, job.program)],
        **({"environment": variables} if variables else {}),
        "volumes": [shared_memory],
        "networks": ["cluster"],
        "deploy": {
            "endpoint_mode": "dnsrr",  # node-0 must listen at the address that its name has
            "restart_policy": {"condition": "none"},  # a single rank that starts again cannot rejoin
            **({"resources": needed} if needed else {}),
        },
    }


def _literal(word: str) -> str:
    """Return a word that Docker leaves alone: it replaces $NAME."""
    return word.replace("$", "$$")


def skypilot(job: Job) -> str:
    """Return a SkyPilot task. Raise SpecError if it needs GPUs of an unknown kind: SkyPilot chooses machines by them."""
    if job.gpus and not job.accelerator:
        raise SpecError(
            f"SkyPilot chooses machines by the name of the GPU, and {job.gpus} per node are requested",
            hint="composesim export skypilot --accelerator H100 …, or --gpus none",
        )
    resources = {
        **({"accelerators": f"{job.accelerator}:{job.gpus}"} if job.gpus else {}),
        **({"cpus": f"{job.cpus:g}+"} if job.cpus else {}),
        **({"memory": f"{-(-job.memory_bytes // (1 << 30))}+"} if job.memory_bytes else {}),
    }
    if job.image not in ("auto", "host"):
        resources["image_id"] = f"docker:{job.image}"
    command = torchrun(job, node_rank="$SKYPILOT_NODE_RANK", master="$head", port=str(job.port))
    run = f'head=$(echo "$SKYPILOT_NODE_IPS" | sed -n 1p)\n{" ".join(command)} \\\n  {shlex.join(job.program)}\n'
    return as_yaml(
        {
            "name": job.name,
            "num_nodes": job.nodes,
            **({"resources": resources} if resources else {}),
            "workdir": ".",
            **({"envs": dict(job.environment)} if job.environment else {}),
            **({"secrets": dict.fromkeys(job.secrets)} if job.secrets else {}),
            "run": run,
        }
    )
