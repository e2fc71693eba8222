"""Check whether this machine can run clusters, and how to fix what is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from compose_sim.core.host.host import Host
from compose_sim.core.host.torch_versions import REQUIREMENT, range_words, torch_range
from compose_sim.core.plan.capacity import RUN_BYTES, room_for_ranks
from compose_sim.core.plan.defaults import DEFAULT_IMAGE, pip_line
from compose_sim.core.plan.gpus.assignment import choose_binding, label, why_too_old
from compose_sim.core.plan.gpus.gpu_plan import why_no_mps
from compose_sim.core.text import format_bytes
from compose_sim.errors import EnvironmentMissingError

_Finding = tuple[str, str, str]  # status, detail and hint of a check


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What `doctor` checks: the host of a plan, and more. Sizes in bytes."""

    host: Host
    python_why: str  # why nodes run this interpreter
    bridge: bool | None  # whether the kernel supports bridges; None if unknown
    crashed_runs: tuple[str, ...]
    crashed_elsewhere: bool = False  # whether one of them is not of this project


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding: passed, warned (some runs are not possible) or failed (no run is), and a command that fixes it."""

    id: str
    status: str
    detail: str
    hint: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the check as JSON values."""
        return asdict(self)


def diagnose(machine: Machine) -> tuple[Check, ...]:
    """Return all checks, in the order in which to fix them."""
    judges: dict[str, Callable[[Machine], _Finding]] = {"python": _python, "docker": _docker}
    if machine.host.docker.available:
        judges |= {"bridge": _bridge, "image": _image}
    judges |= {"gpu": _gpu, "memory": _memory, "disk": _disk, "leftovers": _leftovers}
    found = {name: judge(machine) for name, judge in judges.items()}
    return tuple(Check(id=name, status=each[0], detail=each[1], hint=each[2]) for name, each in found.items())


def is_fit(checks: tuple[Check, ...]) -> bool:
    """Return whether any run is possible."""
    return all(check.status != "failed" for check in checks)


def _python(machine: Machine) -> _Finding:
    python = machine.host.python
    if python and python.has_torch:
        torch = python.packages["torch"]
        detail = f"nodes run {python.executable} with torch {torch}, {range_words(torch)}: {machine.python_why}"
        if torch_range(torch) == "tested":
            return _passed(detail)
        return "warned", detail, pip_line(python, [f"'{REQUIREMENT}'"])
    detail = f"{python.executable} has no torch" if python else "no python3 was found"
    if DEFAULT_IMAGE in machine.host.docker.images:
        return "warned", f"{detail}; nodes run the image {DEFAULT_IMAGE}", pip_line(python, ["torch"])
    return "failed", detail, pip_line(python, ["torch"])


def _docker(machine: Machine) -> _Finding:
    docker, python = machine.host.docker, machine.host.python
    if docker.available:
        return _passed(docker.reason)
    if python and python.has_torch:
        detail = f"{docker.reason}; runs use the local engine"
        return "warned", detail, docker.hint
    return "failed", docker.reason, docker.hint


def _bridge(machine: Machine) -> _Finding:
    if machine.bridge is False:
        detail = "the kernel has no bridge networks, which connect nodes"
        return "warned", detail, "sudo modprobe bridge"
    known = "has" if machine.bridge else "does not show whether it has"
    return _passed(f"the kernel {known} bridge networks")


def _image(machine: Machine) -> _Finding:
    if DEFAULT_IMAGE in machine.host.docker.images:
        return _passed(f"{DEFAULT_IMAGE} is built")
    if _has_torch(machine):
        return _passed(f"{DEFAULT_IMAGE} is not built, and not needed: nodes run this machine's Python")
    return "warned", f"{DEFAULT_IMAGE} is not built, and this Python has no torch", "composesim image build"


def _gpu(machine: Machine) -> _Finding:
    """List the GPUs, how containers get them and how ranks share one; warn if nodes cannot use them."""
    host, inventory = machine.host, machine.host.gpus
    if inventory.problem:
        detail = f"{inventory.problem}; nodes train on the CPU, with CUDA emulated"
        return "warned", detail, inventory.hint
    if not inventory.gpus:
        return _passed("no NVIDIA GPU: nodes train on the CPU, with CUDA emulated and gloo")
    names = ", ".join(f"{label(gpu)} {gpu.model} ({format_bytes(gpu.memory_bytes)})" for gpu in inventory.gpus)
    cuda = host.python.torch_cuda if host.python else None
    too_old = why_too_old(inventory, cuda)
    if too_old:
        return "warned", f"{names}: {too_old}", "update the driver, or install an older torch"
    if cuda == "":
        detail = f"{names}, but the nodes' torch is built without CUDA"
        return "warned", detail, "install torch with CUDA"
    try:
        _, how = choose_binding(
            inventory, contained=host.docker.available, needed=inventory.gpus, own_driver=_has_torch(machine)
        )
    except EnvironmentMissingError as error:
        return "warned", f"{names}: {error.message}", error.hint
    no_mps = why_no_mps(inventory.gpus[0], inventory)
    shared = f"by time-slicing, because {no_mps}" if no_mps else "through MPS"
    return _passed(f"{names}, driver {inventory.driver}; nodes get them {how} and share one {shared}")


def _memory(machine: Machine) -> _Finding:
    host = machine.host
    free = host.memory_bytes if host.free_memory_bytes is None else host.free_memory_bytes
    room = room_for_ranks(free)
    detail = f"{host.cpus} CPUs; {format_bytes(free)} of {format_bytes(host.memory_bytes)} memory free, room for about {room} ranks"
    if room >= 2:
        return _passed(detail)
    return "warned", detail, "ps aux --sort -rss | head"


def _disk(machine: Machine) -> _Finding:
    free = machine.host.free_disk_bytes
    if free is None:
        return _passed("the free space on the disk of the runs is unknown")
    detail = f"{format_bytes(free)} free on the disk of the runs"
    if free >= RUN_BYTES:
        return _passed(detail)
    return "warned", detail, "composesim prune --finished"


def _leftovers(machine: Machine) -> _Finding:
    if not machine.crashed_runs:
        return _passed("no crashed run has left nodes or networks")
    detail = f"crashed runs have left nodes or networks: {', '.join(machine.crashed_runs)}"
    hint = "composesim prune --everywhere" if machine.crashed_elsewhere else "composesim prune"
    return "warned", detail, hint


def _has_torch(machine: Machine) -> bool:
    python = machine.host.python
    return python is not None and python.has_torch


def _passed(detail: str) -> _Finding:
    return "passed", detail, ""
