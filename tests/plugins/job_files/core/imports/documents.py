"""Job files with as many fields as their kinds have."""

from __future__ import annotations

import copy
from typing import Any

import yaml

Value = Any
_META = {"name": "demo", "labels": {"team": "a"}, "annotations": {"note": "b"}}
_VARIABLES = [
    {"name": "MODE", "value": "fast"},
    {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "hf"}}},
    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    {"name": "NCCL_SOCKET_IFNAME", "value": "eth0"},
]
_RESOURCES = {
    "limits": {"cpu": "4", "memory": "2Gi", "nvidia.com/gpu": "2", "example.com/nic": "1"},
    "requests": {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "2", "ephemeral-storage": "1Gi"},
    "claims": [{"name": "x"}],
}


def pod(name: str, command: list[str]) -> Value:
    """Return the spec of a pod whose second container trains."""
    container = {
        "name": name,
        "image": "team/train:1",
        "imagePullPolicy": "Always",
        "command": command,
        "args": ["--epochs", "3"],
        "workingDir": "/work",
        "env": copy.deepcopy(_VARIABLES),
        "envFrom": [{"configMapRef": {"name": "settings"}}],
        "ports": [{"containerPort": 29500, "name": "store"}],
        "resources": copy.deepcopy(_RESOURCES),
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "data", "mountPath": "/data", "readOnly": "true"},
        ],
        "livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 5},
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}},
        "securityContext": {"privileged": "true"},
        "stdin": "true",
        "terminationMessagePolicy": "File",
    }
    return {
        "restartPolicy": "Never",
        "schedulerName": "default",
        "priorityClassName": "high",
        "hostNetwork": "true",
        "hostIPC": "true",
        "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"podAffinity": {"x": [{"y": "z"}]}},
        "terminationGracePeriodSeconds": "30",
        "activeDeadlineSeconds": "60",
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccountName": "trainer",
        "initContainers": [{"name": "init", "image": "busybox", "command": ["sh", "-c", "true"]}],
        "containers": [{"name": "sidecar", "image": "proxy", "ports": [{"containerPort": 80}]}, container],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        ],
    }


def _template(name: str, command: list[str]) -> Value:
    return {"metadata": copy.deepcopy(_META), "spec": pod(name, command)}


def _object(version: str, kind: str, spec: Value) -> Value:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": copy.deepcopy(_META),
        "spec": spec,
        "status": {"ready": "1"},
    }


_TORCHRUN = ["torchrun", "--nnodes=2", "--nproc-per-node=2", "--rdzv-id=5", "--log-dir", "logs", "train.py"]
_RUN_POLICY = {
    "cleanPodPolicy": "Running",
    "ttlSecondsAfterFinished": "9",
    "activeDeadlineSeconds": "600",
    "backoffLimit": "2",
    "suspend": "false",
    "managedBy": "x",
    "schedulingPolicy": {"minAvailable": "2", "queue": "q", "minResources": {"cpu": "1"}, "priorityClass": "p"},
}
_JOB = {
    "parallelism": "2",
    "completions": "2",
    "completionMode": "Indexed",
    "backoffLimit": "0",
    "backoffLimitPerIndex": "0",
    "activeDeadlineSeconds": "600",
    "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": ["1"]}}]},
    "suspend": "false",
    "template": _template("trainer", _TORCHRUN),
}
_JOBSET = {
    "network": {"enableDNSHostnames": "true", "publishNotReadyAddresses": "true", "subdomain": "sub"},
    "failurePolicy": {
        "maxRestarts": "3",
        "restartStrategy": "Recreate",
        "rules": [{"name": "a", "action": "FailJobSet"}],
    },
    "successPolicy": {"operator": "All", "targetReplicatedJobs": ["node"]},
    "coordinator": {"replicatedJob": "node", "jobIndex": "0", "podIndex": "0"},
    "startupPolicy": {"startupPolicyOrder": "InOrder"},
    "suspend": "false",
    "managedBy": "x",
    "ttlSecondsAfterFinished": "9",
    "replicatedJobs": [
        {"name": "node", "groupName": "g", "replicas": "1", "template": {"metadata": _META, "spec": _JOB}},
        {
            "name": "data",
            "replicas": "1",
            "dependsOn": [{"name": "node", "status": "Ready"}],
            "template": {"spec": {"template": _template("x", ["sleep", "1"])}},
        },
    ],
}
_ROLES = {
    "Master": {"replicas": "1", "restartPolicy": "Never", "template": _template("pytorch", _TORCHRUN)},
    "Worker": {"replicas": "1", "restartPolicy": "Never", "template": _template("pytorch", [*_TORCHRUN, "-x"])},
}
_RAY_GROUP = {
    "replicas": "2",
    "minReplicas": "1",
    "maxReplicas": "3",
    "numOfHosts": "1",
    "rayStartParams": {"num-cpus": "1"},
}
_RAY = {
    "rayVersion": "2.52.0",
    "enableInTreeAutoscaling": "true",
    "autoscalerOptions": {"idleTimeoutSeconds": "60"},
    "authOptions": {"mode": "token"},
    "headGroupSpec": {
        "rayStartParams": {"num-cpus": "0"},
        "serviceType": "ClusterIP",
        "template": _template("ray-head", []),
    },
    "workerGroupSpecs": [
        {"groupName": "a", **_RAY_GROUP, "template": _template("ray-worker", [])},
        {"groupName": "b", **_RAY_GROUP, "template": _template("ray-worker", [])},
    ],
}
_SERVICE = {
    "image": "team/train:1",
    "command": "torchrun --nnodes=3 train.py",
    "entrypoint": ["/usr/bin/env"],
    "environment": {"MODE": "fast", "HF_TOKEN": "${HF_TOKEN}", "PATH": "/bin"},
    "env_file": ["settings.env"],
    "volumes": [
        {"type": "tmpfs", "target": "/dev/shm", "tmpfs": {"size": "1073741824", "mode": "511"}},
        {"type": "bind", "source": "/data", "target": "/data"},
        "cache:/cache",
    ],
    "shm_size": "1g",
    "networks": ["cluster"],
    "ports": ["80:80"],
    "secrets": ["token"],
    "configs": ["settings"],
    "healthcheck": {"test": ["CMD", "true"], "interval": "5s"},
    "ulimits": {"memlock": {"soft": "1", "hard": "2"}},
    "cap_add": ["SYS_PTRACE"],
    "depends_on": ["board"],
    "user": "1000",
    "working_dir": "/work",
    "logging": {"driver": "none"},
    "stop_grace_period": "1m",
    "init": "true",
    "deploy": {
        "mode": "replicated",
        "replicas": "3",
        "endpoint_mode": "dnsrr",
        "labels": {"a": "b"},
        "placement": {"constraints": ["node.role==worker"], "max_replicas_per_node": "1"},
        "restart_policy": {"condition": "any", "delay": "5s", "max_attempts": "3", "window": "9s"},
        "update_config": {"parallelism": "1"},
        "rollback_config": {"parallelism": "1"},
        "resources": {
            "limits": {"cpus": "2", "memory": "2g", "pids": "100"},
            "reservations": {
                "cpus": "1",
                "memory": "1g",
                "generic_resources": [{"discrete_resource_spec": {"kind": "NVIDIA-GPU", "value": "2"}}],
                "devices": [{"driver": "nvidia", "count": "2", "capabilities": ["gpu"]}, {"capabilities": ["tpu"]}],
            },
        },
    },
}

