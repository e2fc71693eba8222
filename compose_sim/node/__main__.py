"""Start one of the processes of a node: `python .../node/__main__.py ROLE [ARGUMENTS...]`.

Every process that composesim starts inside a node, for the master or for a service, starts here.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not __package__:
    sys.path.insert(0, __file__.rpartition("/")[0] or ".")  # not there if Python is isolated (-I, PYTHONSAFEPATH)
    import bootstrap  # type: ignore[import-not-found]

    __package__ = bootstrap.NAME

from importlib import import_module

from .setuid_files import forbid_setuid_files
from .shared import plug_ins

# Role -> module (plug-ins add others as `composesim.roles`), whose `main(arguments)` returns the exit code of the process.
ROLES = {
    "master": ".master.rendezvous_master",
    "driver-master": ".master.driver_master",
    "store": ".master.store",
    "agent": ".agent.main",
    "memory-estimate": ".planning.memory_estimate",
    "gpu-probe": ".agent.gpu_proof",
    "mps": ".agent.mps",
    "balloon": ".agent.faults.balloon",
    "zygote": ".starters.zygote",
    "fork-server": ".starters.fork_server",
    "torchrun": ".starters.torchrun",
    "command": ".starters.exec_command",
    "rank": ".rank.script_runner",
    "debug-adapter": ".rank.debugging.debug_adapter",
    "driver-script": ".rank.driver_script",
}


def main(arguments: list[str]) -> int:
    """Run the role that the first argument names with the other arguments, and return the exit code."""
    role, *rest = arguments or [""]
    others = {} if role in ROLES else plug_ins.names("composesim.roles")
    if role not in ROLES and role not in others:
        sys.exit(f"composesim: unknown role '{role}'. Roles: {', '.join((*ROLES, *others))}")
    if os.getppid() <= 1:  # the first process of a container, or of `docker exec`, from which all others inherit it
        forbid_setuid_files()
    module = import_module(ROLES[role], __package__) if role in ROLES else plug_ins.load(others[role])
    return int(module.main(rest) or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
