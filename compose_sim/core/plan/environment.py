"""Set the environment of nodes, and hide secrets where a plan is printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from compose_sim.core.host.host import Host
from compose_sim.core.plan.gpus.assignment import binding_environment
from compose_sim.core.plan.model import CONTAINER_HOME, FIRST_NODE, Plan
from compose_sim.core.plan.recipes import ClusterLayout
from compose_sim.core.request.spec import ClusterSpec

SCRATCH = "/scratch"  # the private disk of `--scratch`
_STALL_S = 15.0
# Make libraries use their caches instead of waiting for a download.
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "PIP_NO_INDEX": "1",
}
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def common_environment(layout: ClusterLayout, host: Host, *, run: str, image: str) -> dict[str, str]:
    """Return the variables that composesim sets on all nodes."""
    spec, folder = layout.spec, layout.folder
    ranks = sum(node.nproc_per_node or spec.nproc_per_node for node in spec.node_specs)
    interface = "eth0" if layout.contained else "lo"
    on_cluster = layout.host == FIRST_NODE  # which sets what depends on the machine of the node
    environment = {
        "COMPOSESIM_RUN": run,
        "COMPOSESIM_DIR": folder,
        "COMPOSESIM_MASTER": f"{layout.host}:{layout.port}",
        "COMPOSESIM_SHARED": str(PurePosixPath(folder) / "shared"),
        "COMPOSESIM_ECHO": "1" if layout.contained else "0",
        "COMPOSESIM_STALL_SECONDS": f"{stall_seconds(spec):g}",
        "PYTHONUNBUFFERED": "1",
    }
    if not on_cluster:
        environment |= {
            # By default, each rank would start one thread per core, and all ranks share these cores.
            "OMP_NUM_THREADS": str(max(1, host.cpus // ranks)),
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": f"={interface}",
        }
    if layout.contained:
        # The image may not know the user of the nodes; getpass and torch look at these variables first.
        environment |= {"HOME": CONTAINER_HOME, "USER": host.user_name, "LOGNAME": host.user_name}
        if spec.network == "offline":
            environment |= _OFFLINE
        if spec.scratch:
            environment["COMPOSESIM_SCRATCH"] = SCRATCH
        if image == "host":  # as in the activated environment
            environment["PATH"] = f"{PurePosixPath(layout.python).parent}:{_SYSTEM_PATH}"
    return environment


def stall_seconds(spec: ClusterSpec) -> float:
    """Return how long nothing may move before composesim asks each rank for its stack."""
    return min(_STALL_S, spec.hang_timeout) if spec.hang_timeout else _STALL_S


def gpu_environment(layout: ClusterLayout, host: Host, *, gpus: str, nproc: int) -> dict[str, str]:
    """Return the variables of a node that sees no GPU of this machine: they hide the GPUs, or set how many to emulate."""
    hides = host.gpus.driver and layout.host != FIRST_NODE
    environment = binding_environment(None, host.gpus) if hides else {}
    if gpus == "emulated":
        environment["COMPOSESIM_EMULATED_GPUS"] = str(layout.spec.gpus_per_node or nproc)
    return environment


def with_dotenv(ours: Mapping[str, str], dotenv: Mapping[str, str], *, contained: bool) -> dict[str, str]:
    """Return our variables as `.env` overrides them. Compose reads `.env` itself, but the document would win over it."""
    if contained:
        return {name: value for name, value in ours.items() if name not in dotenv}
    return {**ours, **dotenv}


MASK = "***"
_SECRET_NAME = re.compile(r"secret|token|passw|passphrase|credential|(^|_)(auth|pwd|key)(_|$)|apikey", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"(?<=://)([^/\s:@]*):[^/\s@]+(?=@)")


def masked(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON values, without the values of variables whose names look like secrets, and without passwords in URLs."""
    values: dict[str, Any] = _masked(plan.to_dict())
    return values


def _masked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: {name: _variable(name, text) for name, text in inner.items()}
            if key == "environment"
            else _masked(inner)
            for key, inner in value.items()
        }
    return [_masked(inner) for inner in value] if isinstance(value, list | tuple) else value


def is_secret(name: str) -> bool:
    """Return whether the name of a variable looks like that of a secret."""
    if name == "PWD" or name.startswith("COMPOSESIM_"):  # PWD is the folder of a shell, and part of every path below it
        return False
    return bool(_SECRET_NAME.search(name))


def _variable(name: str, value: str) -> str:
    if is_secret(name):
        return MASK
    return _PASSWORD_IN_URL.sub(rf"\1:{MASK}", value)
