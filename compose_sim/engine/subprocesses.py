"""Start programs from a list of arguments, never through a shell. Outside nodes, nothing else in composesim starts one."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence

from compose_sim.engine.project_owner import Owner, as_user
from compose_sim.errors import CommandError

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


def output_of(argv: Sequence[str], *, stdin: bytes | None = None) -> str:
    """Return what a program prints on stdout; raise CommandError with the stderr if it fails."""
    done = subprocess.run(argv, input=stdin, capture_output=True, check=False)
    stdout, stderr = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
    if done.returncode:
        raise CommandError(argv, done.returncode, stderr or stdout)
    return stdout


def try_output_of(argv: Sequence[str], *, owner: Owner | None = None) -> tuple[int, str]:
    """Return the exit status and all output of a program that may fail; 127 if it is not installed. It runs as `owner`, if given."""
    try:
        done = subprocess.run(
            argv,
            env=owner.environment(os.environ) if owner else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            **as_user(owner),
        )
    except (FileNotFoundError, PermissionError) as error:
        return 127, str(error)
    return done.returncode, done.stdout


def run_bound(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
    """
    Run a program that must not outlive composesim: it dies with us, and Ctrl-C reaches only us.

    Raises CommandError with all output if it fails.
    """
    with _start_bound(argv, env) as child:
        try:
            output, _ = child.communicate()
        except BaseException:
            child.terminate()
            raise
    if child.returncode:
        raise CommandError(argv, child.returncode, output)


def stream_lines(argv: Sequence[str]) -> tuple[subprocess.Popen[str], Iterator[str]]:
    """Start a program that prints continuously; return the process, so that it can be killed, and the lines."""
    child = _start_bound(argv)
    assert child.stdout is not None
    return child, iter(child.stdout)


def run_on_terminal(
    argv: Sequence[str],
    *,
    folder: str | None = None,
    env: Mapping[str, str] | None = None,
    owner: Owner | None = None,
) -> int:
    """
    Run a program on this terminal; return the exit status as a shell would: 127 if there is no such program.

    It runs as `owner`, if given.
    """
    ours = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the program, as in a shell
    try:
        done = subprocess.run(argv, cwd=folder, env=env, check=False, preexec_fn=_restore_interrupts, **as_user(owner))
        status = done.returncode
    except FileNotFoundError:
        return 127
    except PermissionError:
        return 126
    finally:
        signal.signal(signal.SIGINT, ours)
    return status if status >= 0 else 128 - status


def run_on_lines(
    argv: Sequence[str],
    write: Callable[[str], None],
    *,
    folder: str | None = None,
    env: Mapping[str, str] | None = None,
    owner: Owner | None = None,
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
        **as_user(owner),
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            write(line.rstrip("\n"))
    status = int(child.returncode)
    return status if status >= 0 else 128 - status


def through_shell(node: str, argv: Sequence[str]) -> list[str]:
    """Return the command as a shell on the node starts it, which reports in the node's name if there is no such program."""
    return ["sh", "-c", 'exec "$@"', node, *argv]


def _start_bound(argv: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )


def _restore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _die_with_parent() -> None:
    """Have the kernel end this child, before exec, when the thread that started it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
