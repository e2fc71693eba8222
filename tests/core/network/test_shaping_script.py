"""The commands that give a node its network: whole texts for given links, per kernel, and refusals by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compose_sim.core.network.links import parse_link
from compose_sim.core.network.node_network import (
    Cut,
    Means,
    NetworkFault,
    check_means,
    decide_network,
    lacking,
    means_found,
    render_script,
)
from compose_sim.errors import EnvironmentMissingError

NAMES = ("node-0", "node-1", "node-2")
ADDRESSES = {"master": "10.210.0.2", "node-0": "10.210.0.3", "node-1": "10.210.0.4", "node-2": "10.210.0.5"}
ALL = Means(tc=True, htb=True, tbf=True, netem=True, iptables="iptables-nft-restore", statistic=True, said={})
WITHOUT_NETEM = replace(ALL, netem=False, said={"netem": "Error: Specified qdisc kind is unknown."})
NOTHING = Means(tc=False, htb=False, tbf=False, netem=False, iptables="", statistic=False, said={})
ISOLATED = NetworkFault(
    cuts=(
        Cut(sources=("node-0",), destinations=("master", "node-1")),
        Cut(sources=("master", "node-1"), destinations=("node-0",)),
    )
)

PLAIN = """\
set -e
iptables-nft-restore <<'END'
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
COMMIT
END
tc qdisc del dev eth0 root 2>/dev/null || :
ip link set dev eth0 gso_max_segs 65535 2>/dev/null || :
ip route show dev eth0 | sed 's/ mtu [0-9]*//' | while read -r route; do ip route change $route dev eth0 2>/dev/null || :; done
"""
SHAPED = """\
set -e
iptables-nft-restore <<'END'
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -s 10.210.0.2/32 -j DROP
-A INPUT -s 10.210.0.4/32 -j DROP
-A OUTPUT -d 10.210.0.2/32 -j DROP
-A INPUT -s 10.210.0.5/32 -m statistic --mode random --probability 0.001000 -j DROP
COMMIT
END
tc qdisc del dev eth0 root 2>/dev/null || :
ip link set dev eth0 gso_max_segs 1 2>/dev/null || :
ip route show dev eth0 | sed 's/ mtu [0-9]*//' | while read -r route; do ip route change $route dev eth0 mtu 1500 2>/dev/null || :; done
tc -batch - <<'END'
qdisc add dev eth0 root handle 1: htb
class add dev eth0 parent 1: classid 1:1 htb rate 1000000000bit burst 125000b cburst 125000b quantum 60000
filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst 10.210.0.4/32 flowid 1:1
class add dev eth0 parent 1: classid 1:2 htb rate 10000000bit burst 16384b cburst 16384b quantum 60000
qdisc add dev eth0 parent 1:2 handle 3: netem delay 20000us 2000us limit 1038
filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst 10.210.0.5/32 flowid 1:2
END
"""


def script(*links: str, means: Means = ALL, faults: tuple[NetworkFault, ...] = ()) -> str:
    network = decide_network("node-0", NAMES, [parse_link(text) for text in links], faults)
    return render_script(network, ADDRESSES, means)


def test_a_plain_network_undoes_all_there_may_have_been() -> None:
    assert script() == PLAIN


def test_classes_by_neighbor_delay_below_them_and_drops_in_the_filter() -> None:
    links = ["1gbit", "node-2=10mbit,20ms,jitter=2ms,loss=0.1%"]

    assert script(*links, faults=(ISOLATED,)) == SHAPED


def test_loss_is_the_kernels_where_the_filter_cannot() -> None:
    text = script("loss=0.5%", means=replace(ALL, statistic=False))

    assert "class add dev eth0 parent 1: classid 1:1 htb rate 100000000000bit" in text
    assert "netem loss 0.5000% limit 1000" in text
    assert "statistic" not in text


def test_one_rate_for_all_needs_no_classes() -> None:
    text = script("10mbit", means=replace(ALL, htb=False, netem=False))

    assert "qdisc add dev eth0 root tbf rate 10000000bit burst 65536b latency 100ms\n" in text
    assert "htb" not in text


def test_what_is_not_installed_is_not_called() -> None:
    assert script(means=NOTHING) == "set -e\n"
    assert "iptables" not in script("10mbit", means=replace(ALL, iptables="", statistic=False))


def test_nodes_that_do_not_run_are_left_out() -> None:
    network = decide_network("node-0", NAMES, [parse_link("10mbit,loss=1%")], [ISOLATED])
    text = render_script(network, {"node-0": "10.210.0.3", "node-2": "10.210.0.5"}, ALL)

    assert "10.210.0.4" not in text
    assert text.count("10.210.0.5") == 2


def test_a_thousand_nodes_are_one_call_of_each_program() -> None:
    names = [f"node-{number}" for number in range(1000)]
    addresses = {name: f"10.210.{number // 250}.{number % 250 + 3}" for number, name in enumerate(names)}
    network = decide_network("node-0", names, [parse_link("1gbit,loss=1%")], [])
    text = render_script(network, addresses, ALL)

    assert text.count("classid") == 1
    assert text.count("flowid 1:1\n") == text.count("--probability") == 999
    assert text.count("tc -batch") == text.count("iptables-nft-restore") == 1


@pytest.mark.parametrize(
    ("links", "faults", "means", "message", "hint"),
    [
        (
            ["1gbit", "node-0=wifi"],
            (),
            WITHOUT_NETEM,
            "the link 'node-0=wifi' asks for a delay, and this kernel cannot delay packets: it has no netem",
            "sudo modprobe sch_netem, or apt-get install linux-modules-extra-$(uname -r); "
            "or leave the delay out: node-0=100mbit,loss=0.5%",
        ),
        (
            ["5ms"],
            (),
            WITHOUT_NETEM,
            "the link '5ms' asks for a delay, and this kernel cannot delay packets: it has no netem",
            "sudo modprobe sch_netem, or apt-get install linux-modules-extra-$(uname -r)",
        ),
        (["1gbit"], (), NOTHING, "the link '1gbit' asks for a bandwidth, and no tc here works", "apt-get install iproute2"),
        (
            ["node-0=1gbit"],
            (),
            replace(ALL, htb=False),
            "the link 'node-0=1gbit' asks for a bandwidth, and this kernel has no HTB with u32 filters",
            "sudo modprobe sch_htb cls_u32, or apt-get install linux-modules-extra-$(uname -r)",
        ),
        (
            [],
            (NetworkFault(links=(parse_link("node-1=loss=5%"),)),),
            replace(WITHOUT_NETEM, statistic=False),
            "the link 'node-1=loss=5%' asks for loss, and the packet filter here has no 'statistic' match",
            "sudo modprobe xt_statistic, or apt-get install linux-modules-extra-$(uname -r)",
        ),
        ([], (ISOLATED,), NOTHING, "a partition drops packets, and no iptables here can load a rule", "apt-get install iptables"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_refused_by_name_with_the_fix(
    links: list[str], faults: tuple[NetworkFault, ...], means: Means, message: str, hint: str
) -> None:
    with pytest.raises(EnvironmentMissingError) as caught:
        check_means(links, faults, means)

    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert caught.value.exit_code == 4
    assert caught.value.evidence == means.said.get("netem", "") * ("delay" in message)


def test_what_the_kernel_has_is_not_refused() -> None:
    check_means(["1gbit,20ms,loss=1%", "node-0=wifi"], [ISOLATED], ALL)
    check_means(["1gbit", "node-0:node-1=loss=1%"], [ISOLATED], WITHOUT_NETEM)
    check_means(["1gbit"], [], replace(ALL, htb=False))


def test_what_the_probe_prints_is_read() -> None:
    printed = (
        "tc\nhtb\ntbf\nno netem Error: Specified qdisc kind is unknown.\nstatistic\niptables iptables-nft-restore\n"
    )

    assert means_found(printed) == WITHOUT_NETEM
    assert means_found("no tc sh: tc: not found\nno iptables iptables is not installed\n") == replace(
        NOTHING, said={"tc": "sh: tc: not found", "iptables": "iptables is not installed"}
    )


def test_a_kind_of_fault_is_told_what_it_lacks() -> None:
    assert [lacking(part, ALL) for part in ("tc", "netem", "netfilter", "loss")] == [""] * 4
    assert lacking("netem", WITHOUT_NETEM) == "this kernel cannot delay packets: it has no netem"
    assert lacking("loss", NOTHING) == "no iptables here can load a rule"
    assert lacking("tc", NOTHING) == "no tc here works"


def test_a_routed_node_sends_all_packets_for_the_subnet_to_its_gateway_and_hears_of_no_shorter_way() -> None:
    network = decide_network("node-0", NAMES, (), (), routed="10.210.0.0/24")

    lines = render_script(network, ADDRESSES, ALL).splitlines()

    assert not network.is_plain
    assert lines[1:4] == [
        "ip route replace 10.210.0.1/32 dev eth0 scope link",
        "ip route replace 10.210.0.0/24 via 10.210.0.1 dev eth0 metric 1",
        "ip route del 10.210.0.0/24 dev eth0 proto kernel scope link 2>/dev/null || :",
    ]
    assert "-A INPUT -p icmp --icmp-type redirect -j DROP" in lines


@pytest.mark.parametrize("part", ["tc", "iptables"])
def test_routes_need_programs_and_the_missing_one_is_named(part: str) -> None:
    with pytest.raises(EnvironmentMissingError, match=part):
        check_means((), (), replace(ALL, **{part: ""}), routed=True)
