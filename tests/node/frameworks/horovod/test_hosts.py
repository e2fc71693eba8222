"""What the driver of Horovod knows of nodes from their events, and what it starts horovodrun with."""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from compose_sim.node.frameworks.horovod import driver, ssh
from compose_sim.node.frameworks.horovod.hosts import PATIENCE_SECONDS, Gate, Listening, Told, Ways
from tests.builders import PATIENCE_S


def a_line(node: str, kind: str, rank: int | None = None, **data: Any) -> str:
    """One event as nodes write it."""
    return json.dumps({"v": 1, "t": 0.0, "node": node, "rank": rank, "kind": kind, "data": data}) + "\n"


def test_a_node_that_starts_anew_has_told_nothing_yet() -> None:
    """Else the host key of its first life would be taken for that of its second."""
    told = Told()
    for line in (
        a_line("node-0", "node-started"),
        a_line("node-0", "ssh", host_key="ssh-ed25519 AAAA composesim"),
        a_line("node-0", "init", 0, phase="started"),
        a_line("node-0", "init", 0, phase="done"),
        "half a line",
    ):
        told.line(line)

    assert (told.host_keys, told.count(["node-0"])) == ({"node-0": "ssh-ed25519 AAAA composesim"}, 1)
    told.line(a_line("node-0", "node-started"))
    assert (told.host_keys, told.count(["node-0"])) == ({}, 0)


def test_a_rank_that_has_ended_has_not_joined() -> None:
    told = Told()
    for number in (0, 1):
        told.line(a_line("node-0", "init", number, phase="done"))

    told.line(a_line("node-0", "rank-exited", 1))

    assert told.count(["node-0"]) == 1


def test_a_host_is_added_when_all_ranks_are_there_and_taken_away_at_once(tmp_path: Path) -> None:
    """While Horovod begins anew, news of another host would be lost."""
    told = Told()
    hosts = driver.Hosts(tmp_path, {f"node-{number}": 1 for number in range(3)})
    for number in (0, 1):
        told.line(a_line(f"node-{number}", "init", number, phase="done"))

    def listed(*numbers: int, now: float, begun: bool = True) -> str:
        hosts.update([f"node-{number}" for number in numbers], told, begun=begun, now=now)
        return subprocess.run([hosts.script], capture_output=True, text=True, check=True).stdout

    assert listed(0, 1, now=100.0, begun=False) == "node-0:1\nnode-1:1\n"
    told.line(a_line("node-0", "init", 0, phase="started"))
    assert listed(0, 1, 2, now=110.0) == "node-0:1\nnode-1:1\n"
    assert listed(0, 2, now=111.0) == "node-0:1\n"
    told.line(a_line("node-0", "init", 0, phase="done"))
    assert listed(0, 2, now=111.5) == "node-0:1\n"
    assert listed(0, 2, now=113.0) == "node-0:1\nnode-2:1\n"
    assert listed(0, 1, 2, now=120.0) == "node-0:1\nnode-2:1\n"
    assert listed(0, 1, 2, now=200.0) == "node-0:1\nnode-1:1\nnode-2:1\n", "whoever never joins is not awaited for ever"


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    told, path = Told(), tmp_path / "node-0.jsonl"
    listening = Listening(tmp_path, told)
    line = a_line("node-0", "init", 0, phase="done")

    path.write_text(line[:20])
    listening.look(["node-0", "node-1"])
    assert told.count(["node-0"]) == 0
    path.write_text(line)
    listening.look(["node-0"])
    assert told.count(["node-0"]) == 1


def test_others_wait_at_a_gate_until_it_is_open(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "node-0.gate")
    gate.close()

    busy = subprocess.run(["flock", "--shared", "--nonblock", gate.file, "true"], check=False)
    gate.open()
    free = subprocess.run(["flock", "--shared", "--nonblock", gate.file, "true"], check=False)

    assert (busy.returncode, free.returncode) == (1, 0)


def test_a_node_that_ssh_does_not_reach_is_given_up_after_a_while_and_told_once(tmp_path: Path) -> None:
    """Real ssh, to a port of this machine where nobody listens."""
    told = Told()
    told.line(a_line("localhost", "ssh", host_key="ssh-ed25519 AAAA composesim"))
    ways = Ways(tmp_path, tmp_path / "shared")

    def until(now: float) -> dict[str, str]:
        """What is told once the attempt that is under way has failed."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            given_up = ways.update(["localhost"], told, now=now)
            if not ways.under_way:
                return given_up
            assert time.monotonic() < deadline

    try:
        assert until(100.0) == {}
        assert ways.update(["localhost"], told, now=100.1) == {}, "not at once again"
        (problem,) = until(100.0 + PATIENCE_SECONDS).values()
        assert "Connection refused" in problem
        assert until(1000.0) == {}, "it was told"
        assert ways.standing == []
    finally:
        ways.close()


def test_horovodrun_is_told_hosts_or_where_to_ask_for_them() -> None:
    options = argparse.Namespace(
        mpi=False, ranks=2, elastic=None, timeline=False, cycle_time=None, program=["train.py", "--lr", "1"]
    )

    def words() -> list[str]:
        paths = {"discovery": Path("/tmp/discover"), "timeline": Path("/composesim/logs/timeline.json")}
        return driver.horovodrun_words(options, "horovodrun", nodes={"node-0": 1, "node-1": 1}, **paths)

    assert words()[:4] == ["horovodrun", "--gloo", "-np", "2"]
    assert words()[words().index("-H") + 1] == "node-0:1,node-1:1"
    assert words()[-4:] == ["--", "train.py", "--lr", "1"]
    options.elastic = "1:2"
    assert words()[words().index("--host-discovery-script") + 1] == "/tmp/discover"
    assert words()[words().index("--min-np") :][:4] == ["--min-np", "1", "--max-np", "2"]
    assert "-H" not in words()


def test_only_what_may_be_seen_is_shown_on_command_lines() -> None:
    ours = {
        "PATH": "/bin",
        "TOKEN": "secret",
        "HOME": "/home/node",
        "HOROVOD_LOG_LEVEL": "info",
        "COMPOSESIM_NODE": "driver",
    }

    options = argparse.Namespace(fusion_threshold=1024, elastic="2:4")

    shown = driver.shown_environment(ours, programs=Path("/tmp/x/bin"), options=options)

    assert shown == {
        **{
            "PATH": "/tmp/x/bin:/bin",
            "HOME": "/home/node",
            "PYTHONUNBUFFERED": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1",
        },
        **{"HOROVOD_LOG_LEVEL": "info", "HOROVOD_FUSION_THRESHOLD": "1024"},
    }


def test_settings_are_what_openssh_takes(tmp_path: Path) -> None:
    """As its own program reads them; what sshd takes is seen in real nodes (tests/recipes/test_horovod.py)."""
    public = ssh.make_key(tmp_path / "key")
    client = tmp_path / "config"
    client.write_text(ssh.client_settings(tmp_path))

    asked = subprocess.run(["ssh", "-G", "-F", client, "node-1"], capture_output=True, text=True, check=True).stdout

    for line in ("stricthostkeychecking true", "identitiesonly yes", "batchmode yes", "port 2222"):
        assert line in asked.splitlines()
    assert ssh.known_host("node-1", public) == f"[node-1]:2222 {' '.join(public.split()[:2])}\n"
