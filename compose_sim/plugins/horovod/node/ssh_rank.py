"""Stand in for a rank within an ssh session: request the rank from the node, wait for it to end, and exit as it does.

Arguments of the role `ssh-rank`: -- [-m] SCRIPT ARGS..., as another launcher (horovodrun, mpirun) starts it on a node

The node forks the rank itself, so the rank has a log, is watched, and can be a target of faults. It is stopped when
this process or the ssh session ends.
"""

import json
import os
import select
import socket
import sys

_SOCKET = "COMPOSESIM_RANK_SOCKET"  # as in ssh.py, which would take time to import


def main(arguments: list[str]) -> int:
    """Pass on the launcher's environment for the rank; return the rank's status as a shell reports it."""
    path = os.environ.get(_SOCKET)
    if not path:
        print("composesim: the role ssh-rank runs only in ssh sessions of a node", file=sys.stderr)
        return 2
    starter = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    starter.connect(path)
    starter.sendall(json.dumps({"environment": dict(os.environ)}).encode() + b"\n")
    poll = select.poll()
    poll.register(starter, select.POLLIN)
    poll.register(1, 0)  # errors only: if the output is no longer read, the session has ended
    line = b""
    while not line.endswith(b"\n"):
        for descriptor, _ in poll.poll():
            if descriptor == 1:
                return 1
            received = starter.recv(65536)
            if not received:
                print("composesim: the node is shutting down", file=sys.stderr)
                return 1
            line += received
    answer = json.loads(line)
    if answer["error"]:
        print(f"composesim: {answer['error']}", file=sys.stderr)
    status = int(answer["status"])
    return status if status >= 0 else 128 - status
