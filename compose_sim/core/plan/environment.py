"""What is every node told by its environment variables, and what may the person's `.env` change of it?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from compose_sim.core.host.host import Host
from compose_sim.core.plan.gpus.binding import binding_environment
from compose_sim.core.request.spec import ClusterSpec

CONTAINER_HOME = "/home/node"
_STALL_S = 15.0
SCRATCH = "/scratch"  # where a node of a run with `--scratch` finds its own disk
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def common_environment(
    spec: ClusterSpec,
    host: Host,
    *,
    run: str,
    folder: str,
    master: str,
    contained: bool,
    image: str,
    python: str,
) -> dict[str, str]:
    """The variables that all nodes have in common; `master` is the rendezvous' host:port."""
    ranks = sum(node.nproc_per_node or spec.nproc_per_node for node in spec.node_specs)
    interface = "eth0" if contained else "lo"
    environment = {
        "COMPOSESIM_RUN": run,
        "COMPOSESIM_DIR": folder,
        "COMPOSESIM_MASTER": master,
        "COMPOSESIM_SHARED": str(PurePosixPath(folder) / "shared"),
        "COMPOSESIM_ECHO": "1" if contained else "0",
        "COMPOSESIM_STALL_SECONDS": f"{stall_seconds(spec):g}",
        "PYTHONUNBUFFERED": "1",
        # Left alone, each rank takes a thread for every core of the machine that all of them share.
        "OMP_NUM_THREADS": str(max(1, host.cpus // ranks)),
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": f"={interface}",
    }
    if contained:
        # An image may not know the user that nodes run as; getpass and torch ask the environment first.
        environment |= {"HOME": CONTAINER_HOME, "USER": host.user_name, "LOGNAME": host.user_name}
        if spec.scratch:
            environment["COMPOSESIM_SCRATCH"] = SCRATCH
        if image == "host":  # as in the activated environment: `python` and its commands are found
            environment["PATH"] = f"{PurePosixPath(python).parent}:{_SYSTEM_PATH}"
    return environment


def stall_seconds(spec: ClusterSpec) -> float:
    """How long no rank may move before composesim asks where each stands."""
    return min(_STALL_S, spec.hang_timeout) if spec.hang_timeout else _STALL_S


def gpu_environment(spec: ClusterSpec, host: Host, *, gpus: str, nproc: int) -> dict[str, str]:
    """What a node that gets none of this machine's GPUs is told: to see none of them, and how many it emulates."""
    environment = binding_environment(None, host.gpus) if host.gpus.driver else {}
    if gpus == "emulated":
        environment["COMPOSESIM_EMULATED_GPUS"] = str(spec.gpus_per_node or nproc)
    return environment


def as_dotenv_changes_it(ours: Mapping[str, str], dotenv: Mapping[str, str], *, contained: bool) -> dict[str, str]:
    """Our own variables as `.env` changes them: Compose reads it itself, below what stands in the document."""
    if contained:
        return {name: value for name, value in ours.items() if name not in dotenv}
    return {**ours, **dotenv}
