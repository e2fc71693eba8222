"""Choose which files of this machine containers see."""

from __future__ import annotations

from pathlib import PurePosixPath

from compose_sim.core.host.host import Host
from compose_sim.core.plan.gpus.gpu_plan import GpuPlan
from compose_sim.core.plan.model import Mount, Program
from compose_sim.core.request.spec import ClusterSpec


def node_mounts(spec: ClusterSpec, host: Host, program: Program, *, image: str) -> tuple[Mount, ...]:
    """Return the mounts of the program's files, of Python with `--image host`, and of `--mount`."""
    mounts = list(program.mounts)
    if image == "host" and host.python:
        paths = {*host.system_paths, *host.python.prefixes}
        outermost = [path for path in paths if not any(_is_below(path, other) for other in paths - {path})]
        mounts += [Mount(source=path, target=path, read_only=True) for path in sorted(outermost)]
    for text in spec.mounts:
        source, target, *mode = text.split(":")
        source = str(PurePosixPath(host.folder) / source)
        mounts.append(Mount(source=source, target=target, read_only=mode == ["ro"]))
    return tuple(mounts)


def driver_mounts(gpus: GpuPlan | None) -> tuple[Mount, ...]:
    """Return the mounts of the GPU driver."""
    mounts = gpus.mounts if gpus else {}
    return tuple(Mount(source=source, target=target, read_only=True) for source, target in mounts.items())


def _is_below(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)
