"""Start the processes of a run on the local engine; they become children of the init process when this process exits.

Arguments of the role `zygote`: none. It reads requests as JSON lines from stdin:

    {"import_torch": […], "folder": "…"}  ->  no answer
    {"hand_over": "begin"}  ->  {"pid": 123} of the zygote
    {"hand_over": "end"}  ->  {"pid": 123}
    {"argv": […], "environment": {…}, "folder": "…", "output": "…", "program": […] or null}  ->  {"pid": 123} or {"errno": 11}

What is started between "begin" and "end" is handed over at the end, without an exit of the zygote: a process forked from it
serves these requests, and then exits.

If nodes fork their ranks from a Python that has imported torch, torch is imported once, here, and the fork server of each
node is forked from this process. Like on other engines, it must be a child of the agent: the process that becomes the
agent forks it before it executes the agent's command. `program` and `import_torch` are what the ranks run.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared import process
from ..shared.regular_files import open_regular

_AGENT = "COMPOSESIM_AGENT_PID"
_STARTER = "COMPOSESIM_STARTER"  # agent/launchers.py reads it
_NO_PROCESS = b"0"  # a process that was forked for a node could not fork another one


@dataclass(frozen=True)
class _NodeServer:
    """What a forked process is to become: the fork server of one node."""

    link: socket.socket
    program: list[str]


def serve() -> _NodeServer | None:
    """Serve until there are no more requests, and return None; return what to do in a process forked for a node."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, but a node must not
    with os.fdopen(os.dup(0)) as requests, os.fdopen(os.dup(1), "w", buffering=1) as answers:
        # Forked processes must not use these pipes.
        _redirect(os.open(os.devnull, os.O_RDONLY), 2)
        for line in requests:
            request = json.loads(line)
            if "import_torch" in request:
                from ..rank import instrument
                from . import fork_server

                instrument.install()
                fork_server.import_torch(request["import_torch"], request["folder"])
                continue
            server = None
            try:
                pid, server = _hand_over(request["hand_over"]) if "hand_over" in request else _start(request)
                answer: dict[str, Any] = {"pid": pid}
            except BlockingIOError as error:
                answer = {"errno": error.errno}
            if server:
                return server
            answers.write(json.dumps(answer) + "\n")
    return None


def _hand_over(request: str) -> tuple[int, None]:
    """Begin in a forked process, or end it; return in the zygote once that process has exited. Returns the zygote's process id."""
    if request == "end":
        os._exit(0)
    child = os.fork()
    if child == 0:
        return os.getppid(), None
    os.waitpid(child, 0)
    return os.getpid(), None


def _start(request: dict[str, Any]) -> tuple[int, _NodeServer | None]:
    """Start a node; raise BlockingIOError if starting it or its fork server would exceed the limit of processes."""
    started, starting = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(started)
        try:
            server = _become(request)
            if server:
                os.close(starting)
                return 0, server
        except BlockingIOError:
            os.write(starting, _NO_PROCESS)
        except OSError as error:  # report it as a shell would
            os.write(2, f"cannot start '{request['argv'][0]}' in '{request['folder']}': {error}\n".encode())
        os._exit(127)
    os.close(starting)
    # This returns when the new program is executed. From then on, the process has the new labels.
    answer = os.read(started, 1)
    os.close(started)
    if answer == _NO_PROCESS:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return child, None


def _become(request: dict[str, Any]) -> _NodeServer | None:
    """Execute the requested command in this forked process; returns only in the fork server that it forks before."""
    os.setsid()
    output = open_regular(Path(request["output"]), os.O_WRONLY | os.O_APPEND)  # composesim has made it
    _redirect(os.open(os.devnull, os.O_RDONLY), output)
    os.chdir(request["folder"])
    environment = {**request["environment"], _AGENT: str(os.getpid())}
    if request["program"]:
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        agent, server = os.getpid(), os.fork()
        if server == 0:
            link.close()
            os.setsid()
            os.environ.clear()
            os.environ.update(environment)
            process.die_with(agent)
            return _NodeServer(theirs, request["program"])
        link.set_inheritable(True)
        environment[_STARTER] = f"{server} {link.fileno()}"
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the new program would inherit that
    return os.execvpe(request["argv"][0], request["argv"], environment)


def _redirect(source: int, target: int) -> None:
    """Use `source` as stdin, and `target` as stdout and stderr."""
    for descriptor, standard in ((source, 0), (target, 1), (target, 2)):
        os.dup2(descriptor, standard)
    for descriptor in (source, target):
        if descriptor > 2:
            os.close(descriptor)


def main(_: list[str]) -> None:
    """Serve composesim; in a process forked for a node, fork the ranks, and in a rank, run the script."""
    server = serve()
    if server is None:
        os._exit(0)  # torch takes time to exit
    from . import fork_server

    fork_server.run_rank(fork_server.ForkServer(server.link).serve(), "warm", server.program)
