"""Who starts the processes of a run on the local engine? This one; then it leaves, and they are composesim's own children.

Where nodes fork their ranks from a Python that has imported torch, it is imported once, here, and each node's starter is forked
from this process. So that it is the agent's child as everywhere else, the process that becomes the agent forks it before it
executes the agent's program.

    zygote_main.py       runs in the nodes' Python (3.9 or newer), alone, with requests as JSON lines on stdin

    {"warm": NODE_FOLDER}                                            ->  nothing: torch is being imported from now on
    {"argv": […], "environment": {…}, "folder": "…", "output": "…",
     "program": [WORDS AFTER python] or null}                        ->  {"pid": 123}; with a starter for a `program`
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
from typing import Any

_AGENT = "COMPOSESIM_AGENT_PID"
_STARTER = "COMPOSESIM_STARTER"  # node/agent/launchers.py reads it
_NODE_CODE = "composesim_node"  # as node/bootstrap.py names it


class _Starter:
    """What this process has become: the starter of one node."""

    def __init__(self, link: socket.socket, program: list[str]) -> None:
        self.link, self.program = link, program


def serve() -> _Starter | None:
    """Serve until there are no more requests: None. In a process forked for a node: what it is to be."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job: no node is one
    with os.fdopen(os.dup(0)) as requests, os.fdopen(os.dup(1), "w", buffering=1) as answers:
        _redirect(
            os.open(os.devnull, os.O_RDONLY), 2
        )  # forks must not hold these pipes, nor write answers of their own
        for line in requests:
            request = json.loads(line)
            if "warm" in request:
                _import_torch(request["warm"])
                continue
            pid, starter = _start(request)
            if starter:
                return starter
            answers.write(json.dumps({"pid": pid}) + "\n")
    return None


def _import_torch(node_folder: str) -> None:
    # Imported as the fork server imports it: its package loaded, its folder not on the path.
    sys.path[0] = node_folder
    importlib.import_module("bootstrap")
    _node_code("rank.instrument").install()
    _node_code("starters.fork_server").import_torch()


def _start(request: dict[str, Any]) -> tuple[int, _Starter | None]:
    started, starting = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(started)
        try:
            starter = _become(request)
            if starter:
                os.close(starting)
                return 0, starter
        except OSError as error:  # as a shell or a container's init would tell it
            os.write(2, f"cannot start '{request['argv'][0]}' in '{request['folder']}': {error}\n".encode())
        os._exit(127)
    os.close(starting)
    os.read(started, 1)  # the end, when the new program takes over: from then on the process has its labels
    os.close(started)
    return child, None


def _become(request: dict[str, Any]) -> _Starter | None:
    """Turn this forked process into what was asked for; returns, as `_Starter`, in the child that it may fork before."""
    os.setsid()
    _redirect(
        os.open(os.devnull, os.O_RDONLY), os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    )
    os.chdir(request["folder"])
    environment = {**request["environment"], _AGENT: str(os.getpid())}
    if request["program"]:
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        agent, starter = os.getpid(), os.fork()
        if starter == 0:
            link.close()
            os.setsid()
            os.environ.clear()
            os.environ.update(environment)
            _node_code("shared.process").die_with(agent)
            return _Starter(theirs, request["program"])
        link.set_inheritable(True)
        environment[_STARTER] = f"{starter} {link.fileno()}"
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and a new program would inherit that
    return os.execvpe(request["argv"][0], request["argv"], environment)


def _node_code(name: str) -> Any:
    return importlib.import_module(f"{_NODE_CODE}.{name}")


def _redirect(source: int, target: int) -> None:
    """Let stdin be `source`, stdout and stderr `target`."""
    for descriptor, standard in ((source, 0), (target, 1), (target, 2)):
        os.dup2(descriptor, standard)
    for descriptor in (source, target):
        if descriptor > 2:
            os.close(descriptor)


if __name__ == "__main__":
    _starter = serve()
    if _starter is None:
        os._exit(0)  # torch takes its time to leave
    _variables = _node_code("starters.fork_server").ForkServer(_starter.link).serve()
    if _variables is None:
        os._exit(0)
    os.environ.update(_variables)
    _rank = _node_code("rank.script_runner")
    _rank.run(_rank.UserProgram.from_arguments(_starter.program))
