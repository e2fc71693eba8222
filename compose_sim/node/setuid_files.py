"""Forbid this process, and all that it starts, to create set-user-ID files, and set-group-ID files of the group of root.

In a container without capabilities, root can still set these bits on a file in a mounted folder, and whoever executes the file
on the host gets the rights of root. Docker's seccomp profile allows this, so another filter is added to it.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
from pathlib import Path

_SET_SECCOMP, _FILTER = 22, 2  # of prctl
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions of BPF
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_CALL, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_CREATES = os.O_CREAT | 0o20000000  # O_TMPFILE, without which a mode is ignored
_X32 = 0x40000000  # added to the numbers of another set of calls on x86-64
_OPENAT2, _IO_URING_SETUP, _FCHMODAT2 = 437, 425, 452  # the same on all architectures

# Architecture -> number of the call -> the argument with the mode, and that with the flags if it depends on them.
_CALLS: dict[int, dict[int, tuple[int, ...]]] = {
    0xC000003E: {  # x86-64: open, creat, chmod, fchmod, mknod, openat, mknodat, fchmodat
        **{2: (2, 1), 85: (1,), 90: (1,), 91: (1,), 133: (1,), 257: (3, 2), 259: (2,), 268: (2,), _FCHMODAT2: (2,)},
    },
    0x40000003: {  # the same calls of 32-bit programs
        **{5: (2, 1), 8: (1,), 15: (1,), 94: (1,), 14: (1,), 295: (3, 2), 297: (2,), 306: (2,), _FCHMODAT2: (2,)},
    },
    # AArch64: openat, mknodat, fchmod, fchmodat
    0xC00000B7: {56: (3, 2), 33: (2,), 52: (1,), 53: (2,), _FCHMODAT2: (2,)},
}
# In a container, and STAND_IN of core/plan/model.py, whose files are root's on the disk.
_GROUPS_OF_ROOT = (0, 2_000_000_000)
_MACHINES = ("x86_64", "aarch64")  # on others, the filter would refuse every call


def _forbidden_bits() -> int:
    """Return the bits that a mode must not have; folders of shared groups need set-group-ID, so it is left to all other groups."""
    return stat.S_ISUID | (stat.S_ISGID if os.getegid() in _GROUPS_OF_ROOT else 0)


def forbid_setuid_files() -> None:
    """Add the filter in a container, which is where no process can gain privileges; report if that fails."""
    if not _may_gain_nothing():
        return
    machine = os.uname().machine
    problem = _add_filter(_program()) if machine in _MACHINES else f"no rules for {machine}"
    if problem or not _is_forbidden():
        print(f"composesim: set-user-ID files are not forbidden: {problem}", file=sys.stderr)


def _may_gain_nothing() -> bool:
    try:
        return "\nNoNewPrivs:\t1\n" in Path("/proc/self/status").read_text()
    except OSError:  # not Linux
        return False


def _is_forbidden() -> bool:
    """Try it on a file in memory."""
    file = os.memfd_create("composesim")
    try:
        os.fchmod(file, stat.S_ISUID | stat.S_IRWXU)
    except PermissionError:
        return True
    finally:
        os.close(file)
    return False


def _add_filter(program: bytes) -> str:
    """Return why the kernel refused the program; "" if it did not."""
    import ctypes  # here, because most processes do not get this far

    class _Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    described = _Program(len(program) // 8, program)
    if prctl(_SET_SECCOMP, ctypes.c_ulong(_FILTER), ctypes.byref(described), ctypes.c_ulong(0), ctypes.c_ulong(0)):
        return os.strerror(ctypes.get_errno())
    return ""


def _program() -> bytes:
    """Return the filter: for each architecture the rules of its calls. Those of other architectures do not exist."""
    program: list[bytes] = []
    for architecture, calls in _CALLS.items():
        rules = [_do(_LOAD, _CALL), _do(_AT_LEAST, _X32, 0, 1), _fail(errno.ENOSYS)]
        for number, arguments in calls.items():
            rules += _if_equal(number, _refuse_setuid(*arguments))
        for number in (_OPENAT2, _IO_URING_SETUP):  # their modes are not in arguments; programs use other calls instead
            rules += _if_equal(number, [_fail(errno.ENOSYS)])
        program += [_do(_LOAD, _ARCHITECTURE), *_if_equal(architecture, [*rules, _PASS])]
    return b"".join([*program, _fail(errno.ENOSYS)])


def _refuse_setuid(mode: int, flags: int | None = None) -> list[bytes]:
    """Return instructions that pass or refuse a call; these are the numbers of arguments."""
    creates = [_load_argument(flags), _do(_ANY_BIT, _CREATES, 1, 0), _PASS] if flags is not None else []
    return [*creates, _load_argument(mode), _do(_ANY_BIT, _forbidden_bits(), 0, 1), _fail(errno.EPERM), _PASS]


def _if_equal(value: int, then: list[bytes]) -> list[bytes]:
    return [_do(_EQUAL, value, 0, len(then)), *then]


def _load_argument(number: int) -> bytes:
    return _do(_LOAD, _ARGUMENTS + 8 * number)  # the lower half, on these little-endian machines


def _fail(error: int) -> bytes:
    return _do(_RETURN, _ERROR | error)


def _do(instruction: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return one instruction; a jump skips that many of the next ones."""
    return struct.pack("HBBI", instruction, if_true, if_false, value)


_PASS = _do(_RETURN, _ALLOW)
