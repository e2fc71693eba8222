"""How does a rank become any command? It finds a host file with the names of all nodes, and is that command from then on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # as every shell says it


def become(words: list[str]) -> NoReturn:
    """Become the command `words`, found as a shell would find it. Ends with 127 or 126 where there is none."""
    _write_hostfile(Path(os.environ["COMPOSESIM_HOSTFILE"]))
    try:
        os.execvp(words[0], words)
    except OSError as error:
        print(f"composesim: '{words[0]}' cannot be run on this node: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)


def _write_hostfile(path: Path) -> None:
    """`NODE slots=RANKS` lines, as mpirun and deepspeed read them: whole, whoever of the round writes it last."""
    names, slots = (os.environ[f"COMPOSESIM_{name}"].split(",") for name in ("NODES", "SLOTS"))
    partial = path.with_name(f".{path.name}.{os.environ['RANK']}")
    try:
        partial.write_text("".join(f"{node} slots={count}\n" for node, count in zip(names, slots)))
        partial.replace(path)
    except OSError as error:
        print(f"composesim: '{path}' could not be written: {error.strerror}", file=sys.stderr, flush=True)
