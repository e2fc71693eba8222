"""Choose the engine, image, GPUs and backend that the user left on `auto`, each with the reason."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from compose_sim.core.host.host import Host, PythonFacts
from compose_sim.core.plan.gpus.assignment import cuda_of_image, require_gpus, why_too_old
from compose_sim.core.plan.model import REQUESTED, Choice
from compose_sim.core.request.flags import OPTIONS, options_of
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import EnvironmentMissingError, SpecError
from compose_sim.plugins.registry import built_in

_EXTRAS = {"ray": "ray[default]"}  # what to install in place of a distribution
DEFAULT_IMAGE = "composesim:latest"  # built by `composesim image build`


def choose_engine(spec: ClusterSpec, host: Host, *, portable: bool = False) -> Choice:
    """Choose Docker if an engine answers, else the local engine. A `portable` document is always for Docker."""
    docker = host.docker
    if portable:
        return Choice(what="engine", value="docker", why="a rendered file is for Docker Compose")
    if spec.engine == "docker":
        if not docker.available:
            raise EnvironmentMissingError(docker.reason, hint=docker.hint)
        return Choice(what="engine", value="docker", why=f"{REQUESTED}; {docker.reason}")
    if spec.engine != "auto":
        return Choice(what="engine", value=spec.engine, why=REQUESTED)
    if docker.available:
        return Choice(what="engine", value="docker", why=docker.reason)
    option = _docker_option(spec)
    if option:
        raise EnvironmentMissingError(
            f"{option} needs the docker engine: {docker.reason}", hint=docker.hint or "composesim doctor"
        )
    return Choice(what="engine", value="local", why=f"plain processes on this machine: {docker.reason}")


def find_cluster(engine: str) -> Any:
    """
    Return the module that plans for the engine of a plug-in, whose nodes are those of a cluster; None for the other engines.

    SUPPORTED holds the fields of a spec that otherwise only the docker engine supports. `check(spec)` and `check_exported(spec)`
    raise SpecError for what a run, or an exported job, cannot do. `choose(spec)` returns the choices of GPUs, backend and job.
    """
    feature = built_in("composesim.clusters").get(engine)
    return feature.load() if feature else None


def default_image(recipe: str) -> str:
    """Return the tag that `composesim image build` gives to the image of a recipe."""
    return DEFAULT_IMAGE if recipe in ("ddp", "exec") else f"composesim-{recipe}:latest"


def choose_image(
    spec: ClusterSpec, host: Host, *, engine: str, packages: Mapping[str, str], portable: bool = False
) -> tuple[Choice, str]:
    """
    Choose the image of the nodes, and the Python in it. `packages` maps what the recipe needs to minimum versions.

    Raises EnvironmentMissingError if neither this machine's Python nor an image on this machine has them.
    """
    python = host.python
    if engine != "docker":
        _require_no_container_options(spec, engine)
        why = f"the {engine} engine runs this machine's Python"
        return Choice(what="image", value="host", why=why), _host_python(spec, host, packages)
    wanted = packages or {"torch": ""}  # a command most likely needs the Python that has torch
    has_all = python and not missing_packages(python, wanted)
    is_built = default_image(spec.recipe) in host.docker.images
    runs_anyway = has_all or (python and not (packages or is_built or portable))  # a command need not be Python
    if spec.image == "host" or (spec.image == "auto" and runs_anyway and host.system == "Linux"):
        executable = _host_python(spec, host, packages)
        versions = [f"{name} {python.packages[name]}" for name in wanted if python and name in python.packages]
        with_them = f" with {', '.join(versions)}" if versions else ""
        return Choice(what="image", value="host", why=f"{executable}{with_them}, mounted read-only"), executable
    if spec.image == "auto":
        why = f"--image host does not work on {host.system}" if has_all else _lacks(python, wanted)
        if not (has_all or portable) and (spec.python or not is_built):
            _host_python(spec, host, wanted)
        return Choice(what="image", value=default_image(spec.recipe), why=why), spec.python or "python3"
    return Choice(what="image", value=spec.image, why=REQUESTED), spec.python or "python3"


def missing_packages(python: PythonFacts, packages: Mapping[str, str]) -> tuple[str, ...]:
    """Return the packages that a Python lacks: `ray`, or `ray 2.40 (it has 2.9)` for an old version."""
    missing = []
    for name, least in packages.items():
        version = python.packages.get(name)
        if version is None:
            missing.append(name)
        elif least and _numbers(version) < _numbers(least):
            missing.append(f"{name} {least} (it has {version})")
    return tuple(missing)


def check_driven(spec: ClusterSpec) -> None:
    """Raise SpecError for options that have no effect if one program drives all nodes."""
    if spec.max_restarts:
        raise SpecError(
            f"--max-restarts '{spec.max_restarts}' does not apply to recipe '{spec.recipe}': its framework handles retries",
            hint="leave --max-restarts out, and configure retries in the script",
        )
    if spec.master != "service":
        raise SpecError(
            f"--master '{spec.master}' does not apply to recipe '{spec.recipe}': its head runs on the master",
            hint="leave --master out",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def cuda_of_nodes(host: Host, *, image: str, packages: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the CUDA that the nodes' framework was built for ("" for none, None if unknown), and the framework's name."""
    if "torch" in packages or not packages:
        return cuda_of_image(image, host.python), "torch"
    found = host.python.packages if image == "host" and host.python else {}
    has_cpu_build = "paddlepaddle" in packages and "paddlepaddle" in found and "paddlepaddle-gpu" not in found
    return ("" if has_cpu_build else None), "paddle" if "paddlepaddle" in packages else ""


