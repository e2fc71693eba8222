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
            held = f"composesim.run={prefix}" in labels or f"com.docker.compose.project=composesim-{prefix}" in labels
            left += [f"{kind} {name}"] if held else []
    for kind in ("iptables-nft", "iptables-legacy"):
        if shutil.which(kind):
            shown = subprocess.run([kind, "-S"], capture_output=True, text=True).stdout
            left += [f"rule {line}" for line in shown.splitlines() if f"composesim:{prefix}" in line]
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("COMPOSESIM_RUN", "").startswith(prefix):
                left.append(f"process {process.pid} {process.name()}")
    return left


def shaped_links() -> int:
    """Return how many interfaces of this machine have one of our queues; those of nodes disappear with their namespaces."""
    if not shutil.which("tc"):
        return 0
    shown = subprocess.run(["tc", "qdisc", "show"], capture_output=True, text=True).stdout
    return sum(line.split()[1] in ("htb", "tbf", "netem", "ingress") for line in shown.splitlines() if line)


def _docker(*argv: str) -> list[str]:
    if not shutil.which("docker"):
        return []
    return subprocess.run(["docker", *argv], capture_output=True, text=True).stdout.splitlines()