DOCUMENTS: dict[str, list[Value]] = {
    "jobset": [_object("jobset.x-k8s.io/v1alpha2", "JobSet", _JOBSET)],
    "trainjob": [
        _object(
            "trainer.kubeflow.org/v1alpha1",
            "TrainJob",
            {
                "runtimeRef": {"name": "own", "kind": "ClusterTrainingRuntime", "apiGroup": "trainer.kubeflow.org"},
                "initializer": {"dataset": {"storageUri": "hf://x", "env": [{"name": "A", "value": "b"}]}},
                "trainer": {
                    "image": "team/train:2",
                    "command": _TORCHRUN,
                    "args": ["-x"],
                    "env": copy.deepcopy(_VARIABLES),
                    "numNodes": "2",
                    "numProcPerNode": "2",
                    "resourcesPerNode": copy.deepcopy(_RESOURCES),
                },
                "labels": {"a": "b"},
                "annotations": {"a": "b"},
                "activeDeadlineSeconds": "60",
                "suspend": "false",
                "managedBy": "x",
                "runtimePatches": [
                    {
                        "manager": "me",
                        "trainingRuntimeSpec": {
                            "template": {
                                "spec": {
                                    "replicatedJobs": [
                                        {"name": "node", "template": {"spec": {"template": _template("node", [])}}}
                                    ]
                                }
                            }
                        },
                    }
                ],
            },
        ),
        _object(
            "trainer.kubeflow.org/v1alpha1",
            "ClusterTrainingRuntime",
            {
                "mlPolicy": {"numNodes": "9", "torch": {"numProcPerNode": "2", "elasticPolicy": {"maxNodes": "3"}}},
                "podGroupPolicy": {"coscheduling": {"scheduleTimeoutSeconds": "60"}},
                "template": {"metadata": _META, "spec": _JOBSET},
            },
        )
        | {"metadata": {"name": "own"}},
    ],
    "pytorchjob": [
        _object(
            "kubeflow.org/v1",
            "PyTorchJob",
            {
                "nprocPerNode": "2",
                "runPolicy": _RUN_POLICY,
                "elasticPolicy": {
                    **{"minReplicas": "1", "maxReplicas": "3", "maxRestarts": "5", "nProcPerNode": "2"},
                    **{"rdzvBackend": "c10d", "rdzvPort": "1", "rdzvHost": "x", "rdzvId": "y", "standalone": "true"},
                    **{"rdzvConf": [{"key": "a", "value": "b"}], "metrics": [{"type": "Resource"}]},
                },
                "pytorchReplicaSpecs": _ROLES,
            },
        )
    ],
    "mpijob": [
        _object(
            "kubeflow.org/v2beta1",
            "MPIJob",
            {
                "slotsPerWorker": "2",
                "runLauncherAsWorker": "false",
                "launcherCreationPolicy": "AtStartup",
                "sshAuthMountPath": "/root/.ssh",
                "mpiImplementation": "OpenMPI",
                "runPolicy": _RUN_POLICY,
                "mpiReplicaSpecs": {
                    "Launcher": {
                        "replicas": "1",
                        "restartPolicy": "Never",
                        "template": _template(
                            "l", ["mpirun", "-np", "4", "--bind-to", "none", "-x", "A", "python", "-u", "train.py"]
                        ),
                    },
                    "Worker": {
                        "replicas": "2",
                        "restartPolicy": "Never",
                        "template": _template("w", ["/usr/sbin/sshd", "-De"]),
                    },
                },
            },
        )
    ],
    "rayjob": [
        _object(
            "ray.io/v1",
            "RayJob",
            {
                "entrypoint": "python main.py --x 1",
                "runtimeEnvYAML": "pip: []\n",
                "jobId": "x",
                "metadata": {"a": "b"},
                "clusterSelector": {"a": "b"},
                "submitterPodTemplate": _template("s", ["x"]),
                "shutdownAfterJobFinishes": "true",
                "ttlSecondsAfterFinished": "9",
                "backoffLimit": "2",
                "activeDeadlineSeconds": "60",
                "submissionMode": "K8sJobMode",
                "suspend": "false",
                "entrypointNumCpus": "1",
                "rayClusterSpec": _RAY,
            },
        )
    ],
    "raycluster": [_object("ray.io/v1", "RayCluster", _RAY)],
    "volcano": [
        _object(
            "batch.volcano.sh/v1alpha1",
            "Job",
            {
                "schedulerName": "volcano",
                "minAvailable": "2",
                "queue": "q",
                "priorityClassName": "p",
                "maxRetry": "3",
                "ttlSecondsAfterFinished": "9",
                "volumes": [{"mountPath": "/x", "volumeClaimName": "y"}],
                "policies": [{"event": "PodFailed", "action": "RestartJob"}],
                "plugins": {"pytorch": ["--master=master", "--port=29501"], "svc": [], "env": [], "ssh": ["--x"]},
                "tasks": [
                    {
                        "name": "master",
                        "replicas": "1",
                        "policies": [{"event": "TaskCompleted", "action": "CompleteJob"}],
                    }
                    | {"template": _template("trainer", _TORCHRUN)},
                    {
                        "name": "worker",
                        "replicas": "1",
                        "minAvailable": "1",
                        "template": _template("trainer", _TORCHRUN),
                    },
                ],
            },
        )
    ],
    "swarm": [
        {
            "version": "3.8",
            "services": {"train": _SERVICE, "board": {"image": "tensorboard", "ports": ["6006:6006"]}},
            "networks": {"cluster": {"driver": "overlay", "attachable": "true"}},
            "volumes": {"cache": {"driver": "local"}},
            "secrets": {"token": {"external": "true"}},
            "configs": {"settings": {"file": "x"}},
            "x-note": {"a": ["b"]},
        }
    ],
    "skypilot": [
        {
            "name": "demo",
            "num_nodes": "2",
            "workdir": ".",
            "setup": "pip install x",
            "run": "cd x\ntorchrun --nnodes=$SKYPILOT_NUM_NODES --nproc-per-node=2 --node-rank=$SKYPILOT_NODE_RANK train.py\n",
            "envs": {"MODE": "fast", "PATH": "/bin"},
            "secrets": {"HF_TOKEN": "x"},
            "file_mounts": {"/data": "s3://x", "/more": {"source": "y", "mode": "MOUNT"}},
            "volumes": {"/v": "w"},
            "event_callback": "x",
            "inputs": {"a": "5"},
            "outputs": {"b": "6"},
            "service": {"readiness_probe": "/", "replicas": "2"},
            "resources": {
                **{"cloud": "aws", "region": "us", "zone": "a", "instance_type": "x", "use_spot": "true"},
                **{"accelerators": {"H100": "2"}, "accelerator_args": {"a": "b"}, "cpus": "8+", "memory": "64+"},
                **{"disk_size": "100", "disk_tier": "best", "ports": ["80"], "image_id": "docker:team/train:1"},
                **{"labels": {"a": "b"}, "autostop": {"idle_minutes": "5"}, "any_of": [{"cloud": "gcp"}]},
                **{"job_recovery": {"strategy": "x", "max_restarts_on_errors": "3"}, "network_tier": "best"},
            },
        }
    ],
}


def text_of(documents: list[Value]) -> str:
    """Return documents as one file without anchors."""
    return "---\n".join(yaml.safe_dump(copy.deepcopy(each), sort_keys=False) for each in documents)