def choose_gpus(
    spec: ClusterSpec, host: Host, *, cuda: str | None = None, framework: str = "torch", emulates: bool = True
) -> Choice | None:
    """
    Choose emulated GPUs or none; return None if nodes get GPUs of this machine.

    `cuda` is what the nodes' framework was built for: "" for none, None if unknown. `emulates` is whether the recipe supports
    emulated GPUs. Raises EnvironmentMissingError if requested GPUs are not available or the driver is too old for torch.
    """
    inventory, asked = host.gpus, spec.gpus != "auto" or spec.names_gpus
    if spec.gpus == "emulated" and not emulates:
        raise SpecError(
            f"recipe '{spec.recipe}' does not support emulated GPUs: composesim emulates them in the ranks that its launchers start",
            hint="leave --gpus out, or run a Python script with the recipe 'ddp'",
        )
    if spec.gpus == "emulated":
        return Choice(what="gpus", value="emulated", why=f"CUDA emulated on the CPU: {REQUESTED}")
    if spec.gpus == "none":
        return Choice(what="gpus", value="none", why=REQUESTED)
    if asked:
        require_gpus(inventory, f"--gpus {spec.gpus}" if spec.gpus != "auto" else "gpus of a node")
    why = _why_not_real(host, cuda, framework)
    if why and asked:
        hint = f"install a {framework} for CUDA" if cuda == "" and host.gpus.gpus else "composesim doctor"
        raise EnvironmentMissingError(f"this machine's GPUs cannot be used: {why}", hint=hint)
    if why and not emulates:
        return Choice(what="gpus", value="none", why=why)
    if why:
        return Choice(what="gpus", value="emulated", why=f"CUDA emulated on the CPU: {why}")
    too_old = why_too_old(inventory, cuda)
    if too_old:
        raise EnvironmentMissingError(
            too_old, hint="update the driver, use an older torch, or composesim up --gpus emulated …"
        )
    return None


def _why_not_real(host: Host, cuda: str | None, framework: str) -> str:
    if host.gpus.problem:
        return host.gpus.problem
    if not host.gpus.gpus:
        return "this machine has no NVIDIA GPU"
    return f"the nodes' {framework} was built without CUDA" if cuda == "" else ""


