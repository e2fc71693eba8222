"""
Rename each private name of torch alone, train with the result, and print the outcome.

`python -m tests.node.rank.torch_hooks.each_name` starts a run for each name; `test_next_torch.py` renames the names in groups.
A rank must end as before, or with an error that is known to be the emulation's.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from compose_sim.node.rank.torch_hooks.private_names import NAMES
from tests.node.rank.torch_hooks import next_torch
from tests.node.rank.torch_hooks.test_next_torch import is_defined, off, report_of


def main() -> int:
    """Return 1 if a script has seen an exception, or has ended in another way."""
    failed = []
    for row in NAMES:
        name = row.name.rpartition(".")[2]
        if not (name[0] == "_" != name[1] and is_defined(name, row.module)):
            print(f"-        {row.module}.{row.name}: of the C extension, or public", flush=True)
            continue
        folder = Path(tempfile.mkdtemp(prefix="composesim-name-"))
        torch = next_torch.make(folder / "torch", [name])
        (folder / "project").mkdir()
        code, report, output = report_of(folder / "project", "up", "--gpus", "emulated", torch=torch)
        notes, kind = list(off(report)), (report.get("cause") or {}).get("kind")
        is_right = (code == 0 and not kind) or (code == 3 and kind == "gap")
        print(f"{'right' if is_right else 'WRONG'}  {code}  {row.module}.{row.name}: {kind or ''} {notes}", flush=True)
        if not is_right:
            print(report.get("cause"), output, flush=True)
            failed.append(row.name)
        shutil.rmtree(folder)
    print(f"wrong: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
