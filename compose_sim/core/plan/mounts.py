"""Choose which files of this machine containers see."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

from compose_sim.core.host.host import Host
from compose_sim.core.plan.gpus.gpu_plan import GpuPlan
from compose_sim.core.plan.model import CONTAINER_HOME, HIDDEN, Choice, Mount, Program
from compose_sim.core.request.spec import ClusterSpec

_SYSTEM_TREES = ("/boot", "/etc", "/proc", "/run", "/sys", "/var/lib/containerd", "/var/lib/docker")
_OF_CONTAINERS = (
    *("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/run", "/sbin", "/usr", "/usr/bin", "/usr/lib"),
    *("/usr/lib64", "/usr/local", "/usr/local/bin", "/usr/local/lib", "/usr/sbin", "/var"),
)
_PRIVATE = ("/", "/tmp", CONTAINER_HOME)  # folders that each container has, so that a project cannot be mounted there
CONTAINS_HOME = "contains a home folder"
EMPTY = "empty"  # a folder in the run's folder; not a tmpfs, into which Podman copies what it covers
_CREDENTIALS = (".aws", ".config", ".docker", ".gnupg", ".kube", ".netrc", ".ssh")  # in a home folder


def why_dangerous(source: str, *, homes: Collection[str]) -> str:
    """Return why code that sees this file or folder could take over the machine or an account; "" if it cannot."""
    if source.endswith("docker.sock"):
        return "gives nodes control of Docker, and of this machine"
    if HIDDEN in PurePosixPath(source).parts:
        return "is where composesim keeps runs, with their secrets"
    private = [f"{home}/{name}" for home in homes for name in _CREDENTIALS]
    if any(_is_below(source, tree) for tree in _SYSTEM_TREES):
        return "is a part of the system"
    if any(_is_below(source, path) for path in private):
        return "may hold credentials"
    if any(_is_below(home, source) for home in (*homes, "/root", "/home")):
        return CONTAINS_HOME
    return "contains parts of the system" if any(_is_below(tree, source) for tree in (*_SYSTEM_TREES, "/dev")) else ""


def hides_system(target: str) -> bool:
    """Return whether a mount at this path would hide programs, libraries or devices of a container."""
    return str(PurePosixPath(target)) in _OF_CONTAINERS or any(_is_below(target, tree) for tree in ("/proc", "/sys"))


def is_private(folder: str) -> bool:
    """Return whether every container has its own version of this folder; files below it can be mounted, but not the folder."""
    return folder in _PRIVATE


def private_project(program: Program) -> Choice | None:
    """Return a Choice that says what nodes see of a project in such a folder; None for any other project."""
    if not is_private(program.folder):
        return None
    is_script = not (program.is_module or program.is_command)
    why = f"each node has a private {program.folder}; run in a folder below it, and nodes share all files there"
    return Choice(what="project", value=f"{program.target} alone" if is_script else "no files", why=why)


def node_mounts(spec: ClusterSpec, host: Host, program: Program, *, image: str) -> tuple[Mount, ...]:
    """Return the mounts of the program's files, of Python with `--image host`, and of `--mount`."""
    mounts = [mount for mount in program.mounts if not is_private(mount.target)]
    if image == "host" and host.python:
        paths = {*host.system_paths, *host.python.prefixes}
        outermost = [path for path in paths if not any(_is_below(path, other) for other in paths - {path})]
        mounts += [Mount(source=path, target=path, read_only=True) for path in sorted(outermost)]
    for text in spec.mounts:
        source, target, *mode = text.split(":")
        source = str(PurePosixPath(host.folder) / source)
        mounts.append(Mount(source=source, target=target, read_only=mode == ["ro"]))
    return tuple(mounts)


def covers_of(mounts: Iterable[Mount], folder: str) -> tuple[Mount, ...]:
    """Return mounts that hide a folder of this machine where containers see it through others. No path contains links."""
    path = PurePosixPath(folder)
    return tuple(
        Mount(source=f"./{EMPTY}", target=target_of(path, mount), read_only=True)
        for mount in mounts
        if path.is_relative_to(mount.source)
    )


def target_of(path: PurePosixPath, mount: Mount) -> str:
    """Return where containers see a path below the source of a mount."""
    return f"{mount.target}/{path.relative_to(mount.source)}"


def mapped_sources(spec: ClusterSpec, host: Host, mounts: Iterable[Mount], *, run_folder: str) -> tuple[str, ...]:
    """Return where nodes shall own what root owns, in a project of root: the run's folder, and all mounts but the system's."""
    if spec.user or host.user_id or host.cannot_map or host.docker.rootless:
        return ()
    sources = (mount.source for mount in mounts if mount.source not in host.system_paths)
    return tuple(dict.fromkeys([run_folder, *sources]))


def driver_mounts(gpus: GpuPlan | None) -> tuple[Mount, ...]:
    """Return the mounts of the GPU driver."""
    mounts = gpus.mounts if gpus else {}
    return tuple(Mount(source=source, target=target, read_only=True) for source, target in mounts.items())


def _is_below(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)
