"""Write a job as a stack for Docker Swarm or as a task for SkyPilot."""

from __future__ import annotations

import shlex

from compose_sim.errors import SpecError
from compose_sim.plugins.job_files.core.exports.job import Job, torchrun
from compose_sim.plugins.job_files.core.exports.pods import Object, as_yaml


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
