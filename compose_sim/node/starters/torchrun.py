"""Start a node's ranks with the real torchrun, in this process, which serves one round.

Arguments of the role `torchrun`: AGENT_PID CHANNEL_DESCRIPTOR torchrun -- [-m] SCRIPT ARGS...
"""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

from ..shared import process, roles, starter_protocol
from .popen_hook import RankWatcher

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

_BACKEND = "composesim"
# torchrun would restart these in each round, because each round has its own torchrun. Our other launchers also set NODE_RANK.
_OUR_VARIABLES = ("COMPOSESIM_GENERATION", "NODE_RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")


def run_torchrun(variables: dict[str, str], nproc: int, program: list[str]) -> None:
    """Run torchrun for one round; return when the ranks have ended and the torchruns of all nodes know it."""
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    address, port, node_rank = (variables[name] for name in ("MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"))
    options = ["--nnodes", variables["GROUP_WORLD_SIZE"], "--nproc-per-node", str(nproc), "--max-restarts", "0"]
    if variables["TORCHELASTIC_USE_AGENT_STORE"] == "True":
        rendezvous_handler_registry.register(_BACKEND, lambda parameters: master_rendezvous(parameters, int(node_rank)))
        options += ["--rdzv-backend", _BACKEND, "--rdzv-endpoint", f"{address}:{port}"]
        options += ["--rdzv-id", variables["TORCHELASTIC_RUN_ID"]]
    else:  # the first node's torchrun serves the store, as it does if it is given a master address
        options += ["--master-addr", address, "--master-port", port, "--node-rank", node_rank]
    try:
        torchrun.main([*options, roles.PROGRAM, "rank", *program])
    except ChildFailedError as error:  # the agent has already reported it; print torchrun's own message
        print(error, file=sys.stderr)


def master_rendezvous(parameters: RendezvousParameters, node_rank: int) -> RendezvousHandler:
    """Return a rendezvous that is complete: the master has assigned this node's place, and the store is at the endpoint."""
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
            """Do nothing: no other node can join, because each round has a separate store."""

        def num_nodes_waiting(self) -> int:
            return 0

        def get_run_id(self) -> str:
            return parameters.run_id

        def shutdown(self) -> bool:
            return True

    return MasterRendezvous()


def main(arguments: list[str]) -> None:
    """Import torchrun, run the round that the agent starts, and wait until the agent disconnects."""
    agent, descriptor = map(int, arguments[:2])
    process.die_with(agent)
    link = socket.socket(fileno=descriptor)
    watcher = RankWatcher(link, local_rank_variable="LOCAL_RANK")
    watcher.install()
    import torch.distributed.run  # noqa: F401 - while the nodes still find each other

    if ranks := watcher.receive():
        watcher.variables += [{name: variables[name] for name in _OUR_VARIABLES} for variables in ranks]
        run_torchrun(ranks[0], len(ranks), arguments[4:])
        starter_protocol.receive(link)
    os._exit(0)  # nothing is left to do, and torch takes time to exit
