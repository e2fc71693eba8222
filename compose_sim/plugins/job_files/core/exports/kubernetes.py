"""Write a torch job as an object of a Kubernetes operator: JobSet, TrainJob, PyTorchJob, or Volcano's Job."""

from __future__ import annotations

from compose_sim.errors import SpecError
from compose_sim.plugins.job_files.core.exports.job import (
    SHARED_MEMORY,
    Job,
    Object,
    container,
    deadline,
    environment,
    literal,
    pod,
    require_short_name,
    resource,
    resources,
    shared_memory,
    torchrun,
)

_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def jobset(job: Job) -> str:
    """Return a JobSet: one indexed Job, whose pods get their node rank from an annotation."""
    require_short_name(job, f"-node-0-{job.nodes - 1}-abcde")
    rank: Object = {"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}
    command = _torchrun(job, node_rank="$(NODE_RANK)", master=f"{job.name}-node-0-0.{job.name}", port=str(job.port))
    # The default, OnFailure, would restart one rank in place while the others wait for it.
    template = pod(job, container(job, "trainer", command, variables=[rank]), restart="Never")
    return resource(
        "jobset",
        job,
        {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": job.max_restarts},
            "replicatedJobs": [
                {
                    "name": "node",
                    "replicas": 1,
                    "template": {
                        "spec": {
                            "parallelism": job.nodes,
                            "completions": job.nodes,
                            "completionMode": "Indexed",
                            "backoffLimit": 0,
                            **deadline(job),
                            "template": template,
                        }
                    },
                }
            ],
        },
    )


def trainjob(job: Job) -> str:
    """Return a TrainJob of the runtime `torch-distributed`, whose controller sets the variables that torchrun reads."""
    require_short_name(job, f"-node-0-{job.nodes - 1}-abcde")
    reserved = [name for name in job.environment if name.startswith("PET_")]
    if reserved:
        raise SpecError(f"a TrainJob must not set '{reserved[0]}': its controller does", hint="leave the variable out")
    variables, needed = environment(job), resources(job)
    mounted = {"name": "node", "volumeMounts": [{"name": "shm", "mountPath": SHARED_MEMORY}]}
    pods = {"volumes": shared_memory(job), "containers": [mounted]}
    patch = {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": pods}}}}]}
    return resource(
        "trainjob",
        job,
        {
            "runtimeRef": {"name": "torch-distributed"},
            **deadline(job),
            "trainer": {
                "image": job.image,
                "command": ["torchrun"],
                "args": [*map(literal, job.program)],
                "numNodes": job.nodes,
                "numProcPerNode": job.nproc,  # without it, a node without GPUs starts one rank per CPU
                **({"env": variables} if variables else {}),
                **({"resourcesPerNode": needed} if needed else {}),
            },
            "runtimePatches": [
                {"manager": "composesim.dev/export", "trainingRuntimeSpec": {"template": {"spec": patch}}}
            ],
        },
    )


def pytorchjob(job: Job) -> str:
    """Return a PyTorchJob of the training operator's first version; an elastic one has workers only."""
    require_short_name(job, f"-worker-{job.nodes - 1}")
    elastic = {}
    if job.elastic:
        least, most = job.elastic
        policy = {"minReplicas": least, "maxReplicas": most, "rdzvBackend": "c10d", "maxRestarts": job.max_restarts}
        elastic = {"elasticPolicy": policy}
        command = ["torchrun", *map(literal, job.program)]  # the operator sets the variables of the rendezvous
        replicas = {"Worker": _replicas(job, command, job.nodes)}
    else:
        command = _torchrun(job, node_rank="$(RANK)", master="$(MASTER_ADDR)", port="$(MASTER_PORT)")
        workers = {"Worker": _replicas(job, command, job.nodes - 1)} if job.nodes > 1 else {}
        replicas = {"Master": _replicas(job, command, 1), **workers}
    return resource(
        "pytorchjob",
        job,
        {
            "nprocPerNode": str(job.nproc),
            "runPolicy": {
                "cleanPodPolicy": "None",
                "backoffLimit": job.max_restarts,
                **deadline(job),
            },
            **elastic,
            "pytorchReplicaSpecs": replicas,
        },
    )


def volcano(job: Job) -> str:
    """Return a Job of Volcano, which starts all pods of the gang or none."""
    require_short_name(job, f"-worker-{job.nodes - 1}")
    plugin = ["--master=master", "--worker=worker", f"--port={job.port}", "--wait-master-enabled=true"]
    command = _torchrun(job, node_rank="$(RANK)", master="$(MASTER_ADDR)", port="$(MASTER_PORT)")
    template = pod(job, container(job, "trainer", command), restart="Never")
    master = {"name": "master", "replicas": 1, "template": template}
    ends_job = {"policies": [{"event": "TaskCompleted", "action": "CompleteJob"}]}
    workers = [{"name": "worker", "replicas": job.nodes - 1, "template": template}] if job.nodes > 1 else []
    return resource(
        "volcano",
        job,
        {
            "schedulerName": "volcano",
            "minAvailable": job.nodes,
            "maxRetry": job.max_restarts,
            "policies": [{"event": "PodFailed", "action": "RestartJob" if job.max_restarts else "AbortJob"}],
            "plugins": {"pytorch": plugin, "svc": []},
            "tasks": [{**master, **ends_job}, *workers],
        },
    )


def _torchrun(job: Job, *, node_rank: str, master: str, port: str) -> list[str]:
    """Return torchrun's command line. Kubernetes replaces $(NAME) in it."""
    return [*torchrun(job, node_rank=node_rank, master=master, port=port), *map(literal, job.program)]


def _replicas(job: Job, command: list[str], count: int) -> Object:
    """Return the pods of one role; the operator finds the container by its name, `pytorch`."""
    template = pod(job, container(job, "pytorch", command))
    return {"replicas": count, "restartPolicy": "OnFailure" if job.max_restarts else "Never", "template": template}
