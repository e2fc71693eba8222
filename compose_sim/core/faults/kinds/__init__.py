"""List all kinds of faults by name."""

from __future__ import annotations

from compose_sim.core.faults.kind import FaultKind
from compose_sim.core.faults.kinds import checkpoints, gpus, network, nodes, ranks

KINDS: dict[str, FaultKind] = {
    kind.name: kind for module in (nodes, network, checkpoints, gpus, ranks) for kind in module.KINDS
}
