"""Start programs from a list of arguments, never through a shell. Outside nodes, nothing else in composesim starts one."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from compose_sim.engine.lifetime.interrupts import interrupts_delayed
from compose_sim.errors import CommandError
from compose_sim.node.shared.process import shell_status

if TYPE_CHECKING:
    from compose_sim.engine.docker.daemon import DaemonPatience

_LOOK_S = 2.0
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_MAX_MEMORY_BYTES = 8 << 30  # addresses, not memory in use: a Python takes few


def output_of(argv: Sequence[str], *, stdin: bytes | None = None) -> str:
    """Return what a program prints on stdout; raise CommandError with the stderr if it fails."""
    source = subprocess.DEVNULL if stdin is None else subprocess.PIPE
    with subprocess.Popen(argv, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        stdout, stderr = _outputs(child, argv, stdin)
    if child.returncode:
        raise CommandError(argv, child.returncode, (stderr or stdout).decode("utf-8", "replace"))
    return str(stdout, "utf-8", "replace")


def try_output_of(
    argv: Sequence[str],
    *,
    folder: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """
    Return the exit status and all output of a program that may fail; 127 if it is not installed.

    It runs in `folder`, if given, with `variables` in addition to those of this process.
    """
    try:
        child = subprocess.Popen(
            argv,
            cwd=folder,
            env={**os.environ, **(variables or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except (FileNotFoundError, PermissionError) as error:
        return 127, str(error)
    with child:
        output, _ = _outputs(child, argv)
    return child.returncode, output


def bounded_output_of(
    argv: Sequence[str],
    *,
    timeout_s: float,
    most_bytes: int,
    most_memory_bytes: int | None = _MAX_MEMORY_BYTES,
    folder: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """
    Return the exit status and the output of a program that a project may have replaced.

    The program is killed if it runs longer or prints more, and what it has started is killed when it ends; its memory is limited too,
    unless the program itself does that. It runs in `folder`, if given, with `variables` in addition to those of this process.
    """
    limited = (
        ["sh", "-c", f'ulimit -v {most_memory_bytes >> 10}; exec "$@"', "sh", *argv] if most_memory_bytes else argv
    )
    with _start(  # it must end with us: an interrupt may come before we can kill it
        limited,
        cwd=folder,
        env={**os.environ, **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        timer = threading.Timer(timeout_s, _kill_group, [child])
        timer.daemon = True  # an interrupt that comes before `try` must not wait for it
        timer.start()
        try:
            output = child.stdout.read(most_bytes)
            if len(output) < most_bytes:
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it keeps its group until it is reaped
        finally:
            _kill_group(child)
            timer.cancel()
    return child.returncode, output.decode("utf-8", "replace")


def run_bound(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
    """
    Run a program that must not outlive composesim: it dies with us, and Ctrl-C reaches only us.

    Raises CommandError with all output if it fails.
    """
    with _start_bound(argv, env) as child:
        output, _ = _outputs(child, argv)
    if child.returncode:
        raise CommandError(argv, child.returncode, output)


def stream_lines(argv: Sequence[str]) -> tuple[subprocess.Popen[str], Iterator[str]]:
    """Start a program that prints continuously; return the process, so that it can be killed, and the lines."""
    child = _start_bound(argv)
    assert child.stdout is not None
    return child, iter(child.stdout)


def run_on_terminal(argv: Sequence[str], *, folder: str | None = None, env: Mapping[str, str] | None = None) -> int:
    """Run a program on this terminal; return the exit status as a shell would: 127 if there is no such program."""
    ours = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the program, as in a shell
    try:
        restore = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        done = subprocess.run(argv, cwd=folder, env=env, check=False, preexec_fn=restore)
    except FileNotFoundError:
        return 127
    except PermissionError:
        return 126
    finally:
        signal.signal(signal.SIGINT, ours)
    return shell_status(done.returncode)


def start_on_terminal(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a program on this terminal that must not outlive composesim; Ctrl-C reaches both."""
    return _start(argv)


def run_on_lines(
    argv: Sequence[str],
    write: Callable[[str], None],
    *,
    folder: str | None = None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run a program without a terminal, and pass each line that it prints to `write`; return the exit status as a shell would."""
    with subprocess.Popen(
        argv,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            write(line.rstrip("\n"))
    return shell_status(child.returncode)


def through_shell(node: str, argv: Sequence[str]) -> list[str]:
    """Return the command as a shell on the node starts it, which reports in the node's name if there is no such program."""
    return ["sh", "-c", 'exec "$@"', node, *argv]


def _outputs(child: subprocess.Popen[Any], argv: Sequence[str], stdin: bytes | None = None) -> tuple[Any, Any]:
    """Return all that a program prints. End it if we are interrupted, or if it waits for a Docker daemon that hangs."""
    patience: DaemonPatience | None = None
    while True:
        try:
            if patience:
                patience.check()
            return child.communicate(stdin, timeout=_LOOK_S if argv[0] == "docker" else None)
        except subprocess.TimeoutExpired:
            from compose_sim.engine.docker.daemon import DaemonPatience  # no other program needs it

            stdin = None  # the rest of it is sent all the same
            patience = patience or DaemonPatience(" ".join(argv[:4]))
        except BaseException:
            child.terminate()
            raise


def _start_bound(argv: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return _start(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _start(argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a program that the kernel ends with the thread that called this."""
    with interrupts_delayed():  # Python throws away what a handler raises in the functions that it calls after a fork
        return subprocess.Popen(argv, preexec_fn=_die_with_parent, **options)


def _kill_group(leader: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)


def _die_with_parent() -> None:
    """Have the kernel end this child, before exec, when the thread that started it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
