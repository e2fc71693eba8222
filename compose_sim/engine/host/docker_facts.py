"""Find out whether a Docker engine can run nodes here, from its socket: ten times faster than from the docker command."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from compose_sim import assets
from compose_sim.core.host.host import DockerFacts
from compose_sim.engine.host.answers import remembered
from compose_sim.engine.host.docker_socket import answer_of, daemon_ids, docker_endpoint, settings_file
from compose_sim.engine.subprocesses import try_output_of
from compose_sim.errors import EngineSilentError

MINIMUM_COMPOSE = (2, 20)
_SCRIPT = ", as make engine does" if assets.is_checkout() else ""
# Where the docker command looks for Compose, besides the folder of its settings.
_PLUGINS = tuple(f"/usr/{folder}/docker/cli-plugins" for folder in ("local/lib", "local/libexec", "lib", "libexec"))


def docker_facts() -> DockerFacts:
    """Return whether a Docker engine can run nodes here; if not, what is missing and how to fix it."""
    if shutil.which("docker") is None:
        return DockerFacts(
            available=False,
            reason="the docker command is not installed",
            hint=f"install Docker Engine{_SCRIPT}: https://docs.docker.com/engine/install",
        )
    endpoint = docker_endpoint()
    if endpoint and not endpoint.startswith("unix://"):
        return DockerFacts(
            available=False,
            reason=f"the Docker endpoint '{endpoint}' is on another machine, where nodes cannot mount this machine's folders",
            hint="docker context use default, or unset DOCKER_HOST",
        )
    with ThreadPoolExecutor(max_workers=5) as pool:
        version = pool.submit(_engine_version)
        info, networks, images = (pool.submit(_query, path) for path in ("/info", "/networks", "/images/json"))
        compose = pool.submit(_compose_version)
        try:
            status, engine_version = version.result()
        except EngineSilentError as error:
            return DockerFacts(available=False, reason=error.message, hint=error.hint)
        if status:
            return _unreachable(engine_version, endpoint)
        compose_status, compose_version = compose.result()
        if compose_status or _numbers(compose_version) < MINIMUM_COMPOSE:
            return _without_compose(compose_status, compose_version)
        rootless = _is_rootless()
        cpus, memory = _limits(info.result(), rootless=rootless)
        return DockerFacts(
            available=True,
            reason=f"Docker Engine {engine_version} with Compose {compose_version} answers",
            version=engine_version,
            compose_version=compose_version,
            used_subnets=_subnets(networks.result()),
            images=_images(images.result()),
            cpus=cpus,
            memory_bytes=memory,
            rootless=rootless,
        )


def _query(path: str) -> Any:
    """Return what the daemon answers to GET, as JSON; None if it does not answer."""
    try:
        return json.loads(answer_of(path))
    except (OSError, ValueError):
        return None


def _engine_version() -> tuple[int, str]:
    """Return 0 and the version of the engine, or another number and what the docker command prints."""
    match _query("/version"):
        case {"Version": str(version)}:
            return 0, version
    status, text = try_output_of(["docker", "version", "--format", "{{.Server.Version}}"])
    return status, text.strip()


def _compose_version() -> tuple[int, str]:
    """Return 0 and the version of Compose, or another number and what the docker command prints."""
    settings, docker = settings_file(), shutil.which("docker") or "docker"
    plugins = [Path(folder, "docker-compose") for folder in (str(settings.parent / "cli-plugins"), *_PLUGINS)]

    def ask() -> tuple[int, str]:
        status, text = try_output_of(["docker", "compose", "version", "--short"])
        return status, text.strip()

    if not any(plugin.exists() for plugin in plugins):  # the settings name another folder
        return ask()
    return remembered("compose-version", (Path(docker).resolve(), settings, *plugins), ask)


def _limits(info: Any, *, rootless: bool) -> tuple[int | None, int | None]:
    """Return the CPUs and the memory of the daemon's machine, each None if it cannot limit that."""
    try:
        if rootless and info["CgroupVersion"] == "1":
            return None, None  # although Podman claims that it can
        return (info["NCPU"] if info["CpuCfsQuota"] else None, info["MemTotal"] if info["MemoryLimit"] else None)
    except (KeyError, TypeError):
        return None, None


def _is_rootless() -> bool:
    """Return whether an ordinary user runs the daemon, such as with Podman: that user is root in its containers."""
    try:
        return daemon_ids()[1] != 0
    except OSError:  # it stopped in between
        return False


def _images(images: Any) -> tuple[str, ...]:
    """Return the tags of images that composesim has built or made."""
    tags = (tag for image in images or () for tag in image.get("RepoTags") or ())
    return tuple(tag for tag in tags if tag.startswith("composesim") and "/" not in tag)


def _subnets(networks: Any) -> tuple[str, ...]:
    """Return the IPv4 subnets of the daemon's networks."""
    configured = [each for network in networks or () for each in (network.get("IPAM") or {}).get("Config") or ()]
    subnets = (each.get("Subnet", "") for each in configured)
    return tuple(subnet for subnet in subnets if subnet.count(".") == 3 and "/" in subnet)


def _unreachable(text: str, endpoint: str) -> DockerFacts:
    last = text.strip().splitlines()[-1] if text.strip() else "no answer"
    if "permission denied" in text:
        reason = f"this user has no permission for the Docker socket '{endpoint}'"
        return DockerFacts(available=False, reason=reason, hint="sudo usermod -aG docker $USER, then log in again")
    if "Cannot connect" in text or "failed to connect" in text:
        reason = f"no Docker daemon answers at '{endpoint}'"
        return DockerFacts(available=False, reason=reason, hint="sudo systemctl start docker")
    return DockerFacts(available=False, reason=f"'docker version' failed: {last}", hint="docker version")


def _without_compose(status: int, text: str) -> DockerFacts:
    hint = f"install Compose v2 (docker-compose-plugin, docker-compose-v2){_SCRIPT}"
    if status == 0:
        return DockerFacts(
            available=False, reason=f"Compose {text} is older than {'.'.join(map(str, MINIMUM_COMPOSE))}", hint=hint
        )
    if shutil.which("docker-compose"):
        return DockerFacts(
            available=False, reason="only Compose v1 (docker-compose) is installed, not v2 (docker compose)", hint=hint
        )
    return DockerFacts(available=False, reason="Docker has no Compose plugin", hint=hint)


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.strip().lstrip("v").split("-")[0].split(".")
    return tuple(int(part) for part in parts if part.isdecimal())
