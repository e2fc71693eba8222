"""Make sure that the images of a run exist and contain what will run in them; build or pull those that do not exist."""

from __future__ import annotations

import io
import tarfile

from compose_sim.core.plan.model import Plan
from compose_sim.engine.docker import daemon
from compose_sim.engine.protocol import Progress
from compose_sim.engine.subprocesses import output_of, stream_lines, try_output_of
from compose_sim.errors import EnvironmentMissingError

HOST_IMAGE = "composesim-host:2"  # contains only mount points for the programs of this machine
_NOT_FOUND = 127  # exit status of `docker run` without the program
_ISOLATED = [
    "docker",
    "run",
    "--rm",
    "--network",
    "none",
    "--pull",
    "never",
    "--cap-drop",
    "ALL",
    "--label",
    "composesim.role=helper",
]
# Prints which of the distributions given as arguments are not installed.
_FIND_MISSING = """
import importlib.metadata, sys
for name in sys.argv[1:]:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        print("missing", name)
"""
_FIND_TORCH = "import importlib.util; print('torch' if importlib.util.find_spec('torch') else 'no torch')"


def image_id(tag: str) -> str:
    """Return the id of an image; "" if it is not on this machine."""
    image = daemon.ask(f"/images/{tag}/json", ignore=[daemon.NOT_FOUND])
    return str(image["Id"]) if image else ""


def ensure_images(plan: Plan, progress: Progress) -> str:
    """Return the tag of the nodes' image. Raise EnvironmentMissingError if an image is missing, or lacks what a service needs."""
    tag = ensure_host_image() if plan.image == "host" else _ensure_node_image(plan, progress)
    for service in plan.services:
        if service.image and not image_id(service.image):
            option = service.name.partition("-")[0]  # NAME-gate and the like belong to the service NAME
            _pull(service.image, progress, hint=f"use an image that exists: --with {option}=IMAGE")
    if plan.image != "host":  # the plan already knows the packages of this machine's Python
        _check_packages(plan, tag)
    return tag


def ensure_host_image() -> str:
    """Return the tag of the image for the programs of this machine, and import it if it does not exist."""
    if not image_id(HOST_IMAGE):
        output_of(["docker", "import", "-", HOST_IMAGE], stdin=_host_image_archive())
    return HOST_IMAGE


def build_command(plan: Plan) -> str:
    """Return the command that builds an image for this plan's nodes and services."""
    services = ",".join(service.name for service in plan.services if service.packages)
    recipe = f" --recipe {plan.recipe}" if plan.recipe != "ddp" else ""
    return f"composesim image build{recipe}{f' --with {services}' if services else ''}"


def _ensure_node_image(plan: Plan, progress: Progress) -> str:
    # Here, as it imports pydantic, which commands that read a run do not need.
    from compose_sim.core.plan.defaults import default_image

    tag = plan.image
    if not image_id(tag):
        if tag == default_image(plan.recipe):
            raise EnvironmentMissingError(
                f"the image '{tag}' has not been built yet",
                evidence="\n".join(f"{each.value}: {each.why}" for each in plan.choices if each.what == "image"),
                hint=build_command(plan),
            )
        hint = "composesim image build, or run this machine's own Python: composesim up --image host …"
        _pull(tag, progress, hint=hint)
    if tag != default_image(plan.recipe):
        _check_python(plan, tag)
    return tag


def _check_python(plan: Plan, tag: str) -> None:
    """Raise EnvironmentMissingError if an image has no Python, or no torch for ranks of torch: its nodes could not say so."""
    if "/" in plan.python or "PYTHONPATH" in plan.environment or len(plan.mounts) > 1:
        return  # either may come from a folder that is mounted
    status, output = try_output_of([*_ISOLATED, "--entrypoint", plan.python, tag, "-c", _FIND_TORCH])
    if status == _NOT_FOUND:
        problem, evidence = f"has no '{plan.python}'", output.strip().splitlines()[:1]
    elif plan.recipe == "ddp" and output.splitlines()[-1:] == ["no torch"]:
        problem, evidence = f"has a '{plan.python}' without torch", []
    else:
        return
    raise EnvironmentMissingError(
        f"the image '{tag}' {problem}, which starts the ranks",
        evidence="\n".join(evidence),
        hint="composesim up --python PATH-IN-THE-IMAGE …, or run this machine's own Python: composesim up --image host …",
    )


def _pull(tag: str, progress: Progress, *, hint: str) -> None:
    progress(f"pulling image {tag}")
    puller, lines = stream_lines(["docker", "pull", tag])
    printed = []
    for line in lines:
        printed.append(line.rstrip())
        progress(line.rstrip())
    if puller.wait():
        message = f"the image '{tag}' is not on this machine and could not be pulled"
        raise EnvironmentMissingError(message, evidence="\n".join(printed[-3:]), hint=hint)


def _check_packages(plan: Plan, tag: str) -> None:
    """Look for the packages of services in a container, which is ten times faster than letting the service fail."""
    needed = {package: service for service in plan.services for package in service.packages}
    if not needed:
        return
    _, output = try_output_of([*_ISOLATED, "--entrypoint", plan.python, tag, "-c", _FIND_MISSING, *needed])
    for name in (line.removeprefix("missing ") for line in output.splitlines() if line.startswith("missing ")):
        service = needed[name].name
        raise EnvironmentMissingError(
            f"the image '{tag}' has no {name}, which '--with {service}' runs",
            hint=f"composesim image build --with {service}, or composesim up --image host …, or leave {service} out",
        )


def _host_image_archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        # docker-init is put into /sbin, which therefore cannot be a link into the read-only /usr.
        for folder in ("dev", "etc", "home", "proc", "sbin", "sys", "tmp", "usr", "var"):
            entry = tarfile.TarInfo(folder)
            # The tmpfs on /tmp gets the mode of this folder, not the one that the mount requests, and ordinary users write to it too.
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(entry)
        for link in ("bin", "lib", "lib64"):
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{link}"
            archive.addfile(entry)
    return buffer.getvalue()
