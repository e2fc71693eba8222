"""Read jobs of Kubernetes operators: JobSet, TrainJob with its runtime, PyTorchJob, Volcano's Job, MPIJob, RayJob and RayCluster."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from compose_sim.core.request.yaml_source import KeyPath, YamlText, dotted
from compose_sim.plugins.job_files.core.exports.job import STORE_PORT
from compose_sim.plugins.job_files.core.imports.draft import Object
from compose_sim.plugins.job_files.core.imports.launch import Cluster, calls_of_words, take_gpus, take_program
from compose_sim.plugins.job_files.core.imports.pods import (
    REASONS,
    Pod,
    read_container,
    read_pod,
    read_resources,
    read_shared_memory,
)
from compose_sim.plugins.job_files.core.imports.shell import Shell

_POD = ("template", "spec")
_OVERRIDDEN = "overridden by the TrainJob"
RUNTIME_KINDS = ("ClusterTrainingRuntime", "TrainingRuntime")
# Runtimes that Kubeflow Trainer installs -> what they run the script with.
_WELL_KNOWN = {"torch-distributed": "torch", "deepspeed-distributed": "mpi"}


def finish(job: Object, pod: Pod, cluster: Cluster, *, program: tuple[Object, Pod] | None = None) -> None:
    """Take the program of a pod, or that of another, and then the pod's GPUs, which may be as many as its ranks."""
    file, own = program or (job, pod)
    take_program(job.draft, own.calls, cluster, key=dotted(own.command), line=file.line(*own.command), whole=own.words)
    take_gpus(job.draft, cluster.gpus, dotted(pod.gpus_at), job.line(*pod.gpus_at))


def require_python(job: Object, pod: Pod) -> None:
    """Raise SpecError if mpirun starts no Python program: it runs on one node, so the command cannot run on all of them."""
    if job.draft.values.get("recipe") == "exec":
        raise job.error(
            pod.command,
            f"{dotted(pod.command)} starts no Python program, which is what composesim runs under MPI",
            hint="composesim up --recipe exec --nodes N -- COMMAND starts any command on every node",
        )


def take_run_policy(
    job: Object, *path: str | int, retries: Sequence[str] = ("backoffLimit", "maxRetry", "maxRestarts")
) -> None:
    """Take the retries and the time limit of a job."""
    for key in retries:
        if restarts := job.number(*path, key):
            job.take("max_restarts", restarts, *path, key)
    if seconds := job.number(*path, "activeDeadlineSeconds"):
        job.take("timeout", seconds, *path, "activeDeadlineSeconds", said=f"timeout {seconds}s")


def take_same_pods(job: Object, paths: Sequence[KeyPath]) -> None:
    """Say which pods are like the first, and which are not: all nodes are equal here."""
    first = job.peek(*paths[0])
    for path in paths[1:]:
        if job.get(*path) == first:
            job.note("taken", f"like {dotted(paths[0])}", *path)
        else:
            job.note("changed", f"nodes are equal here: like {dotted(paths[0])}", *path)


def read_jobset(job: Object, others: Sequence[YamlText]) -> None:
    """Take a JobSet: the pods of all its Jobs that run the same program are nodes."""
    jobs: list[KeyPath] = [("spec", "replicatedJobs", index) for index in job.keys("spec", "replicatedJobs")]
    if not jobs:
        raise job.error(("spec",), "this JobSet has no replicatedJobs")
    counts = []
    for at in jobs:
        inner = (*at, *_POD)
        pods = job.number(*inner, "parallelism") or job.number(*inner, "completions") or 1
        counts.append(pods * (job.number(*at, "replicas", least=0) or 1))
    first = counts.index(max(counts))
    pod_of = [job.peek(*at, *_POD, *_POD) for at in jobs]
    same = [n for n, pod in enumerate(pod_of) if pod == pod_of[first]]
    take_same_pods(job, [(*jobs[number], *_POD, *_POD) for number in dict.fromkeys((first, *same))])
    nodes = sum(counts[number] for number in same)
    at = (*jobs[first], *_POD, "parallelism")
    job.take("nodes", nodes, *at)
    take_run_policy(job, "spec", "failurePolicy")
    take_run_policy(job, *jobs[first], *_POD, retries=())
    pod = read_pod(job, (*jobs[first], *_POD, *_POD), "trainer")
    finish(job, pod, Cluster(nodes=nodes, gpus=pod.gpus))


def read_trainjob(job: Object, others: Sequence[YamlText]) -> None:
    """Take a TrainJob and its runtime: one in the same file, or one that Kubeflow installs."""
    runtime = _runtime_of(job, others)
    given = job.text("spec", "trainer", "numProcPerNode")
    at: KeyPath = ("spec", "trainer")
    nodes = job.number(*at, "numNodes", least=1)
    if nodes:
        job.take("nodes", nodes, *at, "numNodes")
    nodes, nproc, pod = _read_runtime(runtime, nodes, given) if runtime else (nodes or 1, given, None)
    job.draft.values.setdefault("nodes", nodes)
    own = read_container(job, at)
    own.gpus, own.gpus_at = read_resources(job, (*at, "resourcesPerNode"))
    _take_patches(job)
    take_run_policy(job, "spec")
    if pod and not own.gpus and not job.has(*at, "resourcesPerNode"):
        own.gpus = pod.gpus
    ranks = int(nproc) if nproc.isdecimal() else max(1, own.gpus)
    tasks = ranks if _WELL_KNOWN.get(job.text("spec", "runtimeRef", "name")) == "mpi" else 1
    program = (runtime, pod) if not own.calls and pod and pod.calls and runtime else None
    if runtime and pod and pod.calls and not program:
        runtime.note("ignored", _OVERRIDDEN, *pod.command)
    finish(job, own, Cluster(nodes=nodes, gpus=own.gpus, ranks=ranks, tasks=tasks), program=program)
    if runtime:
        runtime.settle({**REASONS, "numNodes": _OVERRIDDEN, "numProcPerNode": _OVERRIDDEN})


