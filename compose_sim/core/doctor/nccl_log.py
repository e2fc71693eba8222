"""Read the transport between ranks from NCCL's log (NCCL_DEBUG=INFO)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? ?: \d+\[\w+\] -> \d+\[\w+\](?: \[(?:send|receive)\])? via (\S+)")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_NODES = re.compile(r"nNodes (\d+)")
_INTERFACE = re.compile(r"NET/Socket : Using \[0\](\S+?):")


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclFacts:
    """What NCCL logged. `transports` are sorted by number of channels: "NET/Socket", "P2P", "SHM"."""

    transports: tuple[str, ...] = ()
    version: str = ""
    nodes: int | None = None  # how many hosts NCCL sees
    interface: str = ""


def read_nccl_log(lines: Iterable[str]) -> NcclFacts:
    """Return the facts in the output of all ranks."""
    found: Counter[str] = Counter()
    version, interface, nodes = "", "", None
    for line in lines:
        if "NCCL" not in line:
            continue
        if match := _CHANNEL.search(line):
            found["/".join(match[1].split("/")[:2]) if match[1].startswith("NET") else match[1].split("/")[0]] += 1
        if match := _VERSION.search(line):
            version = match[1]
        if match := _NODES.search(line):
            nodes = int(match[1])
        if match := _INTERFACE.search(line):
            interface = match[1]
    transports = tuple(transport for transport, _ in found.most_common())
    return NcclFacts(transports=transports, version=version, nodes=nodes, interface=interface)
