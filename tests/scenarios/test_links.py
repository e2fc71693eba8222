"""Links and network faults take effect, and end when they are healed. Real packets between real nodes."""

from __future__ import annotations

import json
import subprocess
import time
from typing import NamedTuple

import pytest

from compose_sim.engine.docker.network import find_means
from tests.builders import PATIENCE_S
from tests.scenarios.conftest import BARE, Project, containers_of

pytestmark = [pytest.mark.docker, pytest.mark.train]

BYTES = 500_000
DATAGRAMS = 200  # fewer than fit into a socket's buffer, so a slow receiver loses none
# Rank 1 sends bytes and datagrams to rank 0 repeatedly; it prints when it began, how long it took and what arrived.
SENDS = f"""
import os, socket, time

def receive(connection, count):
    while count:
        count -= len(connection.recv(min(count, 65536)))

until = os.environ["COMPOSESIM_SHARED"] + "/stop"
if os.environ["RANK"] == "0":
    counter = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    counter.bind(("", 5000))
    counter.setblocking(False)
    server = socket.create_server(("", 5000))
    while True:
        connection, _ = server.accept()
        if not connection.recv(1, socket.MSG_PEEK):
            break
        receive(connection, {BYTES})
        arrived = 0
        try:
            while counter.recv(100):
                arrived += 1
        except BlockingIOError:
            connection.sendall(b"%10d" % arrived)
else:
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def connect():
        while True:
            try:
                return socket.create_connection(("node-0", 5000))
            except OSError:
                time.sleep(0.05)

    while not os.path.exists(until):
        time.sleep(0.1)
        with connect() as connection:
            began = time.monotonic()
            for _ in range({DATAGRAMS}):
                datagrams.sendto(b"datagram", ("node-0", 5000))
            connection.sendall(bytes({BYTES}))
            arrived = int(connection.recv(10, socket.MSG_WAITALL))
            seconds = time.monotonic() - began
            print("turn", began, seconds, arrived, connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG), flush=True)
    connect().close()
"""
# Ranks that continue until they are asked to stop, in as many rounds as necessary.
GOES_ON = """
import os, time

print("begun", os.environ["WORLD_SIZE"], flush=True)
while not os.path.exists(os.environ["COMPOSESIM_SHARED"] + "/stop"):
    time.sleep(0.05)
"""


def stop(project: Project, run: str) -> None:
    """Return what the scripts above wait for."""
    (project.folder / ".composesim" / "runs" / run / "shared" / "stop").touch()


class Turn(NamedTuple):
    """What rank 1 prints."""

    seconds: float
    datagrams: int
    segment: int  # bytes of data in the largest packet of the connection


def next_turn(process: subprocess.Popen[str]) -> Turn:
    """Return the first turn that begins after now."""
    assert process.stdout is not None
    now = time.monotonic()
    for line in process.stdout:
        began, *found = line.rpartition("turn ")[2].split() if "turn " in line else ("0",)
        if float(began) > now:
            return Turn(float(found[0]), *map(int, found[1:]))
    pytest.fail("the run ended before its next turn")


def test_links_bite_change_and_are_plain_again_while_a_run_goes_on(project: Project) -> None:
    """On a busy machine, too, a link is not faster than the limit, and half a megabyte takes less than 3 seconds."""
    script, run = project.write("train.py", SENDS), project.named("links")
    words = ["up", "--nodes", "2", *BARE, "--link", "10mbit", "--timeout", "10m", "--name", run, script]
    with project.start(*words) as process:
        turn = next_turn(process)
        assert turn.seconds > 0.9 * 8 * BYTES / 10e6
        assert turn.datagrams == DATAGRAMS
        assert turn.segment < 1500

        changed = project.run("link", "node-1=1mbit", "--run", run, "--json")
        assert json.loads(changed.stdout)["links"] == ["10mbit", "node-1=1mbit"]
        shown = project.run("link", "--run", run, "--json")
        assert json.loads(shown.stdout)["links"] == ["10mbit", "node-1=1mbit"]
        assert next_turn(process).seconds > 0.9 * 8 * BYTES / 1e6

        assert project.run("link", "--clear", "--run", run).stdout == "links: all plain\n"
        turn = next_turn(process)
        assert turn.seconds < 0.9 * 8 * BYTES / 1e6
        assert turn.segment > 60_000

        broken = project.run("fault", "loss", "node-0", "--rate", "10%", "--run", run)
        assert broken.status == 0, broken.stderr
        assert DATAGRAMS / 2 < next_turn(process).datagrams < DATAGRAMS

        healed = project.run("heal", "node-0", "--run", run)
        assert healed.status == 0, healed.stderr
        assert next_turn(process).datagrams == DATAGRAMS
        stop(project, run)

        assert process.wait(PATIENCE_S) == 0
    assert project.report_of(run)["verdict"] == "passed"


def test_an_isolated_node_is_lost_and_rejoins_when_it_is_healed(project: Project) -> None:
    script, run = project.write("train.py", GOES_ON), project.named("isolated")
    with project.start("up", *BARE, "--elastic", "2:3", "--timeout", "10m", "--name", run, script) as process:
        assert process.stdout is not None
        begun = (line.split()[-1] for line in process.stdout if "begun" in line)
        assert [next(begun) for _ in range(3)] == ["3"] * 3

        broken = project.run("fault", "isolate", "node-0", "--run", run)
        assert broken.status == 0, broken.stderr
        assert [next(begun) for _ in range(2)] == ["2"] * 2

        healed = project.run("heal", "--run", run)
        assert healed.status == 0, healed.stderr
        assert [next(begun) for _ in range(3)] == ["3"] * 3
        stop(project, run)

        assert process.wait(PATIENCE_S) == 0
    assert project.report_of(run)["verdict"] == "passed"


def test_a_delay_that_cannot_be_had_is_refused_before_anything_starts(project: Project) -> None:
    if find_means().netem:
        pytest.skip("this kernel can delay packets")
    script, run = project.write("train.py", "print(1)"), project.named("delayed")
    refused = project.run("up", "--link", "1gbit,20ms", "--name", run, script)

    assert refused.status == 4
    assert (
        "the link '1gbit,20ms' asks for a delay, and this kernel cannot delay packets: it has no netem"
        in refused.stderr
    )
    assert "modprobe sch_netem" in refused.stderr
    assert "or leave the delay out: 1gbit" in refused.stderr
    assert not (project.folder / ".composesim" / "runs" / run / "plan.json").exists()
    assert containers_of(run) == []


def test_what_bench_measures_is_no_more_than_what_was_asked_for(project: Project) -> None:
    """Only an idle machine can show that it is not slower either."""
    done = project.run("bench", "--link", "20mbit,loss=2%", "--json")
    measured = {each["what"]: each["measured"] for each in done.report["measured"]}

    assert done.status in (0, 1)
    assert 0 < measured["bandwidth node-0 to node-1"] < 22e6
    assert 0 < measured["bandwidth node-1 to node-0"] < 22e6
    assert 0.01 < measured["loss"] < 0.1
