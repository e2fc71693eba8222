"""Shape the network of nodes with a short-lived helper container in each node's network namespace.

Only the helper has NET_ADMIN and NET_RAW, never a node: the older kind of packet filter is read through a raw socket. The helper runs
the programs of this machine, with any image of the nodes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from compose_sim.core.compose.names import project_name
from compose_sim.core.network.links import parse_link
from compose_sim.core.network.node_network import (
    PROBE,
    Means,
    NetworkFault,
    check_means,
    decide_network,
    means_found,
    render_script,
)
from compose_sim.core.plan.model import Plan
from compose_sim.engine.docker.images import ensure_host_image
from compose_sim.engine.protocol import Engine, NodeStatus
from compose_sim.engine.subprocesses import output_of
from compose_sim.errors import CommandError, EngineError

_HELPERS_AT_ONCE = 8
_HELPER = ["docker", "run", "--rm", "--interactive", "--pull", "never", "--label", "composesim.role=helper"]
_HELPER += ["--cap-drop", "ALL", "--cap-add", "NET_ADMIN", "--cap-add", "NET_RAW"]
_HELPER += ["--security-opt", "no-new-privileges", "--read-only"]
_HELPER += ["--tmpfs", "/run", "--tmpfs", "/tmp", "--volume", "/usr:/usr:ro", "--entrypoint", "/usr/bin/sh"]


@cache
def find_means() -> Means:
    """Return what this machine can do to packets, tried once in a new network namespace; takes half a second."""
    return means_found(run_helper(PROBE, "--network", "none"))


class Networks:
    """The networks of one run's nodes, and the script last applied to each."""

    def __init__(self, plan: Plan, engine: Engine) -> None:
        """Apply nothing yet."""
        self._plan, self._engine = plan, engine
        self._applied: dict[str, tuple[str, str]] = {}  # node -> start id and script

    def check(self, links: Sequence[str], faults: Iterable[NetworkFault] = ()) -> None:
        """Raise EnvironmentMissingError, naming the missing part and the fix, if this machine cannot apply these links and faults."""
        faults = tuple(faults)
        if links or faults or self._plan.is_routed:
            check_means(links, faults, find_means(), routed=self._plan.is_routed)

    def apply(self, links: Sequence[str], faults: Iterable[NetworkFault] = ()) -> None:
        """
        Give all running nodes the network that these links and faults describe, and nothing else.

        Call this again after every change of links or faults, and after a node was started, which creates a new namespace.
        Raises EnvironmentMissingError before anything has changed, and EngineError if a helper fails.
        """
        faults = tuple(faults)
        if not (links or faults or self._applied or self._plan.is_routed):
            return
        self.check(links, faults)
        changes = self._changes(links, faults)
        with ThreadPoolExecutor(max_workers=_HELPERS_AT_ONCE) as pool:
            applied = [pool.submit(self._apply_to, node, *change) for node, change in changes.items()]
        for each in applied:
            each.result()

    def _changes(self, links: Sequence[str], faults: Sequence[NetworkFault]) -> dict[str, tuple[str, str, str]]:
        """Return container, start id and script of each node whose network has to change."""
        shapes, means = [parse_link(text) for text in links], find_means()
        addresses = self._engine.addresses(self._plan)
        names = [node.name for node in self._plan.nodes]
        routed = (self._plan.subnet or "") if self._plan.is_routed else ""
        changes = {}
        for status in self._engine.statuses(self._plan.run):
            if status.role == "node" and status.running and status.node in addresses:
                network = decide_network(status.node, names, shapes, faults, routed=routed)
                script, start = render_script(network, addresses, means), _start_id(status)
                applied_to, applied = self._applied.get(status.node, ("", ""))
                is_new = applied_to != start
                if (is_new and not network.is_plain) or (not is_new and applied != script):
                    changes[status.node] = (status.handle, start, script)
        return changes

    def _apply_to(self, node: str, container: str, start: str, script: str) -> None:
        self._applied.pop(node, None)  # a script that fails may have been applied in part
        try:
            run = self._plan.run
            flags = ("--label", f"composesim.run={run}", "--name", f"{project_name(run)}-helper-{secrets.token_hex(4)}")
            run_helper(script, "--network", f"container:{container}", *flags)
        except CommandError as error:
            if not self._is_running(node, start):
                return  # it has just exited, and the next start gets a new network
            raise EngineError(
                f"the network of {node} could not be changed", evidence=error.evidence, hint="composesim fault list"
            ) from None
        self._applied[node] = (start, script)

    def _is_running(self, node: str, start: str) -> bool:
        found = (status for status in self._engine.statuses(self._plan.run) if status.node == node and status.running)
        return any(_start_id(status) == start for status in found)


def _start_id(status: NodeStatus) -> str:
    """Identify one start of one container: each start has a new network namespace."""
    return f"{status.handle} {status.since}"


def run_helper(script: str, *flags: str) -> str:
    """Run a shell script in a helper container; return its stdout."""
    return output_of([*_HELPER, *flags, ensure_host_image(), "-s"], stdin=script.encode())
