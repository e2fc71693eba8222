"""How are nodes executed without containers? As plain processes of this machine, each node in a session of its own.

A node is found by its labels, which are environment variables (labels.py), so every verb works from any shell.
"""

from __future__ import annotations

import os
import platform
import select
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from compose_sim.core.faults import Act, Start
from compose_sim.core.plan.gpus.gpu_plan import MPS_NAME
from compose_sim.core.plan.model import Plan, PlannedNode
from compose_sim.engine.local import actions, process_labels
from compose_sim.engine.local.mps import start_mps, stop_mps
from compose_sim.engine.local.reaper import Children, adopt_orphans
from compose_sim.engine.local.zygote import Zygote, output_file
from compose_sim.engine.protocol import NodeStatus, Progress
from compose_sim.engine.run_folder.folder import RunFolder, last_event, plan_in
from compose_sim.engine.subprocesses import on_terminal
from compose_sim.errors import EngineError

MASTER = "master"
_MASTER_PATIENCE_S = 60.0  # a master that has not said where it listens by then never will
_REMOVE_PATIENCE_S = 30.0  # only a process that the kernel itself holds survives SIGKILL so long
_LOOK_S = 0.01
# Variables of a node that nobody reads before there are ranks.
_READ_LATE = ("COMPOSESIM_", "NCCL_", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_", "NVIDIA_")
_LOOK_FOR_STARTS_MS = 100


class LocalEngine:
    """Processes of this machine, one agent a node."""

    name = "local"

    def __init__(self) -> None:
        self._children = Children()
        self._folders: dict[str, Path] = {}
        self._watched: dict[int, str] = {}  # handle -> node whose end has not been told

    def describe(self) -> str:
        """What it is, since there is no version to tell."""
        return f"plain processes on {platform.system()} {platform.release()}"

    def prepare(self, plan: Plan, progress: Progress) -> str:
        """Nothing: this machine is the image."""
        return plan.image

    def image_digest(self, image: str) -> str:
        """There is no image."""
        return ""

    def start(self, plan: Plan, folder: RunFolder) -> None:
        """The master first, since its port is only known when it listens, then the nodes of the beginning."""
        adopt_orphans()
        self._folders[plan.run] = folder.path
        with self._zygote(plan, folder) as zygote:
            environment = {**_environment(plan), process_labels.NODE: MASTER}
            self._children.add((plan.run, MASTER), zygote.start(MASTER, plan.master.command, environment))
            if mps := start_mps(zygote, plan, _environment(plan)):
                self._children.add((plan.run, MPS_NAME), mps)
            if any(_program_to_share(plan, node) for node in plan.initial_nodes):
                zygote.import_torch()  # while the master starts
            address = f"127.0.0.1:{self._await_port(plan, folder)}"
            for node in plan.initial_nodes:
                self._start_node(zygote, plan, node, address, program=_program_to_share(plan, node))

    def perform(self, plan: Plan, folder: RunFolder, act: Act) -> None:
        """Signals to the node's processes, or a new agent with the environment of the first one."""
        if isinstance(act, Start):
            self._start_again(plan, folder, next(node for node in plan.nodes if node.name == act.node))
        else:
            actions.perform(plan.run, act)

    def addresses(self, plan: Plan) -> Mapping[str, str]:
        """None: nodes share this machine's."""
        return {}

    def stopped(self, plan: Plan) -> Iterator[NodeStatus]:
        """Each node when its agent ends; the exit code of one that we did not start is what it wrote down last."""
        poll, handles = select.poll(), self._watched
        for name in (MASTER, *(node.name for node in plan.initial_nodes)):
            if not self._watch(poll, plan.run, name):
                yield self._status(plan.run, name, plan)
        try:
            while handles:
                for handle, _ in poll.poll(_LOOK_FOR_STARTS_MS):
                    poll.unregister(handle)
                    os.close(handle)
                    yield self._status(plan.run, handles.pop(handle), plan)
                for node in plan.nodes:  # one that was started again
                    if node.name not in handles.values() and self._children.pid((plan.run, node.name)):
                        self._watch(poll, plan.run, node.name)
        finally:
            for handle in handles:
                os.close(handle)
            handles.clear()

    def statuses(self, run: str | None = None) -> tuple[NodeStatus, ...]:
        """The nodes of each run of which any process is left, ended ones too."""
        processes = process_labels.labelled_processes(run)
        agents = {(process.run, process.node): process for process in processes if process.is_agent}
        statuses = []
        for name, folder in sorted({(process.run, process.folder) for process in processes}):
            plan = plan_in(folder)
            nodes = _names(plan) if plan else sorted(node for owner, node in agents if owner == name)
            statuses += [self._status(name, node, plan, agents.get((name, node)), folder) for node in nodes]
        return tuple(statuses)

    def stop(self, run: str, *, grace_s: float) -> None:
        """SIGTERM to the agents, to the master once they have left; SIGKILL to all that is left after the grace."""
        deadline = time.monotonic() + grace_s
        agents = process_labels.without_kin(
            process for process in process_labels.labelled_processes(run) if process.is_agent
        )
        nodes = [agent for agent in agents if agent.node != MASTER]
        for group in (nodes, [agent for agent in agents if agent.node == MASTER]):
            for agent in group:
                process_labels.send(agent, signal.SIGTERM)
                process_labels.send(agent, signal.SIGCONT)  # a paused one would not hear it
            process_labels.wait_until_gone(group, seconds=max(0.0, deadline - time.monotonic()))
        self.remove(run)

    def remove(self, run: str) -> None:
        """SIGKILL until no process has the run's label; more than once, since one may have been forking."""
        stop_mps(run)
        deadline = time.monotonic() + _REMOVE_PATIENCE_S
        while left := process_labels.without_kin(process_labels.labelled_processes(run)):
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{len(left)} processes of run '{run}' do not end on SIGKILL",
                    evidence="\n".join(f"process {process.pid} {process.node}" for process in left),
                    hint=f"composesim down --run {run}",
                )
            for process in left:
                process_labels.send(process, signal.SIGKILL)
            process_labels.wait_until_gone(left, seconds=1.0)
            self._children.bury(process.pid for process in left)
        actions.remove_sockets(run)

    def execute(self, run: str, node: str, argv: Sequence[str]) -> int:
        """Run a command in the node's environment and working directory; 127 where there is no such command."""
        agent = actions.agent_of(run, node)
        if agent is None:
            raise EngineError(f"'{node}' of run '{run}' is not running", hint=f"composesim ps --run {run}")
        folder = str(Path(f"/proc/{agent.pid}/cwd").readlink())
        return on_terminal(argv, folder=folder, env=process_labels.environment_of(agent.pid))

    def output(self, run: str, node: str, *, lines: int = 20) -> str:
        """The end of `logs/NODE.out`, where the node's first process writes."""
        folder = self._folder_of(run)
        try:
            words = output_file(folder, node).read_text(errors="replace") if folder else ""
        except FileNotFoundError:
            return ""
        return "".join(words.splitlines(keepends=True)[-lines:])

    def runs_left(self) -> tuple[str, ...]:
        """Runs of which a process is left."""
        return tuple(sorted({process.run for process in process_labels.labelled_processes()}))

    def _zygote(self, plan: Plan, folder: RunFolder) -> Zygote:
        return Zygote(
            plan.python, folder=folder.path, working_directory=plan.working_directory, environment=_environment(plan)
        )

    def _start_node(
        self, zygote: Zygote, plan: Plan, node: PlannedNode, master: str, *, program: Sequence[str] | None
    ) -> None:
        environment = {**_environment(plan), **node.environment, "COMPOSESIM_MASTER": master}
        pid = zygote.start(node.name, node.command, environment, program=program)
        self._children.add((plan.run, node.name), pid)

    def _start_again(self, plan: Plan, folder: RunFolder, node: PlannedNode) -> None:
        """Unless it runs. Its agent starts at once, and imports torch by itself while others wait for it."""
        if actions.agent_of(plan.run, node.name):
            return
        while node.name in self._watched.values():  # its end is told before its new beginning
            time.sleep(_LOOK_S)
        with self._zygote(plan, folder) as zygote:
            self._start_node(zygote, plan, node, f"127.0.0.1:{self._await_port(plan, folder)}", program=None)

    def _watch(self, poll: select.poll, run: str, name: str) -> bool:
        """Have the poll tell when the node ends; False where it has."""
        handle = self._open(run, name)
        if handle is not None:
            self._watched[handle] = name
            poll.register(handle, select.POLLIN)
        return handle is not None

    def _await_port(self, plan: Plan, folder: RunFolder) -> int:
        """The port that the master says it listens on; EngineError where it ends without a word."""
        handle = self._open(plan.run, MASTER)
        deadline = time.monotonic() + _MASTER_PATIENCE_S
        try:
            while time.monotonic() < deadline:
                has_ended = handle is None or bool(select.select([handle], [], [], _LOOK_S)[0])
                started = last_event(folder.path, MASTER, "master-started")
                if started:
                    return int(started["port"])
                if has_ended:
                    break
        finally:
            if handle is not None:
                os.close(handle)
        raise EngineError(
            f"the master of run '{plan.run}' did not start to listen",
            evidence=self.output(plan.run, MASTER),
            hint="composesim doctor",
        )

    def _open(self, run: str, name: str) -> int | None:
        """A handle that is readable once the node has ended; None where it is gone already."""
        pid = self._children.pid((run, name))
        if pid is None:
            agent = actions.agent_of(run, name)
            pid = agent.pid if agent else None
        try:
            return os.pidfd_open(pid) if pid else None
        except ProcessLookupError:
            return None

    def _status(
        self, run: str, name: str, plan: Plan | None, agent: process_labels.Labelled | None = None, folder: str = ""
    ) -> NodeStatus:
        ranks = next((node.ranks for node in plan.nodes if node.name == name), ()) if plan else ()
        return NodeStatus(
            run=run,
            node=name,
            role="master" if name == MASTER else "node",
            running=agent is not None,
            exit_code=None if agent else self._exit_code(run, name, folder),
            paused=agent is not None and process_labels.is_paused(agent.pid),
            ranks=",".join(map(str, ranks)),
            folder=folder,
            since=process_labels.started_at(agent.pid) if agent else "",
            handle=str(agent.pid) if agent else "",
        )

    def _exit_code(self, run: str, name: str, folder: str) -> int | None:
        """Of a node that has ended: from the kernel where it was our child, else what its agent wrote down."""
        code = self._children.exit_code((run, name))
        if code is not None:
            return code
        path = Path(folder) if folder else self._folder_of(run)
        return last_event(path, name, "node-exited").get("exit_code") if path else None

    def _folder_of(self, run: str) -> Path | None:
        if run in self._folders:
            return self._folders[run]
        return next((Path(process.folder) for process in process_labels.labelled_processes(run)), None)


def _program_to_share(plan: Plan, node: PlannedNode) -> tuple[str, ...] | None:
    """
    What a node's ranks run, as the words after `python`, where they may be forked from one Python that serves all nodes.

    A node with variables of its own gets its own Python: some, such as OMP_NUM_THREADS, are read when torch is imported.
    """
    own = [name for name in node.environment if not name.startswith(_READ_LATE)]
    if plan.launcher != "warm" or own or "--" not in node.command:
        return None
    end = node.command.index("--")
    return (*(("-m",) if "--module" in node.command[:end] else ()), *node.command[end + 1 :])


def _environment(plan: Plan) -> dict[str, str]:
    """What the master and all nodes have in common."""
    return {**os.environ, **plan.environment, process_labels.ENGINE: LocalEngine.name}


def _names(plan: Plan) -> list[str]:
    return [MASTER, *(node.name for node in plan.nodes)]
