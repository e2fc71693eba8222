"""Read jobs that one program drives: an MPIJob, a RayJob, a RayCluster."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from compose_sim.core.request.yaml_source import YamlText, dotted
from compose_sim.plugins.job_files.core.imports.draft import Object
from compose_sim.plugins.job_files.core.imports.kubernetes import finish, require_python, take_run_policy
from compose_sim.plugins.job_files.core.imports.pods import read_pod
from compose_sim.plugins.job_files.core.imports.program import Cluster, calls_of_words, take_gpus, take_program
from compose_sim.plugins.job_files.core.imports.shell import Shell

_POD = ("template", "spec")


def read_mpijob(job: Object, others: Sequence[YamlText]) -> None:
    """Take an MPIJob: the workers are nodes, and the launcher's command names the script."""
    roles = ("spec", "mpiReplicaSpecs")
    for role in ("Launcher", "Worker"):
        if not job.has(*roles, role):
            raise job.error(roles, f"this MPIJob has no {role}")
    nodes = job.number(*roles, "Worker", "replicas") or 1
    job.take("nodes", nodes, *roles, "Worker", "replicas")
    slots = job.number("spec", "slotsPerWorker", least=1) or 1
    _take_policy_of_driver(job, "spec", "runPolicy")
    worker = read_pod(job, (*roles, "Worker", *_POD))
    if worker.words:
        job.note("ignored", "the launcher's command names the script", *worker.command)
    launcher = read_pod(job, (*roles, "Launcher", *_POD), with_resources=False)
    worker.calls, worker.command, worker.words = launcher.calls, launcher.command, launcher.words
    finish(job, worker, Cluster(nodes=nodes, gpus=worker.gpus, ranks=slots))
    require_python(job, worker)
    is_horovod = any(word.endswith("horovodrun") for call in worker.calls for word in call.words)
    if is_horovod or any("mpirun" in word for call in worker.calls for word in call.words):
        job.draft.take("recipe", "horovod", "kind", job.line("kind"))


def read_rayjob(job: Object, others: Sequence[YamlText]) -> None:
    """Take a RayJob: the workers are nodes, and the entry point is the script that drives them."""
    _read_ray_cluster(job, "spec", "rayClusterSpec")
    _take_policy_of_driver(job, "spec")
    try:
        words = shlex.split(job.text("spec", "entrypoint"))
    except ValueError as error:
        raise job.error(("spec", "entrypoint"), f"spec.entrypoint: {error}") from None
    if not words:
        raise job.error(("spec",), "this RayJob has no entrypoint")
    calls = calls_of_words(tuple(words), job.line("spec", "entrypoint"), Shell(variables={}))
    cluster = Cluster(nodes=job.draft.values["nodes"], gpus=0)
    take_program(job.draft, calls, cluster, key="spec.entrypoint", line=job.line("spec", "entrypoint"))
    job.draft.values.pop("nproc_per_node", None)  # Ray nodes have no ranks
    job.draft.take("recipe", "ray", "kind", job.line("kind"))


def read_raycluster(job: Object, others: Sequence[YamlText]) -> None:
    """Take a RayCluster, which names no script."""
    _read_ray_cluster(job, "spec")
    job.draft.take("recipe", "ray", "kind", job.line("kind"))


def _read_ray_cluster(job: Object, *path: str) -> None:
    groups = [(*path, "workerGroupSpecs", index) for index in job.keys(*path, "workerGroupSpecs")]
    head = (*path, "headGroupSpec")
    if not groups and job.has(*head):
        job.note("changed", "the head runs the tasks: one node here", *head, "rayStartParams")
        groups = [head]
    if not groups:
        raise job.error(path, "this Ray cluster has neither a headGroupSpec nor workerGroupSpecs")
    nodes, least, most = 0, 0, 0
    for at in groups:
        count = job.number(*at, "replicas") or 1
        nodes += count
        least += job.number(*at, "minReplicas") or count
        most += job.number(*at, "maxReplicas") or count
    job.take("nodes", nodes, *groups[0], "replicas")
    if job.text(*path, "enableInTreeAutoscaling") == "true" and least < most:
        job.take("elastic", f"{max(1, least)}:{most}", *groups[0], "minReplicas")
    own = read_pod(job, (*groups[0], *_POD), "ray-worker")
    image, here = job.peek(*head, *_POD, "containers", 0, "image"), job.draft.values.get("image")
    if groups == [head]:
        pass
    elif image and image != here:
        job.note("changed", f"the head runs '{here}', like the nodes", *head)
    else:
        job.note("ignored", "the head is the master of the run, which has no limits", *head)
    for at in groups[1:]:
        job.note("changed", f"nodes are equal here: like {dotted(groups[0])}", *at, *_POD)
    take_gpus(job.draft, own.gpus, dotted(own.gpus_at), job.line(*own.gpus_at))


def _take_policy_of_driver(job: Object, *path: str) -> None:
    take_run_policy(job, *path)
    if job.draft.values.pop("max_restarts", None):
        job.draft.notes = [note for note in job.draft.notes if not note.text.startswith("max_restarts")]
        job.note("ignored", "the framework handles retries, or the script does", *path, "backoffLimit")
