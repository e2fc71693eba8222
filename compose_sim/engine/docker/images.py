"""Are the images of a run on this machine, with all that is to run in them? They are made or pulled where they are not."""

from __future__ import annotations

from collections.abc import Iterable

from compose_sim.core.plan.defaults import default_image
from compose_sim.core.plan.model import Plan, PlannedService
from compose_sim.engine.docker.host_image import ensure_host_image
from compose_sim.engine.protocol import Progress
from compose_sim.engine.subprocesses import lines_of, try_output_of
from compose_sim.errors import EnvironmentMissingError

# Says which of the distributions named behind it are not there.
_MISSING = """
import importlib.metadata, sys
for name in sys.argv[1:]:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        print("missing", name)
"""


def ensure(plan: Plan, progress: Progress) -> str:
    """The tag of the nodes' image. EnvironmentMissingError where it, or a service's, cannot be had, or lacks what a service runs."""
    tag = ensure_host_image() if plan.image == "host" else _of_nodes(plan, progress)
    for service in plan.services:
        if service.image and not _is_here(service.image):
            _pull(
                service.image, progress, hint=f"leave it out, or name an image that is: --with {_asked(service)}=IMAGE"
            )
    if plan.image != "host":  # of this machine's Python the plan knows it
        _check_packages(plan, tag)
    return tag


def _of_nodes(plan: Plan, progress: Progress) -> str:
    tag = plan.image
    if not _is_here(tag):
        if tag == default_image(plan.recipe):
            raise EnvironmentMissingError(f"the image '{tag}' has not been built yet", hint=build_command(plan))
        own = "composesim up --image host … runs this machine's own Python; composesim image build makes an image"
        _pull(tag, progress, hint=own)
    return tag


def build_command(plan: Plan) -> str:
    """What makes an image in which this plan's nodes and services can run."""
    services = ",".join(service.name for service in plan.services if service.packages)
    recipe = f" --recipe {plan.recipe}" if plan.recipe != "ddp" else ""
    return f"composesim image build{recipe}{f' --with {services}' if services else ''}"


def _is_here(tag: str) -> bool:
    return try_output_of(["docker", "image", "inspect", "--format", "{{.Id}}", tag])[0] == 0


def _asked(service: PlannedService) -> str:
    """The name by which a service is asked for: what stands beside another one's is part of it."""
    return service.name.partition("-")[0]


def _check_packages(plan: Plan, tag: str) -> None:
    """Asked in a container, for a tenth of what it takes to find out when the service is to start."""
    wanted = {package: service for service in plan.services for package in service.packages}
    if not wanted:
        return
    isolated = (
        "--rm",
        "--network",
        "none",
        "--pull",
        "never",
        "--cap-drop",
        "ALL",
        "--label",
        "composesim.role=helper",
    )
    argv = ["docker", "run", *isolated, "--entrypoint", plan.python, tag, "-c", _MISSING, *wanted]
    for name in _named_in(try_output_of(argv)[1].splitlines()):
        service = wanted[name].name
        raise EnvironmentMissingError(
            f"the image '{tag}' has no {name}, which '--with {service}' runs",
            hint=f"composesim image build --with {service}, or composesim up --image host …, or leave {service} out",
        )


def _named_in(lines: Iterable[str]) -> list[str]:
    return [line.removeprefix("missing ") for line in lines if line.startswith("missing ")]


def _pull(tag: str, progress: Progress, *, hint: str) -> None:
    progress(f"pulling image {tag}")
    puller, lines = lines_of(["docker", "pull", tag])
    said = []
    for line in lines:
        said.append(line.rstrip())
        progress(line.rstrip())
    if puller.wait():
        raise EnvironmentMissingError(
            f"the image '{tag}' is not on this machine and could not be pulled",
            evidence="\n".join(said[-3:]),
            hint=hint,
        )
