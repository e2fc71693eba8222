"""The limits of the caller count for plain processes, as the kernel enforces them."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compose_sim.engine.host.capacity import own_free_memory, own_free_process_ids
from tests.builders import ROOT

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root may limit groups and become another user")

ASKS = (
    "from compose_sim.engine.host import capacity; print(capacity.own_free_process_ids(), capacity.own_free_memory())"
)
GROUPS = Path("/sys/fs/cgroup")


@pytest.fixture(params=["pids", "memory"])
def group(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A new control group of version 1 or 2 in which a resource can be limited."""
    tree = GROUPS / request.param if (GROUPS / request.param).is_dir() else GROUPS
    folder = tree / f"composesim-test-{secrets.token_hex(4)}"
    folder.mkdir()
    if not (limits := [*folder.glob("pids.max"), *folder.glob("memory.max"), *folder.glob("memory.limit_in_bytes")]):
        folder.rmdir()
        pytest.skip(f"{tree} hands no control over {request.param} down")
    yield next(each for each in limits if each.name.startswith(request.param))
    folder.rmdir()


def asked(*command: str, preexec: Callable[[], object] | None = None) -> tuple[int, int]:
    """The numbers of free process ids and bytes as a process sees them; -1 stands for no limit."""
    words = [*command, sys.executable, "-c", ASKS]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, preexec_fn=preexec)
    ids, memory = (-1 if word == "None" else int(word) for word in done.stdout.split())
    return ids, memory


def test_a_control_group_limits_what_is_free(group: Path) -> None:
    limit = {"pids.max": 40}.get(group.name, 512 << 20)
    group.write_text(str(limit))
    ids, memory = asked(preexec=lambda: (group.parent / "cgroup.procs").write_text(str(os.getpid())))

    found = ids if group.name == "pids.max" else memory
    assert limit // 2 < found < limit
    assert {own_free_process_ids(), own_free_memory()}.isdisjoint({found})


def test_the_limit_of_a_user_counts_its_threads() -> None:
    user = str(70_000 + secrets.randbelow(100_000))
    as_user = ("setpriv", "--reuid", user, "--regid", user, "--clear-groups")
    reads_our_python = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    ids, _ = asked(*as_user, *reads_our_python, "prlimit", "--nproc=300")

    assert 290 < ids < 300
