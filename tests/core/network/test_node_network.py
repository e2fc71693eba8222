"""The network of a node follows from links and faults, and network faults compile to the intended changes."""

from __future__ import annotations

from typing import Any

import pytest

from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.kind import Effect, RunSnapshot
from compose_sim.core.faults.kinds import KINDS
from compose_sim.core.network.links import Shape, parse_link
from compose_sim.core.network.node_network import NetworkFault, NodeNetwork, decide_network
from compose_sim.errors import SpecError
from tests.builders import a_plan

NAMES = tuple(f"node-{number}" for number in range(4))
RUN = RunSnapshot(plan=a_plan(nodes=4), running=NAMES)


def effect_of(kind: str, *nodes: str, **options: Any) -> Effect:
    return KINDS[kind].effect(Fault(kind=kind, nodes=nodes, options=options), RUN)


def partition(*groups: list[str], one_way: bool = False, keep_master: bool = False) -> Effect:
    return effect_of("partition", groups=groups, one_way=one_way, keep_master=keep_master)


def decided(*links: str, faults: tuple[Effect, ...] = ()) -> dict[str, NodeNetwork]:
    of_faults = [fault.network for fault in faults if fault.network]
    return {name: decide_network(name, NAMES, [parse_link(text) for text in links], of_faults) for name in NAMES}


def dropped(faults: tuple[Effect, ...]) -> set[tuple[str, str]]:
    """Return (from, to) of all packets that do not arrive."""
    networks = decided(faults=faults).values()
    arriving = {(other, network.node) for network in networks for other in network.deaf_to}
    return arriving | {(network.node, other) for network in networks for other in network.mute_to}


def test_without_links_and_faults_there_is_nothing_to_do() -> None:
    assert all(network.is_plain for network in decided().values())
    assert all(network.is_plain for network in decided("plain", "node-0=plain").values())


def test_neighbors_of_one_shape_share_it_and_the_master_stays_plain() -> None:
    networks = decided("1gbit", "node-3=10mbit", "node-0:node-1=plain")
    fast, slow = Shape(rate_bits=10**9), Shape(rate_bits=10**7)

    assert networks["node-0"] == NodeNetwork(node="node-0", shapes=((fast, ("node-2",)), (slow, ("node-3",))))
    assert networks["node-2"].shapes == ((fast, ("node-0", "node-1")), (slow, ("node-3",)))
    assert networks["node-3"].shapes == ((slow, ("node-0", "node-1", "node-2")),)


def test_a_partition_lets_nothing_pass_and_its_first_group_keeps_the_master() -> None:
    fault = partition(["node-0", "node-1"], ["node-2"])

    assert dropped((fault,)) == {
        *((one, "node-2") for one in ("node-0", "node-1", "master")),
        *(("node-2", one) for one in ("node-0", "node-1", "master")),
    }
    assert fault.loses == ("node-2",)
    assert fault.text == "node-0, node-1 and node-2 cannot reach each other"


def test_one_way_only_what_the_first_group_sends_is_lost() -> None:
    fault = partition(["node-0"], ["node-1"], one_way=True)

    assert dropped((fault,)) == {("node-0", "node-1"), ("master", "node-1")}
    assert fault.text == "node-0 cannot reach node-1"


def test_a_partition_that_keeps_the_master_loses_no_node() -> None:
    fault = partition(["node-0"], ["node-1"], keep_master=True)

    assert dropped((fault,)) == {("node-0", "node-1"), ("node-1", "node-0")}
    assert fault.loses == ()


def test_an_isolated_node_hears_nobody_and_nobody_hears_it() -> None:
    fault = effect_of("isolate", "node-0", "node-3")
    pairs = dropped((fault,))

    assert pairs == {
        pair
        for node in ("node-0", "node-3")
        for other in (*NAMES, "master")
        for pair in ((node, other), (other, node))
        if node != other
    }
    assert fault.loses == ("node-0", "node-3")


def test_faults_of_links_come_on_top_and_the_worst_holds() -> None:
    slow, lossy = effect_of("slow-link", "node-1", rate="1mbit"), effect_of("loss", "node-1", rate="5%")
    networks = decided("10mbit,loss=10%", "node-2=500kbit", faults=(slow, lossy))

    assert networks["node-1"].shapes == (
        (Shape(rate_bits=10**6, loss_ppm=100000), ("node-0", "node-3")),
        (Shape(rate_bits=500000, loss_ppm=50000), ("node-2",)),
    )
    assert networks["node-0"].shapes[0] == (Shape(rate_bits=10**6, loss_ppm=100000), ("node-1",))
    assert (slow.text, lossy.text) == ("links of node-1 limited to 1mbit", "links of node-1 lose 5% of their packets")
    distant = effect_of("delay", "node-2", time="5ms")
    assert distant.network == NetworkFault(links=(parse_link("node-2=5ms"),))
    assert distant.text == "packets of node-2 delayed by 5ms"


def test_what_is_healed_leaves_no_trace() -> None:
    isolated, slow = effect_of("isolate", "node-1"), effect_of("slow-link", "node-1", rate="1mbit")

    assert decided("10mbit", faults=(isolated, slow)) != decided("10mbit", faults=(slow,))
    assert decided("10mbit", faults=()) == decided("10mbit")


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        ([["node-0"]], "a partition needs two groups of nodes, but 1 were given"),
        ([["node-0"], []], "a partition needs two groups"),
        ([["node-0"], ["node-1", "node-0"]], "'node-0' cannot be on both sides"),
        ([["node-0"], ["node-9"]], "node-9 of the run 'demo' is not running"),
    ],
)
def test_a_partition_that_makes_no_sense_is_refused(groups: list[list[str]], problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        partition(*groups)

    assert problem in caught.value.message
