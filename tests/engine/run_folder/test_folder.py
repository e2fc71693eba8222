"""A run's folder stays intact, and nothing else is deleted or written, whatever paths and links point to it."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import struct
import subprocess
import sys
import threading
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from compose_sim.core.plan.model import TOKEN
from compose_sim.engine.lifetime.orphans import interrupt_until_over, state_of
from compose_sim.engine.run_folder.finished import delete
from compose_sim.engine.run_folder.folder import RunFolder, is_run_folder, lay_out, runs_folder
from compose_sim.errors import SpecError
from compose_sim.node.shared.authentication import SECRET
from tests.builders import ROOT

# Another process that claims a run's folder until it is asked to end.
HOLDER = """
import sys
from pathlib import Path
from compose_sim.engine.run_folder.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.claim()
print("held", flush=True)
sys.stdin.read()
"""


_FOLDERS = ("control", "secrets", "debug", "mps")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run's folder that nobody has claimed."""
    folder = RunFolder(runs_folder(tmp_path) / "one")
    folder.claim()
    lay_out(folder.path, os.getuid(), os.getgid())
    folder.release()
    return folder


@pytest.mark.parametrize(
    ("path", "is_run"),
    [
        ("/project/.composesim/runs/one", True),
        ("/project/.composesim/runs/..", False),
        ("/project/.composesim/runs", False),
        ("/project/.composesim/runs/one/shared", False),
        ("/project/rendered", False),
        ("/", False),
    ],
)
def test_only_a_direct_child_of_the_runs_is_a_run(path: str, is_run: bool) -> None:
    assert is_run_folder(Path(path)) is is_run


def test_a_folder_elsewhere_is_never_deleted(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "lock").touch()
    runs_folder(tmp_path).mkdir(parents=True)
    (runs_folder(tmp_path) / "link").symlink_to(victim)
    (runs_folder(tmp_path) / "bare").mkdir()

    for path in (victim, runs_folder(tmp_path) / "../../victim", runs_folder(tmp_path) / "link"):
        with pytest.raises(SpecError, match="is not the folder of a run"):
            delete(RunFolder(path))
    with pytest.raises(SpecError, match="is not the folder of a run"):
        delete(RunFolder(runs_folder(tmp_path) / "bare"))
    assert (victim / "lock").is_file()


def test_a_folder_that_is_held_is_not_deleted(folder: RunFolder) -> None:
    folder.claim()
    with pytest.raises(SpecError, match="its folder was not deleted"):
        delete(RunFolder(folder.path))
    folder.release()

    delete(RunFolder(folder.path))
    assert not folder.path.exists()


def test_one_who_only_asks_does_not_keep_a_run_from_starting(folder: RunFolder) -> None:
    probe = os.open(folder.path / "lock", os.O_RDWR)
    fcntl.flock(probe, fcntl.LOCK_SH)
    threading.Timer(0.1, os.close, (probe,)).start()

    folder.claim()

    assert RunFolder(folder.path).is_claimed()
    with pytest.raises(SpecError, match="is under way"):
        RunFolder(folder.path).claim()
    folder.release()


def test_the_process_of_a_start_is_waited_for(folder: RunFolder) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin
    assert holder.stdout
    assert holder.stdout.readline() == "held\n"

    assert interrupt_until_over(folder, timeout_s=0.1) is False
    threading.Timer(0.1, holder.stdin.close).start()
    assert interrupt_until_over(folder, timeout_s=15) is True

    assert holder.wait(10) == 0
    holder.stdout.close()
    assert '"stopping"' in (folder.path / "journal" / "composesim.jsonl").read_text()


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_only_the_owner_gets_at_secrets_and_sockets(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        lay_out(tmp_path / "rendered", os.getuid(), os.getgid(), token=True)
    finally:
        os.umask(before)

    modes = {name: stat.S_IMODE((tmp_path / "rendered" / name).stat().st_mode) for name in (*_FOLDERS, SECRET, TOKEN)}
    assert modes == {**dict.fromkeys(_FOLDERS, 0o700), SECRET: 0o600, TOKEN: 0o600}


def test_events_are_appended_a_line_each(folder: RunFolder) -> None:
    folder.append_event("started", version="1")
    folder.append_event("note", reason="x")

    lines = (folder.path / "journal" / "composesim.jsonl").read_text().splitlines()
    assert ['"started"' in lines[0], '"note"' in lines[1], len(lines)] == [True, True, 2]


def test_where_a_run_stands(folder: RunFolder, tmp_path: Path) -> None:
    assert state_of(folder.path) == "crashed"
    assert state_of(None) == "crashed"
    assert state_of(tmp_path / "rendered") == "rendered"
    assert state_of(Path("/nowhere/.composesim/runs/one")) == "under way"
    (folder.path / "report.json").write_text("{}")
    (folder.path / "plan.json").write_text("[]")
    assert state_of(folder.path) == "unreadable"
    folder.claim()
    assert state_of(folder.path) == "under way"
    folder.release()


@pytest.mark.parametrize("switched_off", [False, True])
def test_nodes_get_bytecode_that_is_valid_for_their_code_unless_the_user_wants_none(
    switched_off: bool, tmp_path: Path
) -> None:
    package = shutil.copytree(
        ROOT / "compose_sim", tmp_path / "compose_sim", ignore=shutil.ignore_patterns("__pycache__")
    )
    code = "import os, sys; from compose_sim.engine.run_folder.folder import RunFolder, Path; "
    code += "RunFolder(Path(sys.argv[1])).clear(os.getuid(), os.getgid())"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1" if switched_off else "", "PYTHONPYCACHEPREFIX": ""}
    run = runs_folder(tmp_path) / "run"
    subprocess.run([sys.executable, "-c", code, run], env=environment, cwd=package.parent, check=True)

    sources = sorted((run / "node").rglob("*.py"))
    compiled = [Path(cache_from_source(str(source))) for source in sources]
    assert len(sources) > 50
    assert {file.exists() for file in compiled} == {not switched_off}
    for source, file in () if switched_off else zip(sources, compiled, strict=True):
        _, flags, seconds, size = struct.unpack("<4sLLL", file.read_bytes()[:16])
        assert (flags, seconds, size) == (0, int(source.stat().st_mtime), source.stat().st_size)
