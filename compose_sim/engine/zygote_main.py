"""Who starts the processes of a run on the local engine? This one; then it leaves, and they are composesim's own children.

zygote_main.py       runs in the nodes' Python (3.9 or newer), alone, with requests as JSON lines on stdin

{"argv": […], "environment": {…}, "folder": "…", "output": "…"}       ->  {"pid": 123} or {"error": "…"}
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
    news, news_of_child = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _become(request)
        except OSError as error:
            os.write(news_of_child, str(error).encode())
        os._exit(127)
    os.close(news_of_child)
    with os.fdopen(news, "rb") as reader:
        complaint = reader.read()  # ends when the new program closes the pipe by having been started
    return {"error": complaint.decode()} if complaint else {"pid": child}


def _become(request: dict[str, Any]) -> None:
    os.setsid()
    os.chdir(request["folder"])
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and a new program would inherit that
    argv = request["argv"]
    os.execvpe(argv[0], argv, {**request["environment"], _AGENT: str(os.getpid())})


if __name__ == "__main__":
    main()
