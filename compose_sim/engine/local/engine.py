"""Run nodes as plain processes of this machine, each node in a separate session.

A node is found by labels, which are environment variables (process_labels.py), so every command works from any shell.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from compose_sim.core.plan.gpus.gpu_plan import MPS_NAME
from compose_sim.core.plan.model import Plan, PlannedNode, short_folder
from compose_sim.engine.local import actions, process_labels
from compose_sim.engine.local.process_labels import LabeledProcess, agent_of, labeled_processes, without_ancestors
from compose_sim.engine.local.reaper import ChildProcesses
from compose_sim.engine.local.starters import Starters, Zygote, shared_program
from compose_sim.engine.protocol import NodeStatus, Progress
from compose_sim.engine.run_folder.folder import RunFolder, end_of_output, last_event, try_read_plan
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.engine.subprocesses import run_on_lines, run_on_terminal, through_shell
from compose_sim.errors import EngineError, EnvironmentMissingError
from compose_sim.node.shared.process import environment_of

if TYPE_CHECKING:
    from compose_sim.core.faults.kind import Action

MASTER = "master"
_MASTER_LISTENS_WITHIN_S = 60.0
_POLL_S = 0.01
_POLL_FOR_RESTARTS_MS = 100


class LocalEngine:
    """Processes of this machine, one agent per node."""

    name = "local"

    def __init__(self) -> None:
        """Start nothing yet."""
        self._children = ChildProcesses()
        self._starters = Starters(self._children)
        self._folders: dict[str, Path] = {}
        self._watched: dict[int, str] = {}  # pidfd -> node whose exit has not been yielded yet

    def describe(self) -> str:
        """Return the name and release of the operating system."""
        return f"plain processes on {platform.system()} {platform.release()}"

    def prepare(self, plan: Plan, progress: Progress) -> str:
        """Prepare no image, but raise EnvironmentMissingError if another process listens on a port of the master."""
        for port in (plan.master.port, plan.master.store_port):
            try:
                socket.create_server(("127.0.0.1", port)).close()
            except OSError as error:
                hint = f"ss -ltnp sport = :{port} shows which process uses it; without --master-port, any free port is used"
                problem = f"port {port} of the master: {os.strerror(error.errno or 0)}"
                raise EnvironmentMissingError(problem, hint=hint) from None
        return plan.image

    def image_digest(self, image: str) -> str:
        """Return "": there is no image."""
        return ""

    def start(self, plan: Plan, folder: RunFolder) -> None:
        """Start the master first, because the port is known only once it listens, then the first nodes."""
        self._folders[plan.run] = folder.path
        program = next(filter(None, (shared_program(plan, node) for node in plan.initial_nodes)), None)
        with self._starters.opened(plan, folder, _environment(plan)) as zygote:
            with zygote.handing_over():
                environment = {**_environment(plan), process_labels.NODE: MASTER}
                master = zygote.start(MASTER, plan.master.command, environment)
                self._children.add((plan.run, MASTER), master, zygote.init)
                if plan.mps:  # nodes themselves wait until it is ready
                    environment = {**_environment(plan), **plan.mps.environment}
                    mps = zygote.start(MPS_NAME, plan.mps.command, environment)
                    self._children.add((plan.run, MPS_NAME), mps, zygote.init)
            if program:
                zygote.import_torch(program)  # while the master starts
            address = f"127.0.0.1:{self._wait_for_port(plan, folder)}"
            with zygote.handing_over():
                for node in plan.initial_nodes:
                    self._start_node(zygote, plan, node, address, program=shared_program(plan, node))

    def keeping_starter(self) -> AbstractContextManager[None]:
        """Use one Python that has imported torch for all runs within this context."""
        return self._starters.keeping(self.remove)

    def perform(self, plan: Plan, folder: RunFolder, act: Action) -> None:
        """Signal the node's processes, or start a new agent with the environment of the first one."""
        from compose_sim.core.faults.kind import Start

        if isinstance(act, Start):
            self._restart(plan, folder, next(node for node in plan.nodes if node.name == act.node))
        else:
            actions.perform(plan.run, act)

    def addresses(self, plan: Plan) -> Mapping[str, str]:
        """Return nothing: nodes share the addresses of this machine."""
        return {}

    def exits(self, plan: Plan) -> Iterator[NodeStatus]:
        """Wait for the agents. For a node that this process did not start, the exit code is the last one in the log."""
        poll, watched = select.poll(), self._watched
        for name in (MASTER, *(node.name for node in plan.initial_nodes)):
            if not self._watch(poll, plan.run, name):
                yield self._status(plan.run, name, plan)
        try:
            while watched:
                for handle, _ in poll.poll(_POLL_FOR_RESTARTS_MS):
                    poll.unregister(handle)
                    os.close(handle)
                    yield self._status(plan.run, watched.pop(handle), plan)
                for node in plan.nodes:  # watch those that have been restarted
                    is_open = self._children.pid((plan.run, node.name)) and node.name not in watched.values()
                    if is_open and not self._watch(poll, plan.run, node.name):
                        yield self._status(plan.run, node.name, plan)
        finally:
            for handle in watched:
                os.close(handle)
            watched.clear()

    def statuses(self, run: str | None = None) -> tuple[NodeStatus, ...]:
        """Return the nodes of each run that has a process left, including nodes that have exited."""
        processes = labeled_processes(run)
        agents = {(process.run, process.node): process for process in processes if process.is_agent}
        statuses = []
        for name, folder in sorted({(process.run, process.folder) for process in processes}):
            plan = try_read_plan(folder)
            known = [MASTER, *(node.name for node in plan.nodes)] if plan else []
            nodes = known or sorted(node for owner, node in agents if owner == name)
            statuses += [self._status(name, node, plan, agents.get((name, node)), folder) for node in nodes]
        return tuple(statuses)

    def stop(self, run: str, *, grace_s: float) -> None:
        """Send SIGTERM to the agents, then to the master once they have exited; SIGKILL what is left after the grace period."""
        deadline = time.monotonic() + grace_s
        agents = without_ancestors(process for process in labeled_processes(run) if process.is_agent)
        nodes = [agent for agent in agents if agent.node != MASTER]
        for group in (nodes, [agent for agent in agents if agent.node == MASTER]):
            for agent in group:
                process_labels.send_signal(agent, signal.SIGTERM)
                process_labels.send_signal(agent, signal.SIGCONT)  # a paused process does not react to SIGTERM
            process_labels.wait_until_gone(group, seconds=max(0.0, deadline - time.monotonic()))
        self.remove(run)

    def remove(self, run: str) -> None:
        """Kill every process that has the run's label, and delete its sockets."""
        actions.stop_mps(run)
        hint = f"composesim down --run {run}"
        process_labels.kill_until_gone(lambda: self._starters.others(run), owner=f"run '{run}'", hint=hint)
        self._children.close(run)
        _remove_sockets(run)

    def execute(self, run: str, node: str, argv: Sequence[str], write: Callable[[str], None] | None = None) -> int:
        """Run a command in the node's environment and working directory; return 127 if there is no such command."""
        agent = agent_of(run, node)
        if agent is None:
            raise EngineError(f"'{node}' of run '{run}' is not running", hint=f"composesim ps --run {run}")
        folder = str(Path(f"/proc/{agent.pid}/cwd").readlink())
        environment, words = environment_of(agent.pid), through_shell(node, argv)
        if write:
            return run_on_lines(words, write, folder=folder, env=environment)
        return run_on_terminal(words, folder=folder, env=environment)

    def output(self, run: str, node: str, *, lines: int = 20) -> str:
        """Return the end of `logs/NODE.out`, where the node's first process prints."""
        folder = self._folder_of(run)
        return end_of_output(folder, node, lines) if folder else ""

    def remaining_runs(self) -> Mapping[str, str]:
        """Return the runs that still have a process."""
        return dict(sorted((process.run, process.folder) for process in labeled_processes()))

    def forget_absent_runs(self, over: str = "") -> None:
        """Do nothing: a run without processes has left nothing."""

    def problem(self) -> str:
        """Return "": there is nothing that could stop to respond."""
        return ""

    def _start_node(
        self, zygote: Zygote, plan: Plan, node: PlannedNode, master: str, *, program: Sequence[str] | None
    ) -> None:
        environment = {**_environment(plan), **node.environment, "COMPOSESIM_MASTER": master}
        pid = zygote.start(node.name, node.command, environment, program=program)
        self._children.add((plan.run, node.name), pid, zygote.init)

    def _restart(self, plan: Plan, folder: RunFolder, node: PlannedNode) -> None:
        """Start the node unless it is running. The agent does not wait for a shared import of torch, but imports torch itself."""
        if agent_of(plan.run, node.name):
            return
        while node.name in self._watched.values():  # yield the exit before the restart
            time.sleep(_POLL_S)
        with self._starters.new(plan, folder, _environment(plan)) as zygote:
            self._start_node(zygote, plan, node, f"127.0.0.1:{self._wait_for_port(plan, folder)}", program=None)

    def _watch(self, poll: select.poll, run: str, name: str) -> bool:
        """Have the poll report the node's exit; return False if it has exited already."""
        handle = self._open(run, name)
        if handle is not None:
            self._watched[handle] = name
            poll.register(handle, select.POLLIN)
        return handle is not None

    def _wait_for_port(self, plan: Plan, folder: RunFolder) -> int:
        """Return the port on which the master listens; raise EngineError if it exits before it listens."""
        handle = self._open(plan.run, MASTER)
        deadline = time.monotonic() + _MASTER_LISTENS_WITHIN_S
        try:
            while time.monotonic() < deadline:
                has_exited = handle is None or bool(select.select([handle], [], [], _POLL_S)[0])
                port = last_event(folder.path, MASTER, "master-started").get("port")
                if isinstance(port, int):  # else a rank wrote the event: processes of this machine share the file
                    return port
                if has_exited:
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
        """Return a pidfd, readable once the node has exited; None if it is already gone."""
        pid = self._children.pid((run, name))
        agent = process_labels.read_labels(pid) if pid else agent_of(run, name)
        return process_labels.open_process(agent) if agent and (agent.run, agent.node) == (run, name) else None

    def _status(
        self, run: str, name: str, plan: Plan | None, agent: LabeledProcess | None = None, folder: str = ""
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
        """Return a node's exit code: from the kernel if the node was our child, else from the agent's last event."""
        code = self._children.exit_code((run, name))
        if code is not None:
            return code
        path = Path(folder) if folder else self._folder_of(run)
        return last_event(path, name, "node-exited").get("exit_code") if path else None

    def _folder_of(self, run: str) -> Path | None:
        if run in self._folders:
            return self._folders[run]
        return next((Path(process.folder) for process in labeled_processes(run)), None)


def _environment(plan: Plan) -> dict[str, str]:
    """Return the variables that the master and all nodes have in common."""
    return {**os.environ, **plan.environment, process_labels.ENGINE: LocalEngine.name}


def _remove_sockets(run: str) -> None:
    """Delete the run's sockets in /tmp if we may: any user could have made such a folder, and root's nodes may be other users."""
    folder = Path(short_folder(run))
    with contextlib.suppress(OSError):
        if os.geteuid() in (0, folder.lstat().st_uid):
            SafeFolder(folder.parent).remove_tree(folder.name)
