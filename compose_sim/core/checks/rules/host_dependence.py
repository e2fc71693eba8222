"""Would it work if every node were a machine of its own?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.events.observations import Observation, Observed

QUESTION = "Would it work if every node were a machine of its own?"

_LOOPBACK = re.compile(r"^(localhost|127\.\d+\.\d+\.\d+|::1|\[::1\]|0\.0\.0\.0|ip6-localhost)$")
_TCP = re.compile(r"^tcp://(\[[^\]]*\]|[^:/]*)")
_PRIVATE = re.compile(r"^file://(/tmp|/var/tmp|/dev/shm)/")
_WRITERS = ("write", "update", "append", "create", "rename", "written")
_FIX_ADDRESS = (
    "Let the launcher say where rank 0 is: remove the line that sets it, and call `init_process_group()` without init_method, "
    "which reads MASTER_ADDR and MASTER_PORT."
)
_FIX_FILE = (
    "Keep what other nodes read in storage that all nodes share (here: $COMPOSESIM_SHARED), or let one rank of each node "
    "(LOCAL_RANK 0) write it."
)


def judge(case: Case) -> Result:
    """Look at the address that ranks meet at, and at files in folders that no two machines share."""
    observed = case.observed
    nodes = observed.nodes
    if len(nodes) < 2:
        return not_applicable("there is one node only")
    result = _address(observed) or _files(observed)
    if result:
        return result
    if not any(observed.of("init", "file")):
        return not_applicable("the script neither makes a process group nor opens a file of its own")
    return passed("ranks meet where the launcher says, and no node reads what another keeps to itself")


def _address(observed: Observed) -> Result | None:
    """A meeting place that the script itself chose, and that another machine would not find."""
    for rank in observed:
        init, given = rank.last("init"), rank.last("given")
        if init is None or given is None or not _spans_nodes(observed, init, given):
            continue
        method = str(init["init_method"] or "")
        tcp = _TCP.match(method)
        if tcp and _LOOPBACK.match(tcp[1]):
            return _say_address(observed, init, f"init_process_group is told to meet at {method}")
        if _PRIVATE.match(method):
            return _say_address(observed, init, f"init_process_group is told to meet at {method}, a file of one node")
        if init["store_host"] and _LOOPBACK.match(str(init["store_host"])):
            return _say_address(observed, init, f"init_process_group is given a store at {init['store_host']}")
        address = str(init["master_addr"] or "")
        chosen = [each for each in rank.of("variable") if each["name"] == "MASTER_ADDR" and each["value"] == address]
        if (
            method.startswith("env://")
            and _LOOPBACK.match(address)
            and (_sets(chosen) or address != given["master_addr"])
        ):
            seen = chosen[-1] if chosen else init
            return _say_address(observed, seen, f"MASTER_ADDR is set to {address} by the script")
    return None


def _sets(chosen: Sequence[Observation]) -> bool:
    """Whether the script chose this address: it was another before, or it stands there in the script's own words."""
    return any(each["changes"] or each["written"] for each in chosen)


def _spans_nodes(observed: Observed, init: Observation, given: Observation) -> bool:
    """Whether the group is to have ranks on several nodes."""
    size = init["world_size"] or init["env_world_size"] or given["world_size"]
    return str(size).isdigit() and int(size) > max(len(ranks) for ranks in observed.nodes.values())


def _say_address(observed: Observed, seen: Observation, what: str) -> Result:
    return failed(
        f"{what}: where every node is a machine of its own, each of the {len(observed.nodes)} would find only itself there",
        fix=_FIX_ADDRESS,
        ranks=(seen.rank,),
        **_at(seen),
    )


def _files(observed: Observed) -> Result | None:
    """A file in a node's own folder, written on one node only, that another node reads."""
    uses: dict[str, list[Observation]] = {}
    for each in observed.of("file"):
        if each["private"] and each["op"] != "rename":
            uses.setdefault(str(each["path"]), []).append(each)
        elif each["op"] == "rename" and each["to_private"]:
            uses.setdefault(str(each["to"]), []).append(each)
    for path, seen in sorted(uses.items()):
        writers = [each for each in seen if each["op"] in _WRITERS]
        result = _read_elsewhere(observed, path, writers, [each for each in seen if each["op"] == "read"])
        if result:
            return result
    return None


def _read_elsewhere(
    observed: Observed, path: str, writers: Sequence[Observation], readers: Sequence[Observation]
) -> Result | None:
    homes = {observed.ranks[each.rank].node for each in writers}
    for read in readers:
        node = observed.ranks[read.rank].node
        before = [each for each in writers if each.t <= read.t]
        if before and node not in homes:
            write = before[0]
            home = observed.ranks[write.rank].node
            return failed(
                f"rank {read.rank} on {node} reads {path}{_where(read)}, which only {home} has: rank {write.rank} wrote it there"
                f"{_where(write)}, in a folder that machines do not share",
                fix=_FIX_FILE,
                ranks=(write.rank, read.rank),
                **_at(read),
            )
    return None


def _where(use: Observation) -> str:
    at = use["at"]
    return f" ({str(at[0]).rpartition('/')[2]}, line {at[1]})" if at else ""


def _at(use: Observation) -> dict[str, Any]:
    return {"file": use["at"][0], "line": use["at"][1]} if use["at"] else {}
