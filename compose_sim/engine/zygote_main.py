"""Who starts the processes of a run on the local engine? This one; then it leaves, and they are composesim's own children.

zygote_main.py       runs in the nodes' Python (3.9 or newer), alone, with requests as JSON lines on stdin

{"argv": […], "environment": {…}, "folder": "…", "output": "…"}       ->  {"pid": 123}
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

_AGENT = "COMPOSESIM_AGENT_PID"


def main() -> None:
    """Serve until there are no more requests."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_start(json.loads(line))) + "\n")
        sys.stdout.flush()


def _start(request: dict[str, Any]) -> dict[str, Any]:
    started, starting = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _become(request)
        except OSError as error:  # as a shell or a container's init would tell it
            os.write(2, f"cannot start '{request['argv'][0]}' in '{request['folder']}': {error}\n".encode())
        os._exit(127)
    os.close(starting)
    os.read(started, 1)  # the end, when the new program takes over: from then on the process has its labels
    os.close(started)
    return {"pid": child}


def _become(request: dict[str, Any]) -> None:
    os.setsid()
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.chdir(request["folder"])
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and a new program would inherit that
    argv = request["argv"]
    os.execvpe(argv[0], argv, {**request["environment"], _AGENT: str(os.getpid())})


if __name__ == "__main__":
    main()
