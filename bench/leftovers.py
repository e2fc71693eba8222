"""Find and remove what a benchmark has left on the engine after a failure or Ctrl-C."""

from __future__ import annotations

import re
import shutil
import subprocess

# Labels are searched as well: TorchX shortens names, and Compose names a network after its project.
_KINDS = (
    (["ps", "--all", "--no-trunc", "--format", "{{.ID}}\t{{.Names}}\t{{.Labels}}"], ["rm", "--force", "--volumes"]),
    (["network", "ls", "--format", "{{.ID}}\t{{.Name}}\t{{.Labels}}"], ["network", "rm"]),
    (["volume", "ls", "--format", "{{.Name}}\t{{.Name}}\t{{.Labels}}"], ["volume", "rm"]),
)


def sweep(prefix: str) -> list[str]:
    """Remove every container, network and volume whose name or label begins with `prefix`; return their names."""
    if shutil.which("docker") is None:
        return []
    found = []
    ours = re.compile(rf"\b{re.escape(prefix)}(?!\d)")  # bench-7-1 is not bench-7-12
    for listing, removal in _KINDS:
        answer = subprocess.run(["docker", *listing], capture_output=True, text=True)
        if answer.returncode != 0:  # there is no engine, so nothing is left
            return []
        lines = [line.split("\t") for line in answer.stdout.splitlines() if ours.search(line)]
        if lines:
            subprocess.run(["docker", *removal, *(line[0] for line in lines)], capture_output=True)
            found += [line[1] for line in lines]
    return found
