"""In a container, no process that composesim starts can create a file that gives rights to others, by any system call."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import ROOT

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="there are no rules for this machine"
)
# Runs a line as in a container, where processes cannot gain privileges, and prints how it ends.
TRIES = """
import ctypes, os, stat, sys
sys.path.insert(0, sys.argv[1])
from compose_sim.node.setuid_files import forbid_setuid_files
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")
if sys.argv[2] == "container":
    libc.prctl(38, ctypes.c_ulong(1), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
forbid_setuid_files()
folder = os.open(".", os.O_RDONLY)
file = os.open("file", os.O_CREAT | os.O_RDWR, 0o755)
try:
    exec(sys.argv[3])
    print("done")
except OSError as error:
    print(error.errno)
"""
WAYS = {
    "chmod": "os.chmod('file', 0o4755)",
    "fchmod": "os.fchmod(file, 0o4755)",
    "fchmodat": "os.chmod('file', 0o6755, dir_fd=folder)",
    "fchmodat2": "call(452, folder, b'file', 0o4755, 0)",
    "open": "os.close(os.open('new', os.O_CREAT | os.O_WRONLY, 0o4755))",
    "a file without a name": "os.close(os.open('.', 0o20000000 | os.O_DIRECTORY | os.O_WRONLY, 0o4755))",
    "mknod": "os.mknod('new', stat.S_IFREG | 0o4755)",
    "mknodat": "os.mknod('new', stat.S_IFREG | 0o4755, dir_fd=folder)",
}
ON_X86 = {
    "the old chmod": "call(90, b'file', 0o4755)",
    "the old open": "call(2, b'new', os.O_CREAT | os.O_WRONLY, 0o4755)",
    "the old creat": "call(85, b'new', 0o4755)",
}
SET_GROUP = "os.chmod('file', 0o2751)"
ORDINARY = {
    "another mode": "os.chmod('file', 0o1751)",
    "a new file": "os.close(os.open('new', os.O_CREAT | os.O_WRONLY, 0o666))",
    "a mode that is ignored": "call({'x86_64': 257, 'aarch64': 56}[os.uname().machine], folder, b'file', os.O_RDONLY, 0o4755)",
    "a folder": "os.mkdir('folder', 0o755); os.rename('file', 'folder/file')",
}


def ends(line: str, folder: Path, *, where: str = "container") -> str:
    done = subprocess.run(
        [sys.executable, "-c", TRIES, str(ROOT), where, line], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize("way", WAYS | (ON_X86 if platform.machine() == "x86_64" else {}))
def test_no_way_leads_to_a_setuid_file(way: str, tmp_path: Path) -> None:
    answer = ends((WAYS | ON_X86)[way], tmp_path)

    assert answer in (str(errno.EPERM), str(errno.ENOSYS) if way == "fchmodat2" else "")
    assert not [path for path in tmp_path.iterdir() if path.stat().st_mode & 0o4000]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose a group")
@pytest.mark.parametrize(("group", "end"), [(0, str(errno.EPERM)), (65534, "done")])
def test_only_the_group_of_root_gives_no_rights(group: int, end: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    joined = f"import os; os.chdir({str(tmp_path)!r}); os.setegid({group})\n"
    done = subprocess.run(
        [sys.executable, "-c", joined + TRIES, str(ROOT), "container", SET_GROUP], capture_output=True, text=True
    )

    assert (done.stdout.strip(), done.stderr) == (end, "")


@pytest.mark.parametrize("call", ORDINARY)
def test_all_else_works(call: str, tmp_path: Path) -> None:
    assert ends(ORDINARY[call], tmp_path) == "done"


@pytest.mark.parametrize("number", [437, 425], ids=["openat2", "io_uring_setup"])
def test_calls_that_hide_their_mode_do_not_exist(number: int, tmp_path: Path) -> None:
    assert ends(f"call({number}, 0, 0, 0, 0)", tmp_path) == str(errno.ENOSYS)


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="the calls are those of Linux")
def test_processes_of_this_machine_are_left_alone(tmp_path: Path) -> None:
    assert ends(WAYS["chmod"], tmp_path, where="here") == "done"
