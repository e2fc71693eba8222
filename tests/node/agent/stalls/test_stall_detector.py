"""Stalled ranks are detected, and their stacks are read without disturbing them; with real processes, threads and sockets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from compose_sim.node.agent.stalls import stack_dump, tcp_counters
from compose_sim.node.agent.stalls.progress import ProgressMeter
from compose_sim.node.shared.progress_page import ProgressPage
from tests.builders import PATIENCE_S, ROOT
from tests.node.harness import Cluster

# What a rank does before the user's script. Then it waits in C for a byte on stdin, and prints whether the wait was
# interrupted.
RANK = """
import ctypes, os, signal, sys, time
from pathlib import Path
from compose_sim.node.rank import stack_signal
from compose_sim.node.shared.progress_page import ProgressPage

progress = ProgressPage(Path(sys.argv[1]), "node-0", 0, 0)
stack_signal.install(progress)
stack_signal.start_helper()
while progress.get("helper") == os.getpid():  # until the thread has come up, which needs the lock that we may hold for ever
    time.sleep(0.001)

def wait_in_c(library):
    byte = ctypes.create_string_buffer(1)
    fds = (ctypes.c_int * 2)(0, 1)  # struct pollfd: stdin, POLLIN
    return library.poll(fds, 1, -1)

def stand(how):
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "another program":
        os.execlp("cat", "cat")
    print(wait_in_c(ctypes.PyDLL(None) if how == "locked" else ctypes.CDLL(None)))

progress.advance("steps")
stand(sys.argv[2])
"""
Start = Callable[[str], tuple["subprocess.Popen[str]", ProgressPage]]
Computing = tuple[ProgressPage, Callable[[float], None], Callable[[], bool]]


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Start]:
    """Start a rank that waits in some way, and return once it does."""
    started: list[subprocess.Popen[str]] = []

    def start(how: str) -> tuple[subprocess.Popen[str], ProgressPage]:
        progress = ProgressPage(tmp_path, "node-0", 0, 0)
        script = tmp_path / "script.py"
        script.write_text(RANK)
        process = subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        started.append(process)
        wait_until(lambda: bool(progress.get("steps")) and progress.get("helper") not in (0, process.pid))
        wait_until(lambda: call_of(process.pid) == {"stopped": "T", "another program": "cat"}.get(how, "poll"))
        return process, progress

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def call_of(process: int) -> str:
    """Return `T` if the process is stopped, `poll` if it is in that system call, else the program's name."""
    name, _, rest = Path(f"/proc/{process}/stat").read_text().partition("(")[2].rpartition(")")
    call = Path(f"/proc/{process}/syscall").read_text().split()
    if rest.split()[0] == "T":
        return "T"
    return "poll" if call[0] in ("7", "73") and name.startswith("python") else name


def answer_of(steps: Generator[float, None, Any]) -> Any:
    """Run a generator of pauses to its end, and return the result."""
    while True:
        try:
            time.sleep(next(steps))
        except StopIteration as end:
            return end.value


def main_stack(process: subprocess.Popen[str], progress: ProgressPage) -> list[str]:
    asked = stack_dump.request(process.pid, progress.get("helper"), progress.stacks_path, progress.get("descriptor"))
    stacks = answer_of(asked)
    (main,) = (stack for stack in stacks if stack.thread == progress.get("main_thread"))
    assert len(stacks) == 1, "the helper's own stack is nobody's business"
    return [frame.function for frame in main.frames]


@pytest.mark.parametrize(("how", "can_wake"), [("free", True), ("locked", False)])
def test_stacks_are_read_without_interrupting_a_system_call(rank: Start, how: str, can_wake: bool) -> None:
    """This also holds if another thread has the interpreter's lock, which is detected."""
    process, progress = rank(how)
    assert main_stack(process, progress) == ["wait_in_c", "stand", "<module>"]
    size = progress.stacks_path.stat().st_size
    progress.set("stacks_wanted", 1)
    stack_dump.wake(process.pid, progress.get("helper"))
    if can_wake:
        wait_until(lambda: not progress.get("stacks_wanted"))
        (main,) = stack_dump.read(progress.stacks_path, size)
        assert [frame.function for frame in main.frames] == ["wait_in_c", "stand", "<module>"]
    assert progress.get("awake") == int(can_wake)
    output, _ = process.communicate("x")
    assert output == "1\n"  # poll found the byte; it would return -1 if the signal had interrupted it


def test_a_stopped_process_stays_stopped_while_its_stack_is_read(rank: Start) -> None:
    process, progress = rank("stopped")
    assert stack_dump.main_thread_state(process.pid) == "stopped"
    assert main_stack(process, progress) == ["stand", "<module>"]
    assert stack_dump.main_thread_state(process.pid) == "stopped"

    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate("x")
    assert output == "1\n"


def test_a_process_that_runs_another_program_gets_no_signal(rank: Start) -> None:
    """The signals would end it."""
    process, progress = rank("another program")
    stack_dump.wake(process.pid, process.pid)
    assert (
        answer_of(stack_dump.request(process.pid, process.pid, progress.stacks_path, progress.get("descriptor"))) == ()
    )
    output, _ = process.communicate("still here")
    assert output == "still here"


