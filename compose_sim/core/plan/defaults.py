"""Where the person said `auto`: which engine, image and backend, and why?"""

from __future__ import annotations

import re
from collections.abc import Mapping

from compose_sim.core.host.host import Host, PythonFacts
from compose_sim.core.plan.gpus.driver import cuda_of_image, why_too_old
from compose_sim.core.plan.gpus.request import require_gpus
from compose_sim.core.plan.model import Choice
from compose_sim.core.request.flags import options_of
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import EnvironmentMissingError, SpecError

DEFAULT_IMAGE = "composesim:latest"  # what `composesim image build` makes


def choose_engine(spec: ClusterSpec, host: Host, *, portable: bool = False) -> Choice:
    """Docker where an engine answers, else the local engine; a `portable` document is always for Docker."""
    docker = host.docker
    if portable:
        return Choice(what="engine", value="docker", why="a rendered file is for Docker Compose")
    if spec.engine == "docker":
        if not docker.available:
            raise EnvironmentMissingError(docker.reason, hint=docker.hint)
        return Choice(what="engine", value="docker", why=f"asked for; {docker.reason}")
    if spec.engine == "local":
        return Choice(what="engine", value="local", why="asked for")
    if docker.available:
        return Choice(what="engine", value="docker", why=docker.reason)
    wants_docker = _docker_option(spec)
    if wants_docker:
        raise EnvironmentMissingError(
            f"{wants_docker} needs the docker engine: {docker.reason}", hint=docker.hint or "composesim doctor"
        )
    return Choice(what="engine", value="local", why=f"plain processes on this machine, since {docker.reason}")


def default_image(recipe: str) -> str:
    """What `composesim image build` makes for a recipe."""
    return DEFAULT_IMAGE if recipe in ("ddp", "exec") else f"composesim-{recipe}:latest"


def choose_image(spec: ClusterSpec, host: Host, *, engine: str, packages: Mapping[str, str]) -> tuple[Choice, str]:
    """The image of the nodes and the Python they run; `packages` are what the recipe needs, with the least version of each."""
    python = host.python
    if engine == "local":
        _require_no_container_options(spec)
        why = "the local engine runs this machine's Python"
        return Choice(what="image", value="host", why=why), _own_python(spec, host, packages)
    wanted = packages or {"torch": ""}  # a command's Python most likely is the one with torch
    has_all = python and not missing_packages(python, wanted)
    if spec.image == "host" or (spec.image == "auto" and has_all and host.system == "Linux"):
        executable = _own_python(spec, host, packages)
        versions = [f"{name} {python.packages[name]}" for name in wanted if python and name in python.packages]
        with_them = f" with {', '.join(versions)}" if versions else ""
        return Choice(what="image", value="host", why=f"{executable}{with_them}, mounted read-only"), executable
    if spec.image == "auto":
        why = f"no Python with {' and '.join(wanted)} was found on this machine"
        return Choice(what="image", value=default_image(spec.recipe), why=why), spec.python or "python3"
    return Choice(what="image", value=spec.image, why="asked for"), spec.python or "python3"


def missing_packages(python: PythonFacts, packages: Mapping[str, str]) -> tuple[str, ...]:
    """What a Python lacks of these, in words: `ray`, or `ray 2.40 (it has 2.9)` where its version is too old."""
    missing = []
    for name, least in packages.items():
        version = python.packages.get(name)
        if version is None:
            missing.append(name)
        elif least and _numbers(version) < _numbers(least):
            missing.append(f"{name} {least} (it has {version})")
    return tuple(missing)


def check_driven(spec: ClusterSpec) -> None:
    """SpecError for what has no meaning where one program drives all nodes: it would be asked for and not done."""
    if spec.max_restarts:
        raise SpecError(
            f"--max-restarts '{spec.max_restarts}' begins new rounds, and recipe '{spec.recipe}' has none: its framework retries",
            hint="leave --max-restarts out; how often is said in the script",
        )
    if spec.master != "service":
        raise SpecError(
            f"--master '{spec.master}' has a script listen at MASTER_ADDR, and recipe '{spec.recipe}' has its head on the master",
            hint="leave --master out",
        )


def check_options(given: Mapping[str, str], known: Mapping[str, str], *, recipe: str) -> None:
    """SpecError for an option that the recipe does not know."""
    for name in given:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise SpecError(f"recipe '{recipe}' has no option '{name}': {takes}", hint="composesim up --help")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def cuda_of_nodes(host: Host, *, image: str, packages: Mapping[str, str]) -> tuple[str | None, str]:
    """The CUDA that a recipe's framework was built for on nodes ("" for none, None where it is not known), and its name."""
    if "torch" in packages or not packages:
        return cuda_of_image(image, host.python), "torch"
    found = host.python.packages if image == "host" and host.python else {}
    has_cpu_build = "paddlepaddle" in packages and "paddlepaddle" in found and "paddlepaddle-gpu" not in found
    return ("" if has_cpu_build else None), "paddle" if "paddlepaddle" in packages else ""


