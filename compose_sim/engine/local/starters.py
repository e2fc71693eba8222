"""Start the processes of local runs through a zygote, which imports torch once, also for several runs."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from compose_sim.core.plan.model import NODE_HASHES, Plan, PlannedNode
from compose_sim.core.plan.node_roles import role_command
from compose_sim.engine.local.process_labels import LabeledProcess, labeled_processes
from compose_sim.engine.local.reaper import ChildProcesses, Init
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.errors import EngineError


class Zygote:
    """Starts processes in separate sessions. When it exits, they become children of the init process."""

    def __init__(
        self,
        python: str,
        *,
        folder: Path,
        working_directory: str,
        environment: Mapping[str, str],
        is_kept: bool = False,
    ) -> None:
        """
        Write output to the logs in the run folder; `working_directory` is that of the processes.

        One that `is_kept` does not exit with the context of the first nodes.
        """
        self._folder, self._working_directory, self._is_kept = folder, working_directory, is_kept
        self._own_folder, self._has_torch = folder, False
        self.pid = 0  # known once something was handed over
        log = SafeFolder(folder).open_file("logs/zygote.out", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(log, "a") as errors:
            self.init = Init(
                [python, "-u", *role_command(str(folder.resolve()), "zygote")],
                environment=environment,
                errors=errors,
            )
        self._python, self._process = python, self.init.process

    def import_torch(self, program: Sequence[str]) -> None:
        """Start to import what `program` needs of torch, once for all nodes that are started with it; returns at once."""
        if self._has_torch:
            return
        self._has_torch = True
        self._send({"import_torch": program, "folder": self._working_directory})

    def serve(self, folder: Path, working_directory: str) -> None:
        """Start processes in this directory from now on, and write their output to the logs of this run."""
        self._folder, self._working_directory = folder, working_directory

    @contextlib.contextmanager
    def handing_over(self) -> Iterator[None]:
        """Start processes that become children of the init process at the end of the context, although the zygote is kept."""
        if self._is_kept:
            self.pid = int(self._answer({"hand_over": "begin"})["pid"])
        yield
        if self._is_kept:
            self._answer({"hand_over": "end"})

    def start(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str], *, program: Sequence[str] | None = None
    ) -> int:
        """Start a node's process, and return the process id. It exits with 127 if the command or working directory is missing.

        With `program`, the command line of the ranks after `python`, it gets a fork server that has imported torch already.
        """
        SafeFolder(self._folder).append(f"logs/{name}.out", "")  # created here, and opened by the zygote
        request = {
            "argv": argv,
            "environment": environment,
            "folder": self._working_directory,
            "output": str(self._folder / "logs" / f"{name}.out"),  # of this process; ranks have separate logs
            "program": program,
        }
        return int(self._answer(request)["pid"])

    def close(self) -> None:
        """Let it exit, and wait until it does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with self._process.stdout as answers:
            answers.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.terminate()
        self.close()

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died, and the answer will be missing
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request; raise OSError if that is an error's number."""
        answer = self._ask(request)
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        return answer

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdout is not None
        self._send(request)
        line = self._process.stdout.readline()
        if not line:
            if error := self.init.code(0, within_s=0):
                raise EngineError(
                    f"'{self._python}' cannot be run: {os.strerror(error)}", hint="composesim up --python PATH …"
                )
            raise EngineError(
                "the process that starts the nodes has died",
                evidence=SafeFolder(self._own_folder).read_text("logs/zygote.out")[-2000:],
                hint="composesim doctor",
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


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
        zygote.serve(folder.path, plan.working_directory)
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

    A node with separate variables needs a separate Python: some, such as OMP_NUM_THREADS, are read when torch is imported. So does a
    node with its own seed of Python's hashes.
    """
    own = [name for name in node.environment if not name.startswith(_READ_LATE)]
    if plan.launcher != "warm" or own or NODE_HASHES in plan.environment or "--" not in node.command:
        return None
    end = node.command.index("--")
    return (*(("-m",) if "--module" in node.command[:end] else ()), *node.command[end + 1 :])
