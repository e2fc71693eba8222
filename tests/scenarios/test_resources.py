"""With a full or read-only disk, too few descriptors or too little memory, a run ends with a verdict, or exit code 4."""

from __future__ import annotations

import json
import os
import resource
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compose_sim.errors import ResourceError, resource_error
from tests.scenarios.conftest import BARE, COMMAND, Outcome, Project

UP = ("up", *BARE, "--engine", "local", "--nodes", "2", "--force")  # there is less space than a run requests
FILLS = """
import os
if os.environ["RANK"] == "0":
    path = os.path.join(os.environ["COMPOSESIM_SHARED"], "..", "..", "..", "..", "filler")
    try:
        with open(path, "wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))
    except OSError as error:
        print("errno", error.errno, flush=True)
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
pytestmark = pytest.mark.train


@contextmanager
def mounted(folder: Path, *words: str) -> Iterator[None]:
    if subprocess.run(["mount", *words, str(folder)], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@as_root
def test_a_disk_that_is_too_small_is_named(project: Project) -> None:
    with mounted(project.folder, "-t", "tmpfs", "-o", "size=300k", "none"):
        outcome = project.run(*UP, "--json", project.write("train.py", ""))

    assert outcome.status == 4
    assert outcome.report["error"]["exit_code"] == 4
    assert str(project.folder) in outcome.report["error"]["message"]


@as_root
def test_a_run_that_fills_the_disk_gets_its_verdict_printed(project: Project) -> None:
    run = project.named("full")
    with mounted(project.folder, "-t", "tmpfs", "-o", "size=8m", "none"):
        outcome = project.run(*UP, "--name", run, "--json", project.write("train.py", FILLS))
        is_full = os.statvfs(project.folder).f_bavail == 0
        is_written = (project.folder / f".composesim/runs/{run}/report.json").exists()

    assert is_full
    assert not is_written
    assert (outcome.status, outcome.report["verdict"]) == (0, "passed")


@as_root
def test_a_read_only_folder_for_runs_is_named(project: Project) -> None:
    project.write("train.py", "")
    with mounted(project.folder, "--bind", "-o", "ro", str(project.folder)):
        outcome = project.run("--runs-dir", str(project.folder / "runs"), *UP, "train.py")

    assert outcome.status == 4
    assert str(project.folder / "runs") in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize(("limit", "values"), [("NOFILE", (8, 14, 20, 64)), ("AS", (120 << 20, 200 << 20))])
def test_too_few_descriptors_or_too_little_memory_is_no_bug(
    project: Project, limit: str, values: tuple[int, ...]
) -> None:
    project.write("train.py", "")
    number = getattr(resource, f"RLIMIT_{limit}")
    outcomes = [limited(project, lambda value=value: resource.setrlimit(number, (value, value))) for value in values]

    assert {outcome.status for outcome in outcomes} <= {0, 3, 4}
    assert 4 in {outcome.status for outcome in outcomes}


@as_root
@pytest.mark.parametrize(("limit", "status"), [(4, 4), (30, 0)])
def test_too_few_process_ids_are_named(limit: int, status: int) -> None:
    """As another user: the limit counts all processes of a user, and does not bind root."""
    with tempfile.TemporaryDirectory(prefix="composesim-processes-") as name:
        Path(name).chmod(0o777)
        user = str(70_000 + secrets.randbelow(100_000))
        reads_our_python = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
        as_user = ("setpriv", "--reuid", user, "--regid", user, "--clear-groups", *reads_our_python)
        words = ("up", "--engine", "local", "--nproc-per-node", "3", "--python", "/usr/bin/python3", "--force")
        done = subprocess.run(
            [*as_user, "prlimit", f"--nproc={limit}", *COMMAND, *words, "--recipe", "exec", "--", "true"],
            cwd=name,
            env={**os.environ, "HOME": name},
            capture_output=True,
            text=True,
        )

    assert done.returncode == status, done.stderr
    assert ("start no more processes" in done.stderr) == bool(status)
    assert "Traceback" not in done.stderr


def test_output_that_cannot_be_written_is_reported_on_stderr(project: Project) -> None:
    project.write("train.py", "")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "plan", "--engine", "local", "--json", "train.py"],
            cwd=project.folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )

    assert done.returncode == 4
    assert "Traceback" not in done.stderr
    assert "Errno 28" in done.stderr


@pytest.mark.parametrize(
    ("error", "is_resource"),
    [
        (OSError(28, "No space left on device", "/a/b"), True),
        (MemoryError(), True),
        (RuntimeError("can't start new thread"), True),
        (BlockingIOError(11, "Resource temporarily unavailable"), True),  # fork, if the user has too many processes
        (RuntimeError("Could not determine home directory."), True),
        (RuntimeError("another"), False),
        (FileNotFoundError(2, "No such file or directory", "/a"), False),
    ],
)
def test_only_what_the_machine_lacks_is_a_resource_error(error: Exception, is_resource: bool) -> None:
    assert isinstance(resource_error(error), ResourceError) is is_resource


def limited(project: Project, limit: Callable[[], None]) -> Outcome:
    done = subprocess.run(
        [*COMMAND, *UP, "--json", "train.py"], cwd=project.folder, capture_output=True, text=True, preexec_fn=limit
    )
    if done.stdout.startswith("{"):
        json.loads(done.stdout)
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.docker
def test_a_node_without_process_ids_is_named(project: Project) -> None:
    """The rank only knows that no thread can be started."""
    threads = (
        "import threading\nwhile True:\n    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    project.folder.chmod(0o755)

    outcome = project.run(
        *("up", *BARE, "--engine", "docker", "--nodes", "1", "--name", project.named("threads"), "--json"),
        project.write("train.py", threads),
    )

    message = outcome.report["cause"]["message"]
    assert outcome.status == 1
    assert "can't start new thread" in message
    assert "node-0 could start no more processes or threads" in message