def choose_gpus(
    spec: ClusterSpec, host: Host, *, cuda: str | None = None, framework: str = "torch", emulates: bool = True
) -> Choice | None:
    """
    Whether nodes show emulated GPUs, or none; None where they get this machine's own.

    `cuda` is what the nodes' framework was built for: "" for none, None where it is not known. `emulates` says whether what runs there
    can be shown emulated ones. Raises EnvironmentMissingError where GPUs were asked for that cannot be had, or the driver is too
    old for that torch.
    """
    inventory, asked = host.gpus, spec.gpus != "auto" or spec.names_gpus
    if spec.gpus == "emulated" and not emulates:
        raise SpecError(
            f"GPUs are emulated within torch, and recipe '{spec.recipe}' starts other programs than composesim's launcher for torch",
            hint="leave --gpus out, or run a Python script by the recipe 'ddp'",
        )
    if spec.gpus == "emulated":
        return Choice(what="gpus", value="emulated", why="CUDA emulated on the CPU: asked for")
    if spec.gpus == "none":
        return Choice(what="gpus", value="none", why="asked for")
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
            too_old, hint="update the driver, take an older torch, or composesim up --gpus emulated …"
        )
    return None


def _why_not_real(host: Host, cuda: str | None, framework: str) -> str:
    if host.gpus.problem:
        return host.gpus.problem
    if not host.gpus.gpus:
        return "this machine has no NVIDIA GPU"
    return f"the nodes' {framework} is built without CUDA" if cuda == "" else ""


def choose_backend(spec: ClusterSpec, host: Host, *, gpus: str | None = None, all_nodes: bool = True) -> Choice:
    """
    What torch.distributed backend the nodes are set up for; gloo stands in for NCCL on emulated GPUs.

    `gpus` is None where nodes get this machine's own; `all_nodes` whether each of them does.
    """
    if spec.backend == "nccl" and spec.gpus == "emulated":
        return Choice(what="backend", value="nccl", why="asked for; emulated by gloo")
    if spec.backend == "nccl" and not host.gpus.gpus:
        raise SpecError(
            "backend 'nccl' needs an NVIDIA GPU and this machine has none",
            hint="composesim up --gpus emulated …, which emulates NCCL by gloo, or --backend gloo",
        )
    if spec.backend == "nccl" and (gpus == "none" or not all_nodes):
        shows = "'--gpus none' shows none" if gpus == "none" else "not every node has one"
        raise SpecError(f"backend 'nccl' needs an NVIDIA GPU, and {shows}", hint="leave --gpus out")
    if gpus == "emulated":
        return Choice(what="backend", value="gloo", why="asked for" if spec.backend == "gloo" else "GPUs are emulated")
    if spec.backend != "auto":
        return Choice(what="backend", value=spec.backend, why="asked for")
    if gpus == "none":
        return Choice(what="backend", value="gloo", why="no GPU is shown")
    if not all_nodes:
        return Choice(what="backend", value="gloo", why="not every node has a GPU")
    return Choice(what="backend", value="nccl", why="nodes have NVIDIA GPUs")


def _own_python(spec: ClusterSpec, host: Host, packages: Mapping[str, str]) -> str:
    missing = missing_packages(host.python, packages) if host.python else tuple(packages)
    if host.python and not missing:
        return host.python.executable
    found = f"'{host.python.executable}' has no {missing[0]}" if host.python else "no python3 was found"
    names = " and ".join(packages) or "python3"
    image = f", or make an image: composesim image build --recipe {spec.recipe}" if spec.recipe != "ddp" else ""
    raise EnvironmentMissingError(
        f"no Python with {names} on this machine: {found}",
        hint=f"pip install {' '.join(packages)}, or name one: composesim up --python /path/to/python …{image}",
    )


def _docker_option(spec: ClusterSpec) -> str:
    """Return the first option given that only the Docker engine supports, or ""."""
    if spec.image not in ("auto", "host"):
        return "--image"
    settings = (spec, *spec.node_specs)
    options = [option for option in options_of(ClusterSpec) if option.needs_docker]
    return next(
        (option.argument for option in options if any(getattr(each, option.field, None) for each in settings)), ""
    )


def _require_no_container_options(spec: ClusterSpec) -> None:
    option = _docker_option(spec)
    if option:
        raise SpecError(
            f"the local engine cannot do {option}: its nodes are plain processes that share this machine",
            hint=f"leave {option} out, or use containers: composesim up --engine docker …",
        )
