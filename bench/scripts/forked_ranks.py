"""Import torch once, fork RANKS ranks, and run SCRIPT in each: all that a launcher on one machine cannot avoid."""

import os
import runpy
import socket
import sys

import torch.distributed
import torch.nn.parallel  # noqa: F401 - likewise

ranks, script = int(sys.argv[1]), sys.argv[2]
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
children = []
for rank in range(ranks):
    child = os.fork()
    if child == 0:
        os.environ.update(
            RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
        )
        sys.argv = [script]
        runpy.run_path(script, run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
sys.stdout.flush()
os._exit(max(map(abs, codes)))  # torch takes time to exit
