"""Start the zygote of a run, or keep one for several runs, so that torch is imported once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from compose_sim.core.plan.model import Plan, PlannedNode
from compose_sim.engine.local.process_labels import LabeledProcess, labeled_processes
from compose_sim.engine.local.reaper import ChildProcesses
from compose_sim.engine.local.zygote import Zygote
from compose_sim.engine.run_folder.folder import RunFolder

# Variables of a node that nothing reads before there are ranks.
_READ_LATE = ("COMPOSESIM_", "NCCL_", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_", "NVIDIA_")


class Starters:
    """The zygotes of one engine. One that is kept belongs to the first run that it served, but outlives its nodes."""

    def __init__(self, children: ChildProcesses) -> None:
        """Register init processes with `children`, which waits for those of a run that is removed."""
        self._children = children
        self._keeps = False
        self._kept: tuple[str, Zygote] | None = None  # with its run

    @contextmanager
    def keeping(self, remove: Callable[[str], None]) -> Iterator[None]:
        """Within this context, use one zygote for all runs; at the end, `remove` its run with everything left of it."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False
            if self._kept:
                (run, zygote), self._kept = self._kept, None
                zygote.close()
                self._children.add_init(run, zygote.init)
                remove(run)

    @contextmanager
    def opened(self, plan: Plan, folder: RunFolder, environment: Mapping[str, str]) -> Iterator[Zygote]:
        """Yield the zygote for the first nodes of a run."""
        if not self._keeps:
            with self.new(plan, folder, environment) as zygote:
                yield zygote
            return
        if not self._kept:
            self._kept = plan.run, self._make(plan, folder, environment)
        zygote = self._kept[1]
        zygote.write_to(folder.path)
        yield zygote

    def new(self, plan: Plan, folder: RunFolder, environment: Mapping[str, str]) -> Zygote:
        """Return a zygote that is not kept."""
        zygote = self._make(plan, folder, environment)
        self._children.add_init(plan.run, zygote.init)
        return zygote

    def others(self, run: str) -> list[LabeledProcess]:
        """Return the processes of a run that do not belong to the zygote that is kept."""
        kept = (self._kept[1].pid, self._kept[1].init.process.pid) if self._kept else ()
        return [process for process in labeled_processes(run) if process.pid not in kept]

    def _make(self, plan: Plan, folder: RunFolder, environment: Mapping[str, str]) -> Zygote:
        return Zygote(
            plan.python,
            folder=folder.path,
            working_directory=plan.working_directory,
            environment=environment,
            is_kept=self._keeps,
        )


def shared_program(plan: Plan, node: PlannedNode) -> tuple[str, ...] | None:
    """
    Return what a node's ranks run, as arguments to `python`, if they can be forked from one Python that serves all nodes.

    A node with separate variables needs a separate Python: some, such as OMP_NUM_THREADS, are read when torch is imported.
    """
    own = [name for name in node.environment if not name.startswith(_READ_LATE)]
    if plan.launcher != "warm" or own or "--" not in node.command:
        return None
    end = node.command.index("--")
    return (*(("-m",) if "--module" in node.command[:end] else ()), *node.command[end + 1 :])
