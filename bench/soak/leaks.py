"""Find what these runs have left on this machine: containers, networks, rules of the firewall, held nodes, shaped links, processes."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress

import psutil


def left_of(prefix: str) -> list[str]:
    """Return a description of everything whose run name begins with `prefix`; empty if all is well."""
    left = []
    for kind, listing in {"container": ["ps", "--all"], "network": ["network", "ls"]}.items():
        for line in _docker(*listing, "--format", "{{.ID}} {{.Labels}}"):
            name, _, labels = line.partition(" ")
            left += [f"{kind} {name}"] if _is_of(prefix, labels) else []
    for kind in ("iptables-nft", "iptables-legacy"):
        if shutil.which(kind):
            shown = subprocess.run([kind, "-S"], capture_output=True, text=True).stdout
            left += [f"rule {line}" for line in shown.splitlines() if f"composesim:{prefix}" in line]
    return [*left, *_processes_of(prefix)]


def running_of(prefix: str) -> list[str]:
    """Return a description of everything that still runs, of runs whose name begins with `prefix`: containers and processes."""
    listed = (line.partition(" ") for line in _docker("ps", "--format", "{{.ID}} {{.Labels}}"))
    return [*(f"container {name}" for name, _, labels in listed if _is_of(prefix, labels)), *_processes_of(prefix)]


def shaped_links() -> int:
    """Return how many interfaces of this machine have one of our queues; those of nodes disappear with their namespaces."""
    if not shutil.which("tc"):
        return 0
    shown = subprocess.run(["tc", "qdisc", "show"], capture_output=True, text=True).stdout
    return sum(line.split()[1] in ("htb", "tbf", "netem", "ingress") for line in shown.splitlines() if line)


def _is_of(prefix: str, labels: str) -> bool:
    return f"composesim.run={prefix}" in labels or f"com.docker.compose.project=composesim-{prefix}" in labels


def _processes_of(prefix: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("COMPOSESIM_RUN", "").startswith(prefix):
                found.append(f"process {process.pid} {process.name()}")
    return found


def _docker(*argv: str) -> list[str]:
    if not shutil.which("docker"):
        return []
    return subprocess.run(["docker", *argv], capture_output=True, text=True).stdout.splitlines()