def test_output_of_faulthandler_is_parsed() -> None:
    """Python 3.14 writes thread names; characters in file names that are not ASCII are escaped."""
    text = (
        "Current thread 0x00007f01 [helper] (most recent call first):\n"
        '  File "/run/node/rank/stack_signal.py", line 60 in _wait_for_signals\n'
        '\nThread 0x00007f02 (most recent call first):\n  File "/home/ada/\\xe4.py", line 3 in load\n  File "x.py", line ??? in y\n'
    )
    (stack,) = stack_dump.parse(text)
    assert (stack.thread, stack.current) == (0x7F02, False)
    assert [(frame.file, frame.line, frame.function) for frame in stack.frames] == [("/home/ada/ä.py", 3, "load")]


@pytest.fixture
def computing(tmp_path: Path) -> Iterator[Computing]:
    """A process that computes on request, with its page, and whether it has progressed since it was last asked.

    Another process than this one, which reads files while it measures.
    """
    computes = """import sys, time
for line in sys.stdin:
    until = time.thread_time() + float(line)
    while time.thread_time() < until:
        pass
    print("done", flush=True)
"""
    progress = ProgressPage(tmp_path, "node-0", 0, 0)
    looks = iter(range(100))
    with subprocess.Popen(
        [sys.executable, "-c", computes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        meter = ProgressMeter(process.pid, progress)

        def compute(seconds: float) -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            print(seconds, file=process.stdin, flush=True)
            assert process.stdout.readline() == "done\n"

        compute(0.0)  # it has started, and waits
        yield progress, compute, lambda: meter.has_progressed(float(next(looks)), dict)


def test_advancing_and_computing_are_progress(computing: Computing) -> None:
    progress, compute, moved = computing
    assert moved()
    assert not moved()
    assert not moved()
    progress.advance("batches")
    assert moved()
    assert not moved()
    compute(0.1)
    assert moved()
    assert not moved()


def test_computing_while_a_collective_of_a_gpu_is_pending_is_no_progress(computing: Computing) -> None:
    """The main thread spins until the GPU has finished."""
    progress, compute, moved = computing
    progress.set("on_device", 1)
    assert moved()
    assert not moved()
    compute(0.1)
    assert moved()
    progress.set("pending", 1)
    compute(0.1)
    assert not moved()
    progress.set("completed", 25)
    assert moved()
    assert not moved()
    progress.set("pending", 0)
    compute(0.1)
    assert moved()


def test_what_a_rank_without_a_gpu_answers_for_a_diagnosis_is_no_progress(computing: Computing) -> None:
    """It counts completed collectives then, for the first time; that ended each diagnosis of a hang a second later."""
    progress, _, moved = computing
    assert moved()
    assert [moved() for _ in range(3)] == [False] * 3
    progress.set("completed", 25)
    assert not moved()


@pytest.mark.parametrize(
    ("is_store", "on_device", "size", "counts"),
    [
        (False, False, 1, True),
        (True, False, 1, False),
        pytest.param(False, True, 1, False, id="a sign of life of NCCL"),
        pytest.param(False, True, 64 << 10, True, id="a download of a rank that uses a GPU"),
    ],
)
def test_bytes_from_a_socket_are_progress(
    tmp_path: Path, is_store: bool, on_device: bool, size: int, counts: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, listener.accept()[0] as server:
            page = ProgressPage(tmp_path, "node-0", 0, 0)
            page.set("on_device", int(on_device))
            meter = ProgressMeter(os.getpid(), page)
            without = port if is_store else 1

            def moved(now: float) -> bool:
                return meter.has_progressed(now, lambda: tcp_counters.bytes_by_socket(without))

            # Far apart: this process reads files while it measures itself, which is negligible in such a long time.
            assert moved(0.0)
            assert not moved(1e6)
            assert not moved(2e6)
            server.sendall(bytes(size))
            client.recv(size, socket.MSG_WAITALL)
            assert moved(2e6 + (5 if on_device else 1e6)) is counts  # a download is some bytes in each second


def test_the_connections_of_a_machine_are_not_listed_more_often_than_it_can_afford() -> None:
    """Two hundred nodes on two cores had no time left for their ranks."""
    counters = tcp_counters.TcpCounters()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        inode = os.fstat(client.fileno()).st_ino

        assert inode in (counters.bytes_by_socket(1, now=100.0) or ())
        assert counters.bytes_by_socket(1, now=100.001) is None
        assert inode in (counters.bytes_by_socket(1, now=1e6) or ())


def test_the_agent_notices_that_a_signal_stops_a_rank_and_lets_it_run_again(cluster: Callable[..., Cluster]) -> None:
    run = cluster("import time\nwhile True: time.sleep(0.1)", launcher="env", nproc=2).start(1)
    process = run.wait_for_event("node-0", "rank-started", local_rank=1)["data"]["pid"]
    os.kill(process, signal.SIGSTOP)
    halted = run.wait_for_event("node-0", "halted")
    os.kill(process, signal.SIGCONT)
    continued = run.wait_for_event("node-0", "continued")
    assert [(each["rank"], each["generation"]) for each in (halted, continued)] == [(1, 0), (1, 0)]


def test_main_thread_state() -> None:
    """A thread that waits for another one, as in a deadlock, is distinguished from one that sleeps."""
    with subprocess.Popen(["sleep", "100"]) as sleeper:
        wait_until(lambda: stack_dump.main_thread_state(sleeper.pid) == "sleeping")
        sleeper.kill()
    code = "import threading; threading.Lock().acquire(); lock = threading.Lock(); lock.acquire(); lock.acquire()"
    with subprocess.Popen([sys.executable, "-c", code]) as locked:
        wait_until(lambda: stack_dump.main_thread_state(locked.pid) == "locked")
        locked.kill()