def choose_backend(spec: ClusterSpec, host: Host, *, gpus: str | None = None, all_nodes: bool = True) -> Choice:
    """
    Choose the backend of torch.distributed; gloo emulates NCCL on emulated GPUs.

    `gpus` is None if nodes get GPUs of this machine, and `all_nodes` is whether each of them does.
    """
    if spec.backend == "nccl" and spec.gpus == "emulated":
        return Choice(what="backend", value="nccl", why=f"{REQUESTED}; emulated with gloo")
    if spec.backend == "nccl" and not host.gpus.gpus:
        raise SpecError(
            "backend 'nccl' needs an NVIDIA GPU and this machine has none",
            hint="composesim up --gpus emulated …, which emulates NCCL with gloo, or --backend gloo",
        )
    if spec.backend == "nccl" and (gpus == "none" or not all_nodes):
        problem = "'--gpus none' hides all GPUs" if gpus == "none" else "not every node has one"
        raise SpecError(f"backend 'nccl' needs an NVIDIA GPU, and {problem}", hint="leave --gpus out")
    if gpus == "emulated":
        return Choice(what="backend", value="gloo", why=REQUESTED if spec.backend == "gloo" else "GPUs are emulated")
    if spec.backend != "auto":
        return Choice(what="backend", value=spec.backend, why=REQUESTED)
    if gpus == "none":
        return Choice(what="backend", value="gloo", why="nodes see no GPU")
    if not all_nodes:
        return Choice(what="backend", value="gloo", why="not every node has a GPU")
    return Choice(what="backend", value="nccl", why="nodes have NVIDIA GPUs")


def _host_python(spec: ClusterSpec, host: Host, packages: Mapping[str, str]) -> str:
    if host.python and not missing_packages(host.python, packages):
        return host.python.executable
    image = f", or build an image: composesim image build --recipe {spec.recipe}" if spec.recipe != "ddp" else ""
    other = "or name a Python that has it: composesim up --python /path/to/python …"
    raise EnvironmentMissingError(
        _lacks(host.python, packages), hint=f"{pip_line(host.python, packages)}, {other}{image}"
    )


def pip_line(python: PythonFacts | None, packages: Iterable[str]) -> str:
    """Return the command that installs packages for a Python; in a new environment if the system's is closed to pip."""
    words = " ".join(f"'{_EXTRAS[name]}'" if name in _EXTRAS else name for name in packages)
    executable = python.executable if python else "python3"
    if python and not python.takes_packages:
        return f"{executable} -m venv .venv && . .venv/bin/activate && pip install {words}"
    pip = "" if python is None or python.has_pip else f"{executable} -m ensurepip && "
    return f"{pip}{executable} -m pip install {words}"


def _lacks(python: PythonFacts | None, packages: Mapping[str, str]) -> str:
    if python is None:
        return "no python3 was found on this machine"
    return f"{python.executable} has no {' and no '.join(missing_packages(python, packages))}"


def _docker_option(spec: ClusterSpec, *, supported: Collection[str] = ()) -> str:
    """Return the first option given that only the Docker engine supports, or ""."""
    if spec.image not in ("auto", "host"):
        return "--image"
    settings = (spec, *spec.node_specs)
    options = [each for each in options_of(ClusterSpec) if each.needs_docker and each.field not in supported]
    return next(
        (option.argument for option in options if any(getattr(each, option.field, None) for each in settings)), ""
    )


def _require_no_container_options(spec: ClusterSpec, engine: str) -> None:
    cluster = find_cluster(engine)
    if option := _docker_option(spec, supported=cluster.SUPPORTED if cluster else ()):
        where = "of the cluster" if cluster else "that share this machine"
        raise SpecError(
            f"the {engine} engine does not support {option}: its nodes are plain processes {where}",
            hint=f"leave {option} out, or use containers: composesim up --engine docker …",
        )


def require_no_options_of_others(spec: ClusterSpec, engine: str) -> None:
    """Raise SpecError for the first option given that only another engine supports."""
    others = set(built_in(OPTIONS)) - {engine}
    given = (each for each in options_of(ClusterSpec) if each.group in others and getattr(spec, each.field))
    if option := next(given, None):
        other = f"--engine {option.group}"
        message = f"{option.argument} is for {other}"
        raise SpecError(message, hint=f"composesim up {other} {option.argument} … train.py")
