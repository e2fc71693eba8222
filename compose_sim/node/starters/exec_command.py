"""Replace a rank's process by any command, after writing a host file with the names of all nodes.

The role `command` becomes the command in its arguments, of `docker exec` or of a service, which gets the filter of all containers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # as in every shell


def execute(command: list[str]) -> NoReturn:
    """Become this command, found on the PATH; exit with 127 or 126 if it cannot be run."""
    _write_hostfile(Path(os.environ["COMPOSESIM_HOSTFILE"]))
    # `python3` in the command, or in a script that it runs, means the Python of the nodes, which has torch.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    _become(command)


def main(arguments: list[str]) -> NoReturn:
    """Become a command that no other process of composesim starts in the container."""
    _become(arguments)


def _become(command: list[str]) -> NoReturn:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"composesim: cannot run '{command[0]}' on this node: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)


def _write_hostfile(path: Path) -> None:
    """Write lines `NODE slots=RANKS`, as mpirun and deepspeed read them. All ranks of the round write the same file."""
    names, slots = (os.environ[f"COMPOSESIM_{name}"].split(",") for name in ("NODES", "SLOTS"))
    partial = path.with_name(f".{path.name}.{os.environ['RANK']}")
    try:
        partial.write_text("".join(f"{node} slots={count}\n" for node, count in zip(names, slots)))
        partial.replace(path)
    except OSError as error:
        print(f"composesim: cannot write '{path}': {error.strerror}", file=sys.stderr, flush=True)
