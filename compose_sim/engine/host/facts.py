"""Inspect this machine: the facts that a plan depends on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Interface
from pathlib import Path

from compose_sim.core.host.host import DockerFacts, Host, PythonFacts
from compose_sim.engine.host.capacity import (
    available_memory,
    free_disk,
    free_process_ids,
    listening_ports,
    most_neighbors,
    own_free_memory,
    own_free_process_ids,
)
from compose_sim.engine.host.docker_facts import docker_facts
from compose_sim.engine.host.docker_socket import daemon_ids
from compose_sim.engine.host.gpus import inspect_gpus
from compose_sim.engine.host.mapped_mount import why_unmappable
from compose_sim.engine.project_owner import user_of_nodes
from compose_sim.engine.subprocesses import bounded_output_of, output_of
from compose_sim.errors import EnvironmentMissingError

# What a program from /usr needs from outside /usr: the linker's cache, certificates, the time zone, name lookup.
_SYSTEM_PATHS = (
    "/usr",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    # Not all of /etc/ssl: in a project of root, nodes could read the private keys there.
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
_OTHER_BUILDS = {"paddlepaddle": "paddlepaddle-gpu"}  # another distribution of the same module
_PROBE_S, _MAX_OF_PROBE = 60.0, 1 << 20
# Python is isolated (-I), so that it imports nothing from the folder that it is started in. Nothing more is imported once the path
# contains what isolation leaves out, and `find_spec` does not execute the package that it finds.
_PROBE = """
import importlib.metadata, importlib.util, json, os, site, sys
left_out = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), site.getusersitepackages()]
sys.path += [entry for entry in left_out if os.path.isabs(entry) and entry not in sys.path]
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
torch, pip = importlib.util.find_spec("torch"), bool(importlib.util.find_spec("pip"))
versions = {name: version(name) for name in sys.argv[1:] if name != "torch" or torch}
print(json.dumps([sys.prefix, sys.base_prefix, sys.path, versions, torch and torch.origin, pip]))
"""


def inspect_host(
    folder: Path,
    *,
    runs: Path | None = None,
    python: str | None = None,
    packages: Iterable[str] = (),
    user: str | None = None,
    with_docker: bool = True,
    with_ports: bool = False,
) -> Host:
    """
    Inspect this machine, as seen from a working folder.

    `runs` is where runs are kept, if elsewhere. `python` and `user` are the interpreter and the user chosen for nodes, if any;
    `packages` are the distributions that nodes need.
    `with_ports` lists the ports in use, for a plan that may publish some. Raises EnvironmentMissingError if this is not Linux.
    """
    if not Path("/proc/self").exists():
        raise EnvironmentMissingError(
            f"composesim needs Linux: this system ({platform.system()}) has no /proc",
            hint="run it in a container or a virtual machine with Linux, or in WSL 2 on Windows",
        )
    nodes = user_of_nodes(folder, user)
    with ThreadPoolExecutor(max_workers=5) as pool:
        gpus = pool.submit(inspect_gpus)
        docker = pool.submit(docker_facts) if with_docker else None
        listening = pool.submit(listening_ports) if with_ports else None
        subnets = pool.submit(_host_subnets)
        unmappable = pool.submit(_why_unmappable, folder) if with_docker and not (user or nodes.user) else None
        python_facts = find_python(python, packages)
        return Host(
            name=platform.node(),
            system=platform.system(),
            cpus=len(os.sched_getaffinity(0)),
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            free_memory_bytes=available_memory(),
            free_disk_bytes=free_disk(runs or folder),
            free_process_ids=free_process_ids(),
            own_free_memory_bytes=own_free_memory(),
            own_free_process_ids=own_free_process_ids(),
            most_neighbors=most_neighbors(),
            folder=str(folder),
            user_id=nodes.user,
            group_id=nodes.group,
            user_name=nodes.name,
            cannot_map=unmappable.result() if unmappable else "",
            gpus=gpus.result(),
            python=python_facts,
            docker=docker.result() if docker else DockerFacts(available=False, reason="Docker was not checked"),
            system_paths=tuple(path for path in _SYSTEM_PATHS if Path(path).exists()),
            host_subnets=subnets.result(),
            listening=listening.result() if listening else {},
        )


def find_python(wanted: str | None = None, packages: Iterable[str] = ()) -> PythonFacts | None:
    """
    Return the interpreter for nodes: the one named by `wanted`, or the first that has these packages (by default torch).

    The search covers the active environment of venv or conda, our own interpreter, then PATH. If none has them, return the first.
    """
    names = tuple(packages) or ("torch",)
    names += tuple(_OTHER_BUILDS[name] for name in names if name in _OTHER_BUILDS)
    if wanted:
        path = shutil.which(wanted)
        facts = _probe(os.path.abspath(path), names) if path else None
        if facts is None:
            problem = (
                "did not run as a Python interpreter" if path else "is not an executable file or a command on PATH"
            )
            raise EnvironmentMissingError(f"--python '{wanted}' {problem}", hint=f"{wanted} --version")
        return facts
    active = filter(None, (os.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")))
    candidates = [*(f"{environment}/bin/python" for environment in active), sys.executable]
    folders = os.environ.get("PATH", "").split(os.pathsep)
    candidates += [f"{folder}/python3" for folder in folders if folder.startswith("/")]
    found: PythonFacts | None = None
    for executable in dict.fromkeys(candidates):
        if os.access(executable, os.X_OK):
            facts = _probe(executable, names)
            if facts and facts.packages.keys() >= set(packages or ("torch",)):
                return facts
            found = found or facts
    return found


def _probe(executable: str, names: tuple[str, ...]) -> PythonFacts | None:
    if executable == sys.executable:
        torch = importlib.util.find_spec("torch")
        origin = torch.origin if torch else None
        versions = {name: _version(name) for name in names if name != "torch" or torch}
        prefix, base, path = sys.prefix, sys.base_prefix, [entry for entry in sys.path if entry]
        has_pip = importlib.util.find_spec("pip") is not None
    else:
        status, output = bounded_output_of(
            [executable, "-I", "-c", _PROBE, *names], timeout_s=_PROBE_S, most_bytes=_MAX_OF_PROBE
        )
        answer = output.splitlines()[-1:]
        if status or not (answer and answer[0].startswith("[")):
            return None
        prefix, base, path, versions, origin, has_pip = json.loads(answer[0])
    found = {name: version for name, version in versions.items() if version}
    plain = {name: found[other] for name, other in _OTHER_BUILDS.items() if other in found}
    # An editable install or a .pth file may put folders outside the prefixes on the path.
    outside = [entry for entry in path if entry and Path(entry).is_dir() and Path(entry) != Path.cwd()]
    return PythonFacts(
        executable=executable,
        prefixes=tuple(dict.fromkeys([prefix, base, *outside, *_linked_folders(path)])),
        packages={**plain, **found},
        takes_packages=prefix != base or (has_pip and not any(Path(base).glob("lib/python3*/EXTERNALLY-MANAGED"))),
        has_pip=has_pip,
        torch_cuda=_cuda_of(origin) if origin else None,
    )


def _linked_folders(path: Iterable[str]) -> Iterator[str]:
    """Yield the folders that packages are links into: with UV_LINK_MODE=symlink, every file is a link into uv's cache."""
    for metadata in (file for entry in path for file in Path(entry).glob("*.dist-info/METADATA")):
        if metadata.is_symlink():
            yield str(metadata.resolve().parents[2])  # CACHE/ARCHIVE/NAME.dist-info/METADATA


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cuda_of(torch: str) -> str | None:
    """Return the CUDA version of torch, "" for a build without CUDA; read from a file, because importing torch is slow."""
    try:
        text = Path(torch).with_name("version.py").read_text()
    except OSError:
        return None
    match = re.search(r"^cuda\b[^=\n]*=\s*(?:'([^']*)'|None)", text, re.MULTILINE)
    return (match[1] or "") if match else None


def _why_unmappable(folder: Path) -> str:
    """Return why nodes cannot see root's files in a project of root as those of another user; "" if they can."""
    try:
        number = daemon_ids()[0]
        # systemd may have opened the socket for the daemon
        daemon = Path("/proc", Path("/run/docker.pid").read_text().strip() if number == 1 else str(number))
        if (daemon / "comm").read_text() != "dockerd\n" or not (daemon / "ns" / "mnt").samefile("/proc/self/ns/mnt"):
            return "containers are not started from the mounts of this process"
    except OSError:
        return "the process of the Docker daemon is not to be seen"
    return why_unmappable(folder)


def _host_subnets() -> tuple[str, ...]:
    """Return the subnets of this machine's network interfaces."""
    if shutil.which("ip") is None:
        return ()
    interfaces = json.loads(output_of(["ip", "-json", "-4", "address"]) or "[]")
    addresses = [entry for interface in interfaces for entry in interface.get("addr_info", [])]
    return tuple(str(IPv4Interface(f"{entry['local']}/{entry['prefixlen']}").network) for entry in addresses)
