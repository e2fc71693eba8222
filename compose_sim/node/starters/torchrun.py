"""How does the real torchrun start a node's ranks? In this process, told its place by us, and watched while it awaits them.

Arguments of the role `torchrun`: PARENT_PID CHANNEL_DESCRIPTOR torchrun -- [-m] SCRIPT ARGS...
"""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

from ..shared import process, roles, starter_protocol
from .popen_hook import receive_ranks, watch_ranks

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

_BACKEND = "composesim"
# One torchrun runs one round, so these would start from nothing; NODE_RANK is not torchrun's, but every launcher of ours sets it.
_OUR_VARIABLES = ("COMPOSESIM_GENERATION", "NODE_RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")


def run_torchrun(variables: dict[str, str], nproc: int, program: list[str]) -> None:
    """Run torchrun for one round. Returns when its ranks have ended, well or not, and all nodes' torchruns know it."""
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    address, port, node_rank = (variables[name] for name in ("MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"))
    options = ["--nnodes", variables["GROUP_WORLD_SIZE"], "--nproc-per-node", str(nproc), "--max-restarts", "0"]
    if variables["TORCHELASTIC_USE_AGENT_STORE"] == "True":
        rendezvous_handler_registry.register(_BACKEND, lambda parameters: master_rendezvous(parameters, int(node_rank)))
        options += ["--rdzv-backend", _BACKEND, "--rdzv-endpoint", f"{address}:{port}"]
        options += ["--rdzv-id", variables["TORCHELASTIC_RUN_ID"]]
    else:  # the first node's torchrun serves the store, as torchrun does when it is given a master's address
        options += ["--master-addr", address, "--master-port", port, "--node-rank", node_rank]
    try:
        torchrun.main([*options, roles.PROGRAM, "rank", *program])
    except ChildFailedError as error:  # the agent knows already; the person sees what torchrun has to say
        print(error, file=sys.stderr)


def master_rendezvous(parameters: RendezvousParameters, node_rank: int) -> RendezvousHandler:
    """A rendezvous that the master has already held: this node's place in it, and the master's store at its endpoint."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

    host, _, port = parameters.endpoint.rpartition(":")

    class MasterRendezvous(RendezvousHandler):
        @property
        def use_agent_store(self) -> bool:
            return True

        def get_backend(self) -> str:
            return _BACKEND

        def next_rendezvous(self) -> RendezvousInfo:
            store = TCPStore(host, int(port), is_master=False)
            return RendezvousInfo(store, node_rank, parameters.max_nodes, RendezvousStoreInfo(host, int(port)))

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            """Nobody else can join: another round has another store."""

        def num_nodes_waiting(self) -> int:
            return 0

        def get_run_id(self) -> str:
            return parameters.run_id

        def shutdown(self) -> bool:
            return True

    return MasterRendezvous()


def main(arguments: list[str]) -> None:
    """Import torchrun, wait for the agent's word, run one round, and wait to be let go."""
    agent, descriptor = map(int, arguments[:2])
    process.die_with(agent)
    link = socket.socket(fileno=descriptor)
    ranks: list[dict[str, str]] = []
    outputs: list[int] = []
    given: list[dict[str, str]] = []
    watch_ranks(link, given, outputs, known_by="LOCAL_RANK")

    import torch.distributed.run  # noqa: F401 (while the nodes still find each other)

    if receive_ranks(link, ranks, outputs):
        given += [{name: variables[name] for name in _OUR_VARIABLES} for variables in ranks]
        run_torchrun(ranks[0], len(ranks), arguments[4:])
        starter_protocol.receive(link)
    os._exit(0)  # nothing is left to do, and torch takes its time to leave
