"""How is the image of the nodes built? By BuildKit, in a context of its own that holds nothing but what it needs."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jinja2

from compose_sim import assets
from compose_sim.core.compose.dockerfile import Image, render_dockerfile
from compose_sim.engine.host.facts import docker_facts
from compose_sim.engine.subprocesses import on_terminal, output_of, try_output_of
from compose_sim.errors import ComposesimError, EngineError, EnvironmentMissingError


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """An image that is there now."""

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
    Build an image and tag it, with BuildKit's own progress on stderr.

    Raises EnvironmentMissingError where Docker or buildx is missing, EngineError where the build failed.
    """
    _require_builder()
    with tempfile.TemporaryDirectory(prefix="composesim-image-") as name:
        context = Path(name)
        _fill(context, image, files)
        argv = ["docker", "buildx", "build", "--load", "--tag", tag]
        argv += ["--network", network] if network else []
        argv += ["--build-context", f"wheels={files.wheels.resolve()}"] if files.wheels else []
        if on_terminal([*argv, str(context)]):
            raise _failure(image.base, tag)
    digest, size = output_of(["docker", "image", "inspect", "--format", "{{.Id}} {{.Size}}", tag]).split()
    return BuiltImage(tag=tag, digest=digest, size_bytes=int(size))


def has_wheel(folder: Path | None, name: str) -> bool:
    """Whether a folder holds a wheel of that distribution."""
    return folder is not None and any(folder.glob(f"{name}-*.whl"))


def _failure(base: str, tag: str) -> ComposesimError:
    said = "what the build said stands above"
    if try_output_of(["docker", "image", "inspect", "--format", "{{.Id}}", base])[0]:
        return EnvironmentMissingError(
            f"the image '{tag}' could not be built from '{base}', which is not on this machine; {said}",
            hint="composesim image build --base TAG … takes an image that is; see: docker images",
        )
    return EngineError(
        f"the image '{tag}' could not be built from '{base}'; {said}", hint="composesim image build --help"
    )


def _require_builder() -> None:
    docker = docker_facts()
    if not docker.available:
        raise EnvironmentMissingError(f"an image is built by Docker: {docker.reason}", hint=docker.hint)
    if try_output_of(["docker", "buildx", "version"])[0]:
        hint = "install buildx (docker-buildx-plugin, docker-buildx), or make engine"
        raise EnvironmentMissingError("Docker has no buildx plugin", hint=hint)


def _fill(context: Path, image: Image, files: BuildFiles) -> None:
    root = assets.root()
    ours = root / "templates" / "image"
    (context / "Dockerfile").write_text(render_dockerfile(image, loader=jinja2.FileSystemLoader(root)))
    shutil.copy(ours / ".dockerignore", context / ".dockerignore")
    shutil.copy(ours / "build-horovod.sh", context / "build-horovod.sh")
    shutil.copytree(ours / "requirements", context / "requirements")
    for framework in image.frameworks:
        if framework.requirements:
            (context / "requirements" / f"{framework.name}.txt").write_text("\n".join(framework.requirements) + "\n")
    for source, name in ((files.requirements, "requirements.txt"), (files.ca_certificate, "build-ca.crt")):
        if source:
            shutil.copyfile(source, context / name)
