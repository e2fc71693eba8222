"""How does composesim start a program? With a list of arguments, never a shell; the only place on this side that starts one."""

from __future__ import annotations

import ctypes
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from compose_sim.errors import CommandError

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


def output_of(argv: Sequence[str]) -> str:
    """What a program printed on stdout; CommandError, with what it said on stderr, where it ends badly."""
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise CommandError(argv, done.returncode, done.stderr or done.stdout)
    return done.stdout


def try_output_of(argv: Sequence[str]) -> tuple[int, str]:
    """Status and all output of a program that may well fail; 127 where it is not installed."""
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
        )
    except (FileNotFoundError, PermissionError) as error:
        return 127, str(error)
    return done.returncode, done.stdout


def run_bound(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
    """
    Run a program that must not outlive composesim: it dies with us, and Ctrl-C reaches us alone.

    Raises CommandError with all it printed.
    """
    with _start_bound(argv, env) as child:
        try:
            output, _ = child.communicate()
        except BaseException:
            child.terminate()
            raise
    if child.returncode:
        raise CommandError(argv, child.returncode, output)


def lines_of(argv: Sequence[str]) -> tuple[subprocess.Popen[str], Iterator[str]]:
    """Start a program that keeps talking; the process, to end it, and its lines."""
    child = _start_bound(argv)
    assert child.stdout is not None
    return child, iter(child.stdout)


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
        preexec_fn=die_with_parent,
    )


def on_terminal(argv: Sequence[str], *, folder: str | None = None, env: Mapping[str, str] | None = None) -> int:
    """Run a program on this very terminal; its exit status, as a shell would give it: 127 where there is no such program."""
    ours = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the program's, as in a shell
    try:
        status = subprocess.run(argv, cwd=folder, env=env, check=False, preexec_fn=_hear_interrupts).returncode
    except FileNotFoundError:
        return 127
    except PermissionError:
        return 126
    finally:
        signal.signal(signal.SIGINT, ours)
    return status if status >= 0 else 128 - status


def _hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def die_with_parent() -> None:
    """In a child, before exec: end when the thread that started us ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def feed(argv: Sequence[str], data: bytes) -> str:
    """What a program that is given these bytes as its stdin prints; CommandError where it ends badly."""
    done = subprocess.run(argv, input=data, capture_output=True, check=False)
    if done.returncode:
        raise CommandError(argv, done.returncode, done.stderr.decode("utf-8", "replace"))
    return done.stdout.decode("utf-8", "replace")
