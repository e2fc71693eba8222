"""Plain processes can leave their session, be stopped by a signal, and contain composesim itself."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose_sim.core.faults.kind import Signal, Start
from compose_sim.core.plan.model import Plan
from compose_sim.engine.local.engine import LocalEngine
from compose_sim.engine.run_folder.folder import runs_folder
from compose_sim.errors import EngineError, EnvironmentMissingError
from compose_sim.node.shared.process import environment_of
from tests.builders import ROOT, a_plan
from tests.contract.bench import WAITS, Bench, until

HAS_A_DAEMON = """
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("daemon", os.getpid(), flush=True)
        signal.pause()
    os._exit(0)
os.wait()
"""
LEAVES_PROCESSES_WITHOUT_LABELS = """
import fcntl, os, sys
LEFT = '''
import os, sys, time
while os.path.exists("alive"):
    if sys.argv[1] == "waits":
        time.sleep(0.1)
    elif os.fork():
        os._exit(0)
    else:
        os.setsid()
'''
lock = os.open("alive", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
os.set_inheritable(lock, True)
for kind in ("waits", "forks", "forks"):
    if os.fork() == 0:
        os.setsid()
        os.execve(sys.executable, [sys.executable, "-S", "-c", LEFT, kind], {})
"""
PRINTS_ITS_SEED_AND_CLOSES_STDOUT = """
import os
print(hash('seed'), flush=True)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.dup2(1, 2)
"""
REMOVES_ITS_OWN_RUN = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from compose_sim.engine.local.engine import LocalEngine
LocalEngine().remove(os.environ["COMPOSESIM_RUN"])
print("alive", flush=True)
"""
WRITES_ITS_END_DOWN = """
import json, os, sys
event = {"t": 0, "kind": "node-exited", "data": {"exit_code": 5}}
with open(os.environ["COMPOSESIM_DIR"] + "/events/node-0.jsonl", "a") as file:
    file.write(json.dumps(event) + "\\n")
sys.exit(5)
"""
KILLS_ITS_STARTER = """
import os, signal
print("round", os.environ["COMPOSESIM_GENERATION"], flush=True)
if os.environ["COMPOSESIM_GENERATION"] == "0":
    if os.environ["RANK"] == "1":
        os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(LocalEngine(), tmp_path)
    yield bench
    for run in bench.runs:
        bench.engine.remove(run)


def test_a_daemon_that_a_node_left_behind_is_removed(bench: Bench) -> None:
    plan = bench.start(HAS_A_DAEMON, WAITS)
    bench.ended(plan, "node-0")
    until(lambda: "daemon" in bench.engine.output(plan.run, "node-0"))
    daemon = int(bench.engine.output(plan.run, "node-0").split()[1])
    assert environment_of(daemon)["COMPOSESIM_NODE"] == "node-0"

    bench.engine.remove(plan.run)

    assert environment_of(daemon) == {}


def test_processes_that_fork_and_hide_end_with_the_run(bench: Bench) -> None:
    """They clear their environment, leave their session, and exit as soon as they have forked. Another shell ends the run."""
    alive = bench.project / "alive"
    plan = bench.start(LEAVES_PROCESSES_WITHOUT_LABELS)
    try:
        code = bench.ended(plan)["node-0"].exit_code
        while_it_runs = is_locked(alive)
        LocalEngine().remove(plan.run)

        assert (code, while_it_runs, is_locked(alive)) == (0, True, False)
    finally:
        alive.unlink(missing_ok=True)  # which ends them, too


def test_the_starter_that_is_kept_forks_later_runs_and_ends_with_what_they_left(bench: Bench) -> None:
    """Runs forked from one process share a hash seed. Another shell lists the first run until then, but no later one."""
    alive = bench.project / "alive"
    try:
        with bench.engine.keeping_starter():
            first = bench.start_script(f"{PRINTS_ITS_SEED_AND_CLOSES_STDOUT}{LEAVES_PROCESSES_WITHOUT_LABELS}", nodes=1)
            codes = {status.exit_code for status in bench.ended(first).values()}
            bench.engine.remove(first.run)
            second = bench.start_script("print(hash('seed')); raise SystemExit(3)", nodes=1)
            ended = bench.ended(second)["node-0"].exit_code
            bench.engine.remove(second.run)
            left = set(LocalEngine().remaining_runs()) & {first.run, second.run}
        seeds = {logged(bench, first, "node-0.0").strip(), logged(bench, second, "node-0.0").strip()}

        assert (codes, ended, left, len(seeds)) == ({0}, 3, {first.run}, 1)
        assert not set(LocalEngine().remaining_runs()) & {first.run, second.run}
        assert not is_locked(alive)
    finally:
        alive.unlink(missing_ok=True)


def test_a_forged_start_of_the_master_is_not_the_port(bench: Bench) -> None:
    """Processes of this machine share the file of events, and a node that is started again asks for the port."""
    plan = bench.start(WAITS, WAITS)
    file = Path(plan.folder, "events", "master.jsonl")
    with file.open("a") as events:
        events.write(json.dumps({"t": 0, "kind": "master-started", "data": {}}) + "\n")
    bench.do(plan, Signal(node="master", name="KILL"), Signal(node="node-0", name="KILL"))
    bench.ended(plan, "master", "node-0")

    with pytest.raises(EngineError, match="did not start to listen"):
        bench.do(plan, Start(node="node-0"))


def test_composesim_inside_a_node_does_not_end_itself(bench: Bench) -> None:
    plan = bench.start(REMOVES_ITS_OWN_RUN, WAITS)

    ended = bench.ended(plan)

    assert (ended["node-0"].exit_code, ended["node-1"].exit_code) == (0, 137)
    assert bench.engine.output(plan.run, "node-0") == "alive\n"


def test_a_paused_node_is_told_as_such_and_can_be_stopped(bench: Bench) -> None:
    plan = bench.start(WAITS)
    node = next(status for status in bench.engine.statuses(plan.run) if status.node == "node-0")

    os.kill(int(node.handle), signal.SIGSTOP)
    until(lambda: any(status.paused for status in bench.engine.statuses(plan.run)))
    bench.engine.stop(plan.run, grace_s=10)

    assert {status.node: status.exit_code for status in bench.engine.exits(plan)} == {"master": 143, "node-0": 143}


def test_another_shell_reads_the_exit_code_that_the_node_wrote_down(bench: Bench) -> None:
    plan = bench.start(WRITES_ITS_END_DOWN)
    bench.ended(plan)

    codes = {status.node: status.exit_code for status in LocalEngine().statuses(plan.run)}

    assert codes == {"master": None, "node-0": 5}


def test_a_master_that_fails_is_an_error_with_its_words(bench: Bench) -> None:
    with pytest.raises(EngineError) as caught:
        bench.start(WAITS, master="raise SystemExit('no port is free')")

    assert "no port is free" in caught.value.evidence


def test_a_command_that_does_not_exist_is_127(bench: Bench) -> None:
    plan = bench.start(WAITS)

    assert bench.engine.execute(plan.run, "node-0", ["/no/such/command"]) == 127


def test_a_command_in_a_node_that_is_not_there(bench: Bench) -> None:
    with pytest.raises(EngineError, match="'node-7' of run 'none'"):
        bench.engine.execute("none", "node-7", [sys.executable])


def test_the_folder_of_a_run_may_be_gone(bench: Bench) -> None:
    plan = bench.start(WAITS)
    (runs_folder(bench.project) / plan.run / "plan.json").unlink()

    assert bench.running(plan) == ["master", "node-0"]


def test_nodes_fork_their_ranks_from_one_python_unless_they_have_variables_of_their_own(bench: Bench) -> None:
    """Nodes forked from one process share a hash seed."""
    nodes = [{}, {}, {"env": {"OMP_NUM_THREADS": "2"}}]
    plan = bench.start_script("print(hash('seed'))", nodes=nodes, master="node-0")
    ended = bench.ended(plan)

    seeds = [logged(bench, plan, f"node-{rank}.{rank}") for rank in range(3)]

    assert {status.exit_code for status in ended.values()} == {0}
    assert seeds[0] == seeds[1] != seeds[2]


def test_a_node_whose_starter_is_killed_starts_another(bench: Bench) -> None:
    plan = bench.start_script(KILLS_ITS_STARTER, nodes=2, master="node-0", max_restarts=1)

    ended = bench.ended(plan)

    assert {status.exit_code for status in ended.values()} == {0}
    assert logged(bench, plan, "node-1.1").splitlines() == ["round 0", "round 1"]


def logged(bench: Bench, plan: Plan, name: str) -> str:
    return (runs_folder(bench.project) / plan.run / "logs" / f"{name}.log").read_text()


def is_locked(path: Path) -> bool:
    """Return whether a process lives that has inherited the lock of the file."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_port_of_the_master_that_is_taken_is_refused_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(EnvironmentMissingError) as caught:
            LocalEngine().prepare(a_plan(engine="local", master_port=port), lambda line: None)

    assert f"port {port} " in caught.value.message
    assert f"ss -ltnp sport = :{port}" in caught.value.hint
