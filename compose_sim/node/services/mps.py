"""How does NVIDIA's Multi-Process Service (MPS) run as a service of a run? It serves ranks of all nodes, as the user they run as.

mps.py serve    start its daemon, tell when it answers, and stop it in good order on SIGTERM
mps.py ask      exit status 0 where it answers: the health of the service
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
from ..shared.mps_marks import FAILED, READY

_PATIENCE_S = 60.0
_BETWEEN_QUESTIONS_S = 0.02
_GRACE_S = 2  # for clients, before their servers end with them
_ASK_S = 5.0


def main(arguments: list[str]) -> int:
    """Serve, or ask; the exit status."""
    control = os.environ.get("COMPOSESIM_MPS_CONTROL", "nvidia-cuda-mps-control")
    if "/" in control:  # the daemon finds its server on PATH
        os.environ["PATH"] = f"{Path(control).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    if arguments == ["ask"]:
        return 0 if answers(control) else 1
    if arguments != ["serve"]:
        sys.exit(__doc__)
    return serve(control, Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]), EventLog.from_environment(os.environ))


def serve(control: str, folder: Path, events: EventLog) -> int:
    """Run the daemon until SIGTERM (0), or until it ends by itself (1)."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    is_ours = not folder.exists()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in folder.iterdir():  # by a daemon that was killed: its pipes lead nowhere
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
                return _failed(events, folder, f"'{control}' ended with status {daemon.returncode} instead of serving")
            if time.monotonic() - begun > _PATIENCE_S:
                return _failed(events, folder, f"'{control}' does not answer after {_PATIENCE_S:g} s")
            time.sleep(_BETWEEN_QUESTIONS_S)
        ready.write_text(f"{daemon.pid}\n")
        events.emit("mps", phase="ready", seconds=round(time.monotonic() - begun, 3))
        daemon.wait()
        return _failed(events, folder, f"'{control}' ended with status {daemon.returncode} while nodes needed it")
    except _Left:
        return 0
    finally:
        ready.unlink(missing_ok=True)
        _stop(control, daemon)
        if is_ours and not (folder / FAILED).exists():  # which nodes have yet to read
            shutil.rmtree(folder, ignore_errors=True)


def answers(control: str) -> bool:
    """Whether the daemon of this pipe folder answers a question."""
    status, output = _ask(control, "get_default_active_thread_percentage")
    return status == 0 and output.strip().replace(".", "").isdigit()


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


class _Left(Exception):
    """Told to end."""


def _leave(*_: object) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # once is enough: what follows is the leaving
    raise _Left


def _failed(events: EventLog, folder: Path, message: str) -> int:
    print(f"composesim mps: {message}", file=sys.stderr)
    draft = folder / f"{FAILED}.draft"  # nodes read the reason as soon as it is there
    draft.write_text(message)
    draft.replace(folder / FAILED)
    events.emit("mps", phase="failed", message=message)
    return 1
