"""What the Horovod driver learns about nodes from their events, and how it starts horovodrun."""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from compose_sim.plugins.horovod.node import driver, ssh
from compose_sim.plugins.horovod.node.hosts import (
    PATIENCE_SECONDS,
    AccessLock,
    EventReader,
    NodeStates,
    SshConnections,
)
from tests.builders import PATIENCE_S


def a_line(node: str, kind: str, rank: int | None = None, **data: Any) -> str:
    """Return one event in the format that nodes write."""
    return json.dumps({"v": 1, "t": 0.0, "node": node, "rank": rank, "kind": kind, "data": data}) + "\n"


def test_a_restarted_node_has_not_reported_anything_yet() -> None:
    """Otherwise the driver would use the host key from before the restart."""
    states = NodeStates()
    for line in (
        a_line("node-0", "node-started"),
        a_line("node-0", "ssh", host_key="ssh-ed25519 AAAA composesim"),
        a_line("node-0", "init", 0, phase="started"),
        a_line("node-0", "init", 0, phase="done"),
        "half a line",
    ):
        states.add_event(line)

    assert (states.host_keys, states.joined_ranks(["node-0"])) == ({"node-0": "ssh-ed25519 AAAA composesim"}, 1)
    states.add_event(a_line("node-0", "node-started"))
    assert (states.host_keys, states.joined_ranks(["node-0"])) == ({}, 0)


def test_a_rank_that_has_ended_has_not_joined() -> None:
    states = NodeStates()
    for number in (0, 1):
        states.add_event(a_line("node-0", "init", number, phase="done"))

    states.add_event(a_line("node-0", "rank-exited", 1))

    assert states.joined_ranks(["node-0"]) == 1


def test_a_host_is_added_when_all_ranks_have_joined_and_removed_at_once(tmp_path: Path) -> None:
    """While Horovod restarts, it would miss a second change."""
    states = NodeStates()
    hosts = driver.Hosts(tmp_path, {f"node-{number}": 1 for number in range(3)})
    for number in (0, 1):
        states.add_event(a_line(f"node-{number}", "init", number, phase="done"))

    def listed(*numbers: int, now: float, begun: bool = True) -> str:
        hosts.update([f"node-{number}" for number in numbers], states, begun=begun, now=now)
        return subprocess.run([hosts.script], capture_output=True, text=True, check=True).stdout

    assert listed(0, 1, now=100.0, begun=False) == "node-0:1\nnode-1:1\n"
    states.add_event(a_line("node-0", "init", 0, phase="started"))
    assert listed(0, 1, 2, now=110.0) == "node-0:1\nnode-1:1\n"
    assert listed(0, 2, now=111.0) == "node-0:1\n"
    states.add_event(a_line("node-0", "init", 0, phase="done"))
    assert listed(0, 2, now=111.5) == "node-0:1\n"
    assert listed(0, 2, now=113.0) == "node-0:1\nnode-2:1\n"
    assert listed(0, 1, 2, now=120.0) == "node-0:1\nnode-2:1\n"
    assert listed(0, 1, 2, now=200.0) == "node-0:1\nnode-1:1\nnode-2:1\n", (
        "ranks that never join are not waited for forever"
    )


def test_an_incomplete_line_is_read_later(tmp_path: Path) -> None:
    states, path = NodeStates(), tmp_path / "nodes" / "node-0" / "events" / "node-0.jsonl"
    path.parent.mkdir(parents=True)
    reader = EventReader(tmp_path, states)
    line = a_line("node-0", "init", 0, phase="done")

    path.write_text(line[:20])
    reader.read(["node-0", "node-1"])
    assert states.joined_ranks(["node-0"]) == 0
    path.write_text(line)
    reader.read(["node-0"])
    assert states.joined_ranks(["node-0"]) == 1


def test_other_programs_wait_for_the_lock(tmp_path: Path) -> None:
    lock = AccessLock(tmp_path / "node-0.lock")
    lock.acquire()

    busy = subprocess.run(["flock", "--shared", "--nonblock", lock.file, "true"], check=False)
    lock.release()
    free = subprocess.run(["flock", "--shared", "--nonblock", lock.file, "true"], check=False)

    assert (busy.returncode, free.returncode) == (1, 0)


def test_a_node_that_ssh_cannot_reach_is_reported_once_after_a_while(tmp_path: Path) -> None:
    """Real ssh, to a port of this machine that nothing listens on."""
    states = NodeStates()
    states.add_event(a_line("localhost", "ssh", host_key="ssh-ed25519 AAAA composesim"))
    connections = SshConnections(tmp_path, tmp_path / "shared")

    def until(now: float) -> dict[str, str]:
        """Return the result of `update` after the pending attempt has failed."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            given_up = connections.update(["localhost"], states, now=now)
            if not connections.pending:
                return given_up
            assert time.monotonic() < deadline

    try:
        assert until(100.0) == {}
        assert connections.update(["localhost"], states, now=100.1) == {}, "not at once again"
        (problem,) = until(100.0 + PATIENCE_SECONDS).values()
        assert "Connection refused" in problem
        assert until(1000.0) == {}, "it was reported"
        assert connections.open == []
    finally:
        connections.close()


def test_horovodrun_gets_hosts_or_a_discovery_script() -> None:
    options = argparse.Namespace(
        mpi=False, ranks=2, elastic=None, timeline=False, cycle_time=None, program=["train.py", "--lr", "1"]
    )

    def words() -> list[str]:
        paths = {"discovery": Path("/tmp/discover"), "timeline": Path("/composesim/logs/timeline.json")}
        return driver.horovodrun_command(options, "horovodrun", nodes={"node-0": 1, "node-1": 1}, **paths)

    assert words()[:4] == ["horovodrun", "--gloo", "-np", "2"]
    assert words()[words().index("-H") + 1] == "node-0:1,node-1:1"
    assert words()[-4:] == ["--", "train.py", "--lr", "1"]
    options.elastic = "1:2"
    assert words()[words().index("--host-discovery-script") + 1] == "/tmp/discover"
    assert words()[words().index("--min-np") :][:4] == ["--min-np", "1", "--max-np", "2"]
    assert "-H" not in words()


def test_secret_variables_are_not_on_command_lines() -> None:
    ours = {
        "PATH": "/bin",
        "TOKEN": "secret",
        "HOME": "/home/node",
        "HOROVOD_LOG_LEVEL": "info",
        "COMPOSESIM_NODE": "driver",
    }

    options = argparse.Namespace(fusion_threshold=1024, elastic="2:4")

    shown = driver.public_environment(ours, programs=Path("/tmp/x/bin"), options=options)

    assert shown == {
        **{
            "PATH": "/tmp/x/bin:/bin",
            "HOME": "/home/node",
            "PYTHONUNBUFFERED": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1",
        },
        **{"HOROVOD_LOG_LEVEL": "info", "HOROVOD_FUSION_THRESHOLD": "1024"},
    }


def test_openssh_accepts_our_settings(tmp_path: Path) -> None:
    """Sshd's settings are tested with real nodes (tests/plugins/horovod/recipes/test_horovod.py)."""
    public = ssh.make_key(tmp_path / "key")
    client = tmp_path / "config"
    client.write_text(ssh.client_settings(tmp_path))

    asked = subprocess.run(["ssh", "-G", "-F", client, "node-1"], capture_output=True, text=True, check=True).stdout

    for line in ("stricthostkeychecking true", "identitiesonly yes", "batchmode yes", "port 2222"):
        assert line in asked.splitlines()
    assert ssh.known_host("node-1", public) == f"[node-1]:2222 {' '.join(public.split()[:2])}\n"
