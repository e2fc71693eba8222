"""Judge whether the script would also work if every node were a separate machine."""

from __future__ import annotations

import re
from collections.abc import Sequence

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.wording import where
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.devices_and_files import FileUse, VariableSet
from compose_sim.node.records.process_groups import InitProcessGroup
from compose_sim.node.records.script import LaunchEnvironment

QUESTION = "Would it work if every node were a separate machine?"

_LOOPBACK = re.compile(r"^(localhost|127\.\d+\.\d+\.\d+|::1|\[::1\]|0\.0\.0\.0|ip6-localhost)$")
_TCP = re.compile(r"^tcp://(\[[^\]]*\]|[^:/]*)")
_PRIVATE = re.compile(r"^file://(/tmp|/var/tmp|/dev/shm)/")
_WRITERS = ("write", "update", "append", "create", "rename", "written")
_FIX_ADDRESS = (
    "Use the address that the launcher sets: remove the line that changes it, and call `init_process_group()` without init_method, "
    "which reads MASTER_ADDR and MASTER_PORT."
)
_FIX_FILE = (
    "Keep files that other nodes read in storage that all nodes share (here: $COMPOSESIM_SHARED), or let one rank per node "
    "(LOCAL_RANK 0) write them."
)


def judge(case: Case) -> Result:
    """Look at the address at which ranks meet, and at files in folders that machines do not share."""
    observed = case.observed
    if len(observed.nodes) < 2:
        return not_applicable("there is only one node")
    result = _address(observed) or _files(observed)
    if result:
        return result
    if not any(observed.of(InitProcessGroup, FileUse)):
        return not_applicable("the script makes no process group and opens no file of its own")
    return passed("ranks meet at the launcher's address, and no node reads a file that only another node has")


def _address(observed: Observed) -> Result | None:
    """Find an address that the script itself chose, and that other machines could not reach."""
    for rank in observed:
        init, launched = rank.last(InitProcessGroup), rank.last(LaunchEnvironment)
        if init is None or launched is None or not _spans_nodes(observed, init, launched):
            continue
        method, address = init.init_method, init.master_addr or ""
        tcp = _TCP.match(method)
        if tcp and _LOOPBACK.match(tcp[1]):
            return _say_address(observed, init, f"init_process_group uses {method}")
        if _PRIVATE.match(method):
            return _say_address(observed, init, f"init_process_group uses {method}, a file on one node")
        if init.store_host and _LOOPBACK.match(init.store_host):
            return _say_address(observed, init, f"init_process_group uses a store at {init.store_host}")
        chosen = [each for each in rank.of(VariableSet) if (each.name, each.value) == ("MASTER_ADDR", address)]
        is_own = any(each.changes or each.written for each in chosen) or address != launched.master_addr
        if method.startswith("env://") and _LOOPBACK.match(address) and is_own:
            return _say_address(observed, chosen[-1] if chosen else init, f"the script sets MASTER_ADDR to {address}")
    return None


def _spans_nodes(observed: Observed, init: InitProcessGroup, launched: LaunchEnvironment) -> bool:
    """Return whether the group is to have ranks on several nodes."""
    size = init.given_world_size or init.env_world_size or launched.world_size or 0
    return size > max(len(ranks) for ranks in observed.nodes.values())


def _say_address(observed: Observed, seen: InitProcessGroup | VariableSet, what: str) -> Result:
    return failed(
        f"{what}: if the {len(observed.nodes)} nodes were separate machines, each would find only itself there",
        fix=_FIX_ADDRESS,
        at=seen.at,
        ranks=(seen.rank,),
    )


def _files(observed: Observed) -> Result | None:
    """Find a file in a private folder, written on one node only, that another node reads."""
    uses: dict[str, list[FileUse]] = {}
    for each in observed.of(FileUse):
        if each.private and each.op != "rename":
            uses.setdefault(each.path, []).append(each)
        elif each.op == "rename" and each.to_private and each.to:
            uses.setdefault(each.to, []).append(each)
    for path, seen in sorted(uses.items()):
        writers = [each for each in seen if each.op in _WRITERS]
        result = _read_elsewhere(observed, path, writers, [each for each in seen if each.op == "read"])
        if result:
            return result
    return None


def _read_elsewhere(
    observed: Observed, path: str, writers: Sequence[FileUse], readers: Sequence[FileUse]
) -> Result | None:
    homes = {observed.ranks[each.rank].node for each in writers}
    for read in readers:
        node = observed.ranks[read.rank].node
        before = [each for each in writers if each.t <= read.t]
        if before and node not in homes:
            write = before[0]
            return failed(
                f"rank {read.rank} on {node} reads {path}{where(read.at)}, which exists only on "
                f"{observed.ranks[write.rank].node}: rank {write.rank} wrote it there{where(write.at)}",
                fix=_FIX_FILE,
                at=read.at,
                ranks=(write.rank, read.rank),
            )
    return None
