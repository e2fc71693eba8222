"""Build the nodes' image with BuildKit, in a temporary context that contains only what the build needs."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jinja2

from compose_sim import assets
from compose_sim.core.compose.dockerfile import Image, render_dockerfile
from compose_sim.engine.docker.images import image_id
from compose_sim.engine.host.docker_facts import docker_facts
from compose_sim.engine.subprocesses import output_of, run_on_terminal, try_output_of
from compose_sim.errors import ComposesimError, EngineError, EnvironmentMissingError


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """An image that has just been built."""

    tag: str
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFiles:
    """Files and folders of this machine that a build uses."""

    requirements: Path | None = None
    ca_certificate: Path | None = None
    wheels: Path | None = None


def build_image(image: Image, files: BuildFiles, *, tag: str, network: str | None) -> BuiltImage:
    """
    Build an image and tag it; BuildKit prints progress on stderr.

    Raises EnvironmentMissingError if Docker, buildx or the base image is missing, and EngineError if the build fails.
    """
    _require_builder()
    with tempfile.TemporaryDirectory(prefix="composesim-image-") as name:
        context = Path(name)
        _fill(context, image, files)
        argv = ["docker", "buildx", "build", "--load", "--tag", tag]
        argv += ["--network", network] if network else []
        argv += ["--build-context", f"wheels={files.wheels.resolve()}"] if files.wheels else []
        if run_on_terminal([*argv, str(context)]):
            raise _failure(image.base, tag)
    digest, size = output_of(["docker", "image", "inspect", "--format", "{{.Id}} {{.Size}}", tag]).split()
    return BuiltImage(tag=tag, digest=digest, size_bytes=int(size))


def has_wheel(folder: Path | None, distribution: str) -> bool:
    """Return whether a folder contains a wheel of that distribution."""
    return folder is not None and any(folder.glob(f"{distribution}-*.whl"))


def _failure(base: str, tag: str) -> ComposesimError:
    if not image_id(base):
        return EnvironmentMissingError(
            f"the image '{tag}' could not be built from '{base}', which is not on this machine; see the build output above",
            hint="docker images, then: composesim image build --base TAG …",
        )
    return EngineError(
        f"the image '{tag}' could not be built from '{base}'; see the build output above",
        hint="composesim image build --help",
    )


def _require_builder() -> None:
    docker = docker_facts()
    if not docker.available:
        raise EnvironmentMissingError(f"Docker is needed to build an image: {docker.reason}", hint=docker.hint)
    if try_output_of(["docker", "buildx", "version"])[0]:
        hint = "install buildx (docker-buildx-plugin, docker-buildx)"
        raise EnvironmentMissingError("Docker has no buildx plugin", hint=hint)


def _fill(context: Path, image: Image, files: BuildFiles) -> None:
    root = assets.root()
    (context / "Dockerfile").write_text(render_dockerfile(image, loader=jinja2.FileSystemLoader(root)))
    for folder in assets.templates():
        if (folder / "image").is_dir():
            shutil.copytree(folder / "image", context, ignore=shutil.ignore_patterns("*.j2"), dirs_exist_ok=True)
    for framework in image.frameworks:
        if framework.requirements:
            (context / "requirements" / f"{framework.name}.txt").write_text("\n".join(framework.requirements) + "\n")
    for source, name in ((files.requirements, "requirements.txt"), (files.ca_certificate, "build-ca.crt")):
        if source:
            shutil.copyfile(source, context / name)