def _runtime_of(job: Object, others: Sequence[YamlText]) -> Object | None:
    """Return the runtime in the same file; None for one that Kubeflow installs. Raise SpecError for an unknown one."""
    name = job.text("spec", "runtimeRef", "name") or "torch-distributed"
    for other in others:
        if other.values.get("kind") in RUNTIME_KINDS and other.values.get("metadata", {}).get("name") == name:
            return Object(other, job.draft)
    if name not in _WELL_KNOWN:
        known = " or ".join(_WELL_KNOWN)
        raise job.error(
            ("spec", "runtimeRef", "name"),
            f"the runtime '{name}' is not in this file, and not {known}",
            hint=f"kubectl get clustertrainingruntime {name} -o yaml, and add it to the file after ---",
        )
    return None


def _read_runtime(runtime: Object, nodes: int | None, nproc: str) -> tuple[int, str, Pod | None]:
    """Take what a runtime says where the TrainJob, with its nodes and ranks per node, says nothing."""
    runtime.used.update({("apiVersion",), ("kind",), ("metadata", "name")})
    policy = ("spec", "mlPolicy")
    of_runtime = None if nodes else runtime.number(*policy, "numNodes", least=1)
    if of_runtime:
        runtime.take("nodes", of_runtime, *policy, "numNodes")
    nproc = nproc or runtime.text(*policy, "torch", "numProcPerNode")
    jobs = ("spec", "template", "spec", "replicatedJobs")
    index = next((n for n in runtime.keys(*jobs) if runtime.peek(*jobs, n, "name") == "node"), None)
    pod = None
    if index is not None:
        runtime.used.add((*jobs, index, "name"))
        pod = read_pod(runtime, (*jobs, index, *_POD, *_POD), "node", "trainer")
    return nodes or of_runtime or 1, nproc, pod


def _take_patches(job: Object) -> None:
    """Take the size of /dev/shm from the patches of the runtime."""
    for patch in job.keys("spec", "runtimePatches"):
        jobs = ("spec", "runtimePatches", patch, "trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        for index in job.keys(*jobs):
            pod = (*jobs, index, *_POD, *_POD)
            for container in job.keys(*pod, "containers"):
                read_shared_memory(job, pod, (*pod, "containers", container))


def read_pytorchjob(job: Object, others: Sequence[YamlText]) -> None:
    """Take a PyTorchJob: the master and the workers are nodes."""
    at = ("spec", "pytorchReplicaSpecs")
    roles = [role for role in ("Master", "Worker") if job.has(*at, role)]
    if not roles:
        raise job.error(at, "this PyTorchJob has neither a Master nor Workers")
    replicas = {role: job.number(*at, role, "replicas", least=0) for role in roles}
    nodes = sum(1 if count is None else count for count in replicas.values())
    job.take("nodes", nodes, *at, roles[-1], "replicas")
    elastic = ("spec", "elasticPolicy")
    if job.has(*elastic):
        least, most = job.number(*elastic, "minReplicas"), job.number(*elastic, "maxReplicas")
        if most and (least or 1) < most:
            job.take("elastic", f"{least or 1}:{most}", *elastic)
        if restarts := job.number(*elastic, "maxRestarts"):
            job.take("max_restarts", restarts, *elastic, "maxRestarts")
    take_run_policy(job, "spec", "runPolicy")
    take_same_pods(job, [(*at, role, *_POD) for role in roles])
    pod = read_pod(job, (*at, roles[0], *_POD), "pytorch")
    given = job.text("spec", "nprocPerNode") or job.text(*elastic, "nProcPerNode")
    ranks = int(given) if given.isdecimal() else max(1, pod.gpus) if given in ("auto", "gpu") else 1
    finish(job, pod, Cluster(nodes=nodes, gpus=pod.gpus, ranks=ranks))


def read_volcano(job: Object, others: Sequence[YamlText]) -> None:
    """Take a Job of Volcano: the pods of all tasks are nodes."""
    tasks = [("spec", "tasks", index) for index in job.keys("spec", "tasks")]
    if not tasks:
        raise job.error(("spec",), "this Job has no tasks")
    counts = []
    for at in tasks:
        counts.append(job.number(*at, "replicas", least=0) or 1)
    for index, word in enumerate(job.words("spec", "plugins", "pytorch")):
        name, _, port = word.partition("=")
        if name == "--port" and port.isdecimal() and int(port) != STORE_PORT:
            job.take("master_port", int(port), "spec", "plugins", "pytorch", index)
    take_run_policy(job, "spec")
    take_same_pods(job, [(*at, *_POD) for at in tasks])
    pod = read_pod(job, (*tasks[0], *_POD), "trainer")
    starts_others = len(tasks) > 1 and any("mpi" in word for call in pod.calls for word in call.words)
    nodes = sum(counts[1:] if starts_others else counts)
    job.take("nodes", nodes, *tasks[-1], "replicas")
    finish(job, pod, Cluster(nodes=nodes, gpus=pod.gpus))
    if starts_others:
        require_python(job, pod)


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
