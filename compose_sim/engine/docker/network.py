"""How does the network of nodes become what was decided? By a helper in each node's network namespace, there for half a second.

The helper alone has NET_ADMIN; nodes never do. It is a container of this machine's own programs, whatever the nodes run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from compose_sim.core.network.links import parse_link
from compose_sim.core.network.node_network import NetworkFault, decide_network
from compose_sim.core.network.shaping_script import PROBE, Means, check_means, means_found, render_script
from compose_sim.core.plan.model import Plan
from compose_sim.engine.docker.host_image import ensure_host_image
from compose_sim.engine.protocol import Engine, NodeStatus
from compose_sim.engine.subprocesses import feed
from compose_sim.errors import CommandError, EngineError

_AT_ONCE = 8
_HELPER = ["docker", "run", "--rm", "--interactive", "--pull", "never", "--label", "composesim.role=helper"]
_HELPER += ["--cap-drop", "ALL", "--cap-add", "NET_ADMIN", "--security-opt", "no-new-privileges", "--read-only"]
_HELPER += ["--tmpfs", "/run", "--tmpfs", "/tmp", "--volume", "/usr:/usr:ro", "--entrypoint", "/usr/bin/sh"]


@cache
def find_means() -> Means:
    """What this machine can do to packets, tried once in a network namespace of its own; half a second."""
    return means_found(_help(PROBE, "--network", "none"))


class Networks:
    """The networks of one run's nodes, and what was last done to each."""

    def __init__(self, plan: Plan, engine: Engine) -> None:
        """Nothing has been done yet."""
        self._plan, self._engine = plan, engine
        self._applied: dict[str, tuple[str, str]] = {}  # node -> which start of which container, and the script it got

    def check(self, links: Sequence[str], faults: Iterable[NetworkFault] = ()) -> None:
        """EnvironmentMissingError, naming part and fix, where this machine cannot do what they ask for."""
        breaking = tuple(faults)
        if links or breaking:
            check_means(links, breaking, find_means())

    def apply(self, links: Sequence[str], faults: Iterable[NetworkFault] = ()) -> None:
        """
        Make the networks of all nodes that run what these links and faults ask for, and nothing else.

        To be called again after every change of them, and whenever a node was started: its namespace is a new one.
        Raises EnvironmentMissingError before anything was changed; EngineError where a helper failed.
        """
        breaking = tuple(faults)
        if not (links or breaking or self._applied):
            return
        self.check(links, breaking)
        due = self._due(links, breaking)
        with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
            done = {node: pool.submit(self._run, node, *of_node) for node, of_node in due.items()}
        for each in done.values():
            each.result()

    def _due(self, links: Sequence[str], faults: Sequence[NetworkFault]) -> dict[str, tuple[str, str, str]]:
        """Node -> container, its start, script: where something other than what was done last is to be done."""
        shapes, means = [parse_link(text) for text in links], find_means()
        addresses = self._engine.addresses(self._plan)
        names = [node.name for node in self._plan.nodes]
        due = {}
        for status in self._engine.statuses(self._plan.run):
            if status.role == "node" and status.running and status.node in addresses:
                network = decide_network(status.node, names, shapes, faults)
                script, start = render_script(network, addresses, means), _start_of(status)
                started, last = self._applied.get(status.node, ("", ""))
                is_new = started != start
                if (is_new and not network.is_plain) or (not is_new and last != script):
                    due[status.node] = (status.handle, start, script)
        return due

    def _run(self, node: str, container: str, start: str, script: str) -> None:
        self._applied.pop(node, None)  # half done is not done
        try:
            _help(script, "--network", f"container:{container}", "--label", f"composesim.run={self._plan.run}")
        except CommandError as error:
            if not self._still_runs(node, start):
                return  # it has just ended; its next start has a new network
            raise EngineError(
                f"the network of {node} could not be changed", evidence=error.evidence, hint="composesim fault list"
            ) from None
        self._applied[node] = (start, script)

    def _still_runs(self, node: str, start: str) -> bool:
        found = (status for status in self._engine.statuses(self._plan.run) if status.node == node and status.running)
        return any(_start_of(status) == start for status in found)


def _start_of(status: NodeStatus) -> str:
    """Which start of which container: each has a network namespace of its own."""
    return f"{status.handle} {status.since}"


def _help(script: str, *flags: str) -> str:
    """Run a shell script in a helper; what it printed."""
    return feed([*_HELPER, *flags, ensure_host_image(), "-s"], script.encode())
