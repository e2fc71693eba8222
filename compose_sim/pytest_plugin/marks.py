"""The mark `@pytest.mark.composesim(…)`: its arguments, and the shape of the cluster that they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

MARK = "composesim"
SIGNATURE = "composesim(nodes=2, nproc_per_node=1, engine=None, backend='auto', timeout=300, init=True)"
ENGINES = ("auto", "docker", "local")
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """What distinguishes clusters: tests of the same shape share a cluster."""

    nodes: int
    nproc_per_node: int
    engine: str
    backend: str
    only: str = ""  # the only test of this cluster, if it creates the process group itself

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.nodes * self.nproc_per_node


@dataclass(frozen=True, slots=True)
class MarkArguments:
    """What the mark of a test asks for."""

    shape: ClusterShape
    timeout_s: float


def mark_of(item: pytest.Item) -> MarkArguments | None:
    """Return what a test's mark asks for, or None without a mark; raise UsageError for a wrong one."""
    mark = item.get_closest_marker(MARK)
    if mark is None:
        return None
    try:
        return _checked(item, *mark.args, **mark.kwargs)
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"{item.nodeid}: {error}; the mark is {SIGNATURE}") from None


def _checked(
    item: pytest.Item,
    nodes: int = 2,
    nproc_per_node: int = 1,
    engine: str | None = None,
    backend: str = "auto",
    timeout: Any = _TIMEOUT_S,
    init: bool = True,
) -> MarkArguments:
    engine = engine or item.config.getoption("--composesim-engine") or item.config.getini("composesim_engine")
    numbers: dict[str, Any] = {"nodes": nodes, "nproc_per_node": nproc_per_node}
    for name, value in numbers.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} is not a positive integer")
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r} is not one of {', '.join(ENGINES)}")
    if backend not in ("auto", "gloo", "nccl"):
        raise ValueError(f"backend={backend!r} is not one of auto, gloo, nccl")
    if not isinstance(timeout, int | float) or timeout <= 0:
        raise ValueError(f"timeout={timeout!r} is not a number of seconds")
    shape = ClusterShape(nodes, nproc_per_node, engine, backend, only="" if init else item.nodeid)
    return MarkArguments(shape, float(timeout))
