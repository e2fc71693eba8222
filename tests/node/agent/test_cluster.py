"""Nodes find each other, notice when others end, and restart; with real sockets and processes. The env launcher needs no
torch.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.harness import Cluster

STOPPED = 143
PLACE = "import os; print(os.environ['RANK'], os.environ['COMPOSESIM_NODE'], os.environ['WORLD_SIZE'])"
WAIT = """
import os, pathlib, time
mine = pathlib.Path(os.environ["COMPOSESIM_SHARED"], f"{os.environ['RANK']}.{os.environ['COMPOSESIM_GENERATION']}")
mine.write_text("here")
while not mine.with_name("go").exists(): time.sleep(0.02)
"""
MakeCluster = Callable[..., Cluster]


def here(cluster: Cluster, rank: int, generation: int = 0) -> bool:
    return bool(cluster.wait_for((cluster.folder / "shared" / f"{rank}.{generation}").exists))


def test_ranks_follow_node_numbers(cluster: MakeCluster) -> None:
    """Twelve nodes: by name, node-10 would be rank 2."""
    run = cluster(PLACE, launcher="env").start(12)
    assert set(run.exit_codes().values()) == {0}
    assert [run.log(rank) for rank in range(12)] == [f"{rank} node-{rank} 12\n" for rank in range(12)]


def test_each_node_may_have_several_ranks(cluster: MakeCluster) -> None:
    run = cluster(PLACE, launcher="env", nproc=3).start(2)
    assert set(run.exit_codes().values()) == {0}
    assert [run.log(rank).split()[:2] for rank in (2, 3)] == [["2", "node-0"], ["3", "node-1"]]


def test_a_rank_that_fails_stops_the_others(cluster: MakeCluster) -> None:
    run = cluster("import os, sys\nif os.environ['RANK'] == '1': sys.exit(3)\n" + WAIT, launcher="env").start(3)
    assert run.exit_codes() == {"master": 1, "node-0": STOPPED, "node-1": 3, "node-2": STOPPED}
    (exited,) = run.events("node-0", "rank-exited")
    assert exited["data"]["stopped"]
    assert exited["data"]["reason"] == "rank 1 on node-1 ended with exit code 3"


def test_a_node_that_was_done_before_another_failed_ended_well(cluster: MakeCluster) -> None:
    run = cluster(
        "import os, sys\nif os.environ['RANK'] == '0': sys.exit()\n" + WAIT + "sys.exit(3)", launcher="env"
    ).start(2)
    run.wait_for_event("node-0", "rank-exited", exit_code=0)
    (run.folder / "shared" / "go").touch()
    assert run.exit_codes() == {"master": 1, "node-0": 0, "node-1": 3}


def test_a_rank_that_ignores_being_stopped_is_killed(cluster: MakeCluster) -> None:
    deaf = "import os, sys, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT
    failing = "import os, sys\nif os.environ['RANK'] == '0':\n  import time\n  time.sleep(1)\n  sys.exit(3)\n"
    run = cluster(failing + deaf, launcher="env").start(2)
    assert run.exit_codes() == {"master": 1, "node-0": 3, "node-1": STOPPED}
    assert run.events("node-1", "rank-exited")[0]["data"]["signal"] == signal.SIGKILL


def test_a_lost_node_stops_the_others(cluster: MakeCluster) -> None:
    run = cluster(WAIT, launcher="env").start(2)
    assert here(run, 0)
    assert here(run, 1)
    run.signal("node-1", signal.SIGKILL)
    assert run.exit_codes() == {"master": 1, "node-0": STOPPED, "node-1": -signal.SIGKILL}
    assert run.events("master", "node-lost")[0]["data"] == {
        "node": "node-1",
        "reason": "connection closed",
        "injected": False,
    }
    (started,) = run.events("node-1", "rank-started")
    run.wait_for(lambda: has_ended(started["data"]["pid"]))


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; an orphan may remain as a zombie until its new parent reaps it."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_silent_node_is_lost(cluster: MakeCluster) -> None:
    run = cluster(WAIT, launcher="env").start(2, "--node-timeout", "5")
    assert here(run, 1)
    run.signal("node-1", signal.SIGSTOP)
    lost = run.wait_for_event("master", "node-lost")
    assert lost["data"] == {"node": "node-1", "reason": "no sign of life for 5 s", "injected": False}
    assert run.processes["node-0"].wait(30) == STOPPED
    assert run.processes["master"].wait(30) == 1
    run.signal("node-1", signal.SIGCONT)
    assert run.processes["node-1"].wait(30) == STOPPED, "it finds its connection closed, and leaves"


def test_a_killed_node_that_is_started_again_rejoins(cluster: MakeCluster) -> None:
    run = cluster(WAIT, launcher="env").start(3, "--max-restarts", "1")
    assert here(run, 1)
    run.signal("node-1", signal.SIGKILL)
    run.wait_for_event("master", "node-lost")
    run.start_node(1)
    assert here(run, 1, generation=1)
    (run.folder / "shared" / "go").touch()
    assert set(run.exit_codes().values()) == {0}
    assert [event["data"]["restart_count"] for event in run.events("node-0", "rendezvous")] == [0, 1]


def test_a_failing_rank_is_restarted(cluster: MakeCluster) -> None:
    failing_once = "import os, sys\nif os.environ['COMPOSESIM_GENERATION'] + os.environ['RANK'] == '00': sys.exit(7)\n"
    run = cluster(failing_once + WAIT, launcher="env").start(2, "--max-restarts", "1")
    assert here(run, 0, generation=1)
    (run.folder / "shared" / "go").touch()
    assert set(run.exit_codes().values()) == {0}


def mark(cluster: Cluster, node: str) -> None:
    """Mark a node as absent, as composesim does before it injects a fault."""
    folder = cluster.folder / "control" / "absent"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / node).touch()


def rounds(cluster: Cluster) -> list[tuple[list[str], int]]:
    """Return the nodes of each round, and the number of restarts before it."""
    return [(it["data"]["nodes"], it["data"]["restart_count"]) for it in cluster.events("master", "round")]


def test_an_elastic_run_goes_on_without_node_0_and_takes_it_back(cluster: MakeCluster) -> None:
    run = cluster(WAIT, launcher="env").start(3, "--min-nodes", "1")
    assert here(run, 0)
    mark(run, "node-0")
    run.signal("node-0", signal.SIGKILL)
    run.wait_for_event("master", "node-lost", injected=True)
    assert here(run, 0, generation=1)
    (run.folder / "control" / "absent" / "node-0").unlink()
    run.start_node(0)
    assert here(run, 2, generation=2)
    (run.folder / "shared" / "go").touch()
    assert set(run.exit_codes().values()) == {0}
    everybody = ["node-0", "node-1", "node-2"]
    assert rounds(run) == [(everybody, 0), (everybody[1:], 0), (everybody, 0)]


def test_a_node_that_was_frozen_joins_again(cluster: MakeCluster) -> None:
    run = cluster(WAIT, launcher="env").start(2, "--min-nodes", "1")
    assert here(run, 1)
    mark(run, "node-1")
    run.signal("node-1", signal.SIGSTOP)
    assert here(run, 0, generation=1)
    run.signal("node-1", signal.SIGCONT)
    assert here(run, 1, generation=2)
    (run.folder / "shared" / "go").touch()
    assert set(run.exit_codes().values()) == {0}
    assert "lost the connection to the master" in (run.folder / "logs" / "node-1.log").read_text()


def test_under_elastic_a_real_death_without_restarts_fails_the_run(cluster: MakeCluster) -> None:
    run = cluster(WAIT, launcher="env").start(2, "--min-nodes", "1")
    assert here(run, 1)
    run.signal("node-1", signal.SIGKILL)
    assert run.exit_codes() == {"master": 1, "node-0": STOPPED, "node-1": -signal.SIGKILL}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_node_and_its_ranks(cluster: MakeCluster, number: signal.Signals) -> None:
    run = cluster(WAIT, launcher="env").start(1)
    assert here(run, 0)
    run.signal("node-0", number)
    assert run.exit_codes() == {"master": 1, "node-0": 128 + number}
    assert run.events("node-0", "rank-exited")[0]["data"]["stopped"]


def test_nodes_stop_when_the_master_is_lost(cluster: MakeCluster) -> None:
    run = cluster(WAIT, launcher="env").start(1)
    assert here(run, 0)
    run.signal("master", signal.SIGKILL)
    assert run.processes["node-0"].wait(30) == STOPPED
    assert "lost the connection to the master" in (run.folder / "logs" / "node-0.log").read_text()


def test_a_flood_of_output_arrives_whole_and_in_order(cluster: MakeCluster) -> None:
    flood = "import sys\nfor n in range(300_000): sys.stdout.write(f'line {n}\\n') if n % 2 else sys.stderr.write(f'line {n}\\n')"
    run = cluster(flood, launcher="env", nproc=2).start(1)
    assert set(run.exit_codes().values()) == {0}
    expected = "".join(f"line {number}\n" for number in range(300_000))
    assert run.log(0) == expected
    assert run.log(1) == expected


def test_a_log_that_cannot_be_opened_ends_no_training(cluster: MakeCluster) -> None:
    flood = "for n in range(100_000): print('line', n)"
    run = cluster(flood, launcher="env")
    for name in ("node-0.0.log", "node-0.log"):
        (run.folder / "logs" / name).symlink_to("/dev/full")
    run.environment["COMPOSESIM_ECHO"] = "1"
    assert set(run.start(1).exit_codes().values()) == {0}
    said = (run.folder / "logs" / "node-0.stderr").read_text().splitlines()
    assert said == [
        f"composesim: cannot append to {run.folder}/logs/node-0.0.log (Too many levels of symbolic links): "
        "later output is not logged"
    ]


def test_a_line_that_cannot_be_logged_is_still_printed(cluster: MakeCluster) -> None:
    run = cluster("raise SystemExit(3)", launcher="env")
    (run.folder / "logs" / "node-1.log").symlink_to("/dev/full")
    (run.folder / "work.py").write_text(WAIT)
    run.start_master(2)
    run.program = [str(run.folder / "work.py")]
    run.start_node(1)
    run.program = [str(run.folder.parent / "work" / "script.py")]
    run.start_node(0)
    assert run.exit_codes() == {"master": 1, "node-0": 3, "node-1": STOPPED}
    said = (run.folder / "logs" / "node-1.stderr").read_text()
    assert "composesim node-1: stopping: rank 0 on node-0 ended with exit code 3" in said
    assert "node-1.log: Too many levels of symbolic links" in said


def test_a_child_that_keeps_the_output_open_does_not_hold_the_node(cluster: MakeCluster) -> None:
    script = "import subprocess\nsubprocess.Popen(['sleep', '1000'])\nprint('left it behind')"
    run = cluster(script, launcher="env").start(1)
    assert set(run.exit_codes().values()) == {0}
    assert run.log(0) == "left it behind\n"


def test_a_launcher_that_fails_is_reported(cluster: MakeCluster, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('this torch is broken')")
    run = cluster(WAIT, launcher="warm")
    run.environment["PYTHONPATH"] = str(tmp_path)
    run.start_master(1, "--no-store")
    run.start_node(0)
    assert run.exit_codes() == {"master": 1, "node-0": 1}
    said = (run.folder / "logs" / "node-0.stderr").read_text()
    assert "RuntimeError: this torch is broken" in said
    assert "the process of the warm launcher ended (exit code 1)" in said


def test_a_node_exits_in_time_while_its_launcher_still_imports(cluster: MakeCluster, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(1000)")
    run = cluster(WAIT, launcher="warm")
    run.environment["PYTHONPATH"] = str(tmp_path)
    run.start_master(1, "--no-store")
    run.start_node(0)
    run.wait_for_event("node-0", "rendezvous")
    run.signal("node-0", signal.SIGTERM)
    assert run.exit_codes() == {"master": 1, "node-0": STOPPED}


def test_without_torch_the_warm_launcher_runs_what_needs_none(cluster: MakeCluster, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not for this machine')")
    run = cluster(PLACE, launcher="warm")
    run.environment["PYTHONPATH"] = str(tmp_path)
    run.start_master(1, "--no-store")
    run.start_node(0)
    assert set(run.exit_codes().values()) == {0}
    assert run.log(0) == "0 node-0 1\n"


def test_a_node_without_a_master_can_be_stopped(cluster: MakeCluster) -> None:
    run = cluster(PLACE, launcher="env")
    run.environment["COMPOSESIM_MASTER"] = "no-such-host.invalid:1"
    run.start_node(0)
    run.wait_for_event("node-0", "node-started")
    run.wait_for(lambda: "fork-server" in _children(run.processes["node-0"].pid))
    run.signal("node-0", signal.SIGTERM)
    assert run.exit_codes() == {"node-0": STOPPED}


@pytest.mark.parametrize("option", ["--port", pytest.param("--store-port", marks=pytest.mark.train)])
def test_a_port_that_is_taken_is_named(cluster: MakeCluster, option: str) -> None:
    run = cluster(PLACE)
    ports = {"--port": "0", "--store-port": "0"}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ports[option] = str(listener.getsockname()[1])
        words = [word for pair in ports.items() for word in pair]
        run.start_process("master", "master", "--nodes", "1", "--store-host", "127.0.0.1", *words)
        assert run.exit_codes() == {"master": 1}
    assert f"composesim master: port {ports[option]} is taken." in (run.folder / "logs" / "master.stderr").read_text()
    (ended,) = run.events("master", "ended")
    assert ended["data"] == {"passed": False, "reason": f"port {ports[option]} is taken"}


@pytest.mark.parametrize("launcher", ["env", pytest.param("warm", marks=pytest.mark.train)])
def test_a_run_on_this_machine_is_not_reached_from_others(cluster: MakeCluster, launcher: str) -> None:
    run = cluster(WAIT, launcher=launcher).start(1)
    assert here(run, 0)
    ports = [run.events("master", "master-started")[0]["data"]["port"]]
    if launcher == "warm":
        ports.append(run.events("node-0", "rendezvous")[0]["data"]["master_port"])
    listening = [_listens_on(port) for port in ports]
    (run.folder / "shared" / "go").touch()
    assert listening == [["127.0.0.1"]] * len(ports)
    assert set(run.exit_codes().values()) == {0}


def _listens_on(port: int) -> list[str]:
    connections = [
        line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()
    ]
    addresses = [words[1].split(":") for words in connections if words[3] == "0A"]
    return [socket.inet_ntoa(bytes.fromhex(host)[::-1][-4:]) for host, its in addresses if int(its, 16) == port]


def _children(pid: int) -> str:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return " ".join(Path(f"/proc/{child}/cmdline").read_text() for child in children)
