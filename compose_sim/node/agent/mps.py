"""Run NVIDIA's Multi-Process Service (MPS) for the ranks of all nodes, as the nodes' user.

Arguments of the role `mps`: serve (run the daemon, report when it answers, and stop it on SIGTERM) or ask (the health
check: exit with 0 if the daemon answers)
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from ..shared.event_log import EventLog

READY = "composesim-ready"  # in the pipe folder, once the daemon has answered
FAILED = "composesim-failed"  # instead, with the reason, if it does not answer
_START_SECONDS = 60.0
_POLL_SECONDS = 0.02
_GRACE_S = 2  # for clients to finish before their servers end
_ASK_S = 5.0


def main(arguments: list[str]) -> int:
    """Serve or ask, and return the exit status."""
    control = os.environ.get("COMPOSESIM_MPS_CONTROL", "nvidia-cuda-mps-control")
    if "/" in control:  # the daemon looks for the server on the PATH
        os.environ["PATH"] = f"{Path(control).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    if arguments == ["ask"]:
        return 0 if answers(control) else 1
    if arguments != ["serve"]:
        sys.exit(__doc__)
    return serve(control, Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]), EventLog.from_environment(os.environ))


def serve(control: str, folder: Path, events: EventLog) -> int:
    """Run the daemon until SIGTERM (and return 0), or until it ends by itself (and return 1)."""
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, _terminate)
    is_ours = not folder.exists()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():  # in /tmp, any user can make it first
        message = f"'{folder}' belongs to another user"
        print(f"composesim mps: {message}", file=sys.stderr)
        events.emit("mps", phase="failed", message=message)
        return 1
    folder.chmod(0o700)
    for left in folder.iterdir():  # of a daemon that was killed
        left.unlink()
    ready = folder / READY
    begun = time.monotonic()
    try:
        daemon = subprocess.Popen([control, "-f"], stdin=subprocess.DEVNULL)
    except OSError as error:
        return _failed(events, folder, f"'{control}' cannot be started: {error.strerror}")
    try:
        while not answers(control):
            if daemon.poll() is not None:
                return _failed(events, folder, f"'{control}' ended with status {daemon.returncode} before it answered")
            if time.monotonic() - begun > _START_SECONDS:
                return _failed(events, folder, f"'{control}' does not answer after {_START_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)
        ready.write_text(f"{daemon.pid}\n")
        events.emit("mps", phase="ready", seconds=round(time.monotonic() - begun, 3))
        daemon.wait()
        return _failed(events, folder, f"'{control}' ended with status {daemon.returncode} while nodes used it")
    except _Terminated:
        return 0
    finally:
        ready.unlink(missing_ok=True)
        _stop(control, daemon)
        if is_ours and not (folder / FAILED).exists():  # nodes may still have to read it
            shutil.rmtree(folder, ignore_errors=True)


def answers(control: str) -> bool:
    """Return whether the daemon of this pipe folder answers."""
    status, output = _ask(control, "get_default_active_thread_percentage")
    return status == 0 and output.strip().replace(".", "").isdecimal()


def _ask(control: str, question: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [control],
            input=f"{question}\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=_ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 1, ""
    return done.returncode, done.stdout


def _stop(control: str, daemon: subprocess.Popen[bytes]) -> None:
    if daemon.poll() is None:
        _ask(control, f"quit -t {_GRACE_S}")
    try:
        daemon.wait(_GRACE_S + 3)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


class _Terminated(Exception):
    """A signal has arrived."""


def _terminate(*_: object) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # ignore further signals
    raise _Terminated


def _failed(events: EventLog, folder: Path, message: str) -> int:
    print(f"composesim mps: {message}", file=sys.stderr)
    draft = folder / f"{FAILED}.draft"  # nodes read the file as soon as it exists
    draft.write_text(message)
    draft.replace(folder / FAILED)
    events.emit("mps", phase="failed", message=message)
    return 1
