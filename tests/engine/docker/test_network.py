"""Nodes that are too many for the kernel's table of neighbors reach one another through the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest

from compose_sim.engine.docker.engine import DockerEngine
from compose_sim.engine.docker.network import Networks, run_helper
from compose_sim.engine.run_folder.folder import runs_folder
from tests.contract.bench import Bench

pytestmark = pytest.mark.docker

SERVES = """
import socket
with socket.create_server(("", 5000)) as server:
    while True:
        connection, (address, _) = server.accept()
        connection.sendall(address.encode())
        connection.close()
"""
# Begins once the network is set up: the file `go` says so.
CALLS = """
import os, socket, time
shared = os.environ["COMPOSESIM_SHARED"]
while not os.path.exists(f"{shared}/go"):
    time.sleep(0.05)
seen = socket.create_connection(("node-1", 5000), 60).recv(99).decode()
with open("/proc/net/arp") as table, open(f"{shared}/seen", "w") as file:
    print(seen, *(line.split()[0] for line in list(table)[1:]), file=file)
"""


# Loads a rule with one program, and prints the table.
LOADS = """
printf '*filter\\n:INPUT ACCEPT [0:0]\\n-A INPUT -s 10.0.0.1/32 -j DROP\\nCOMMIT\\n' | {program}-restore && {program}-save
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(DockerEngine(), tmp_path)
    yield bench
    for run in bench.runs:
        bench.engine.remove(run)


def test_the_gateway_is_the_only_neighbor_of_a_node_that_is_routed_also_after_links_have_changed(bench: Bench) -> None:
    plan = replace(bench.start(CALLS, SERVES), is_routed=True)
    networks = Networks(plan, bench.engine)
    for links in ((), ("1gbit",), ()):
        networks.apply(links)
    address = bench.engine.addresses(plan)["node-0"]
    shared = runs_folder(bench.project) / plan.run / "shared"
    (shared / "go").touch()

    assert bench.ended(plan, "node-0")["node-0"].exit_code == 0

    assert plan.subnet
    own, *neighbors = (shared / "seen").read_text().split()
    assert own == address  # the packets kept their source
    assert neighbors == [str(next(ip_network(plan.subnet).hosts()))]


@pytest.mark.parametrize("program", ["iptables-nft", "iptables-legacy"])
def test_a_helper_may_load_rules_with_both_kinds_of_packet_filter(program: str) -> None:
    assert "-A INPUT -s 10.0.0.1/32 -j DROP" in run_helper(LOADS.format(program=program), "--network", "none")
