"""Write the jobs of frameworks that one program drives: an MPIJob for Horovod, a RayJob or a RayCluster for Ray."""

from __future__ import annotations

import shlex
from dataclasses import replace

from compose_sim.plugins.job_files.core.exports.job import (
    Job,
    Object,
    container,
    deadline,
    literal,
    pod,
    require_short_name,
    resource,
)

_RAY_PORTS = {"gcs": 6379, "dashboard": 8265, "client": 10001}


def mpijob(job: Job) -> str:
    """Return an MPIJob whose launcher starts one Horovod rank per slot; the image needs sshd."""
    require_short_name(job, f"-worker-{job.nodes - 1}")
    ranks = str(job.nodes * job.nproc)
    command = ["mpirun", "-np", ranks, "--bind-to", "none", "--map-by", "slot", "python", *map(literal, job.program)]
    launcher = replace(job, gpus=0, cpus=None, memory_bytes=None)  # it computes nothing
    return resource(
        "mpijob",
        job,
        {
            "slotsPerWorker": job.nproc,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {
                "cleanPodPolicy": "Running",
                "backoffLimit": job.max_restarts,
                **deadline(job),
            },
            "mpiReplicaSpecs": {
                "Launcher": _role(launcher, "launcher", command, 1),
                "Worker": _role(job, "worker", (), job.nodes),
            },
        },
    )


def rayjob(job: Job) -> str:
    """Return a RayJob, which starts a cluster, runs the script on the head and deletes the cluster."""
    require_short_name(job, "-abcde-worker-abcde")
    return resource(
        "rayjob",
        job,
        {
            "entrypoint": shlex.join(["python", *job.program]),
            "shutdownAfterJobFinishes": True,
            "backoffLimit": job.max_restarts,
            **deadline(job),
            "rayClusterSpec": _ray_cluster(job),
        },
    )


def raycluster(job: Job) -> str:
    """Return a RayCluster, to which scripts are submitted later."""
    require_short_name(job, "-nodes-worker-abcde")
    return resource("raycluster", job, _ray_cluster(job))


def _role(job: Job, name: str, command: tuple[str, ...] | list[str], count: int) -> Object:
    return {"replicas": count, "restartPolicy": "Never", "template": pod(job, container(job, name, command))}


def _ray_cluster(job: Job) -> Object:
    """Return a cluster with a head that runs no tasks, as here, and one group of nodes."""
    head = container(replace(job, gpus=0), "ray-head", ())
    head["ports"] = [{"name": name, "containerPort": port} for name, port in _RAY_PORTS.items()]
    least, most = job.elastic or (job.nodes, job.nodes)
    return {
        **({"enableInTreeAutoscaling": True} if job.elastic else {}),
        "authOptions": {"mode": "token"},
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": pod(job, head)},
        "workerGroupSpecs": [
            {
                "groupName": "nodes",
                "replicas": job.nodes,
                "minReplicas": least,
                "maxReplicas": most,
                "rayStartParams": {},
                "template": pod(job, container(job, "ray-worker", ())),
            }
        ],
    }
