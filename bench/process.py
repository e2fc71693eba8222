"""Time commands, from the first start to the last exit, and check that they succeed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 120.0  # for one command; on an idle machine, the slowest contestant needs a quarter of this
GRACE_S = 15.0  # between SIGINT and SIGKILL, when a measurement is interrupted


class RunFailedError(Exception):
    """A measured command failed; the text says which one, how, and its last lines of output."""


@dataclass(frozen=True, slots=True)
class Finished:
    seconds: float
    cpu_seconds: float  # of the commands and of the programs that they start and wait for
    output: str  # stdout and stderr of all commands, one after the other


def run_together(
    commands: Sequence[Sequence[str]],
    *,
    folder: Path,
    environment: Mapping[str, str],
    expect: str = "",
    allowed: Sequence[int] = (0,),
) -> Finished:
    """Start all commands at once in `folder` and time them up to the last exit.

    Raises:
        RunFailedError: a command exits with a code that is not `allowed`, or takes longer than PATIENCE_S, or `expect` is not in
        the output.
    """
    with tempfile.TemporaryDirectory(prefix="composesim-bench-") as logs:
        paths = [Path(logs, f"{number}.log") for number in range(len(commands))]
        started, used = time.monotonic(), _cpu_seconds()
        processes = [_start(*pair, folder, environment) for pair in zip(commands, paths, strict=True)]
        late = threading.Event()

        def give_up() -> None:
            late.set()
            _kill(processes)

        watchdog = threading.Timer(PATIENCE_S, give_up)
        watchdog.start()
        try:
            # Without a timeout: wait(timeout) polls, up to 50 ms at a time, which is half of a `--help`.
            codes = [process.wait() for process in processes]
            seconds = time.monotonic() - started
        except BaseException:  # mainly Ctrl-C, which does not reach the commands in their separate sessions
            _stop(processes)
            raise
        finally:
            watchdog.cancel()
        output = "".join(path.read_text(errors="replace") for path in paths)
        _check(commands, [code for code in codes if code not in allowed], output, expect, late=late.is_set())
        return Finished(seconds, _cpu_seconds() - used, output)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _start(command: Sequence[str], log: Path, folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:  # a file, not a pipe, so that nobody has to read while time is measured
        return subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _check(commands: Sequence[Sequence[str]], codes: Sequence[int], output: str, expect: str, *, late: bool) -> None:
    last_words = " | ".join(output.strip().splitlines()[-12:])[-1200:]
    what = " ".join(map(str, commands[0]))
    if late:
        raise RunFailedError(f"`{what}` was killed after {PATIENCE_S:.0f} s: {last_words}")
    if codes:
        raise RunFailedError(f"`{what}` exited with {', '.join(map(str, codes))}: {last_words}")
    if expect not in output:
        raise RunFailedError(f"`{what}` exited with 0 but never wrote {expect!r}: {last_words}")


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Stop them with SIGINT, so that they can clean up, and with SIGKILL if they do not exit."""
    _signal(processes, signal.SIGINT)
    deadline = time.monotonic() + GRACE_S
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    _kill(processes)


def _kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    _signal(processes, signal.SIGKILL)


def _signal(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for process in processes:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
