"""What runs in the ssh session of a rank? This: it has the rank started by the node itself, waits for its end, and ends as it ends.

Arguments of the role `ssh-rank`: -- [-m] SCRIPT ARGS..., as somebody else's launcher (horovodrun, mpirun) starts it on a node

So the rank is a rank like all others: with a log of its own, watched, and a target of faults. The end of this process, or of the
session that it runs in, is the end of the rank.
"""

import json
import os
import select
import socket
import sys

_HOSTING = "COMPOSESIM_HOSTING"  # as ssh.py has it, which this process saves the time to import


def main(arguments: list[str]) -> int:
    """Hand over what the launcher tells its ranks; the exit code is the rank's, 128 and more for a signal."""
    path = os.environ.get(_HOSTING)
    if not path:
        print("composesim hosted: this is no ssh session of a node", file=sys.stderr)
        return 2
    hosting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    hosting.connect(path)
    hosting.sendall(json.dumps({"environment": dict(os.environ)}).encode() + b"\n")
    waiting = select.poll()
    waiting.register(hosting, select.POLLIN)
    waiting.register(1, 0)  # only its errors: nobody reads our output any more, so the session is over
    answer = b""
    while not answer.endswith(b"\n"):
        for descriptor, _ in waiting.poll():
            if descriptor == 1:
                return 1
            received = hosting.recv(65536)
            if not received:
                print("composesim hosted: the node ends", file=sys.stderr)
                return 1
            answer += received
    told = json.loads(answer)
    if told.get("why"):
        print(f"composesim hosted: {told['why']}", file=sys.stderr)
    status = int(told["status"])
    return status if status >= 0 else 128 - status
