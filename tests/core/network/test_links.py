"""Link texts are parsed, errors quote the text, and the right link applies between two nodes."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compose_sim.core.network.links import (
    PLAIN,
    PROFILES,
    Link,
    Shape,
    check_links,
    link_row,
    merged,
    parse_link,
    parse_one,
    parse_shape,
    shape_between,
)
from compose_sim.core.request.spec_file import make_spec, parse_spec_text
from compose_sim.errors import SpecError
from tests.builders import a_plan

MBIT = 10**6


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    delay = draw(st.integers(0, 60 * 10**6))
    return Shape(
        rate_bits=draw(st.none() | st.integers(10**4, 10**12)),
        delay_us=delay,
        jitter_us=draw(st.integers(0, delay)),
        loss_ppm=draw(st.integers(0, 10**6 - 1)),
    )


@st.composite
def links(draw: st.DrawFn) -> Link:
    names = draw(
        st.lists(st.integers(0, 2000), unique=True, max_size=6).map(lambda found: [f"node-{n}" for n in found])
    )
    cut = draw(st.integers(1, max(1, len(names))))
    return Link(shape=draw(shapes()), nodes=tuple(names[:cut]), others=tuple(names[cut:]))


@given(links())
def test_a_link_is_read_as_it_is_written(link: Link) -> None:
    assert parse_link(str(link)) == link


@given(shapes(), st.randoms())
def test_parts_may_stand_in_any_order(shape: Shape, random: Random) -> None:
    parts = str(shape).split(",")
    random.shuffle(parts)

    assert parse_shape(" , ".join(parts)) == shape


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1gbit,20ms,jitter=2ms,loss=0.1%", Shape(rate_bits=10**9, delay_us=20000, jitter_us=2000, loss_ppm=1000)),
        ("loss=0.1%,jitter=2ms,20ms,1gbit", Shape(rate_bits=10**9, delay_us=20000, jitter_us=2000, loss_ppm=1000)),
        ("rate=2.5GBit, delay=0.5s", Shape(rate_bits=25 * 10**8, delay_us=500000)),
        ("64000bit", Shape(rate_bits=64000)),
        ("100us", Shape(delay_us=100)),
        ("ethernet-1g", Shape(rate_bits=10**9)),
        ("plain", PLAIN),
    ],
)
def test_a_shape_means(text: str, meant: Shape) -> None:
    assert parse_shape(text) == meant


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_is_a_shape(name: str) -> None:
    assert (parse_shape(name) == PLAIN) == (name == "plain")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' in '' is not part of a link: write it like 1gbit,20ms,jitter=2ms,loss=0.1%, or one of plain, "),
        ("1gbps", "'1gbps' in '1gbps' is not part of a link: rates are in bits per second, such as 10mbit"),
        ("1gbit,5%", "'5%' in '1gbit,5%' is not part of a link: name the property, such as loss=5%"),
        ("wify", "'wify' in 'wify' is not part of a link: did you mean 'wifi'?"),
        ("1gbit,2gbit", "'2gbit' in '1gbit,2gbit' sets the rate twice"),
        ("1kbit", "'1kbit' in '1kbit' is out of range: from 10kbit to 1tbit"),
        ("2m", "'2m' in '2m' is not part of a link"),
        (f"{'9' * 400}s", "is out of range: at most 60s"),
        ("61s", "'61s' in '61s' is out of range: at most 60s"),
        ("loss=100%", "'loss=100%' in 'loss=100%' is out of range: below 100%, which is a partition"),
        ("2ms,jitter=3ms", "the jitter of '2ms,jitter=3ms' is more than its delay"),
        ("rdma", "'rdma' cannot be simulated: such adapters bypass the kernel"),
        ("InfiniBand-NDR", "'InfiniBand-NDR' cannot be simulated"),
        ("roce", "'roce' cannot be simulated"),
        ("nvlink", "'nvlink' cannot be simulated"),
        ("node-0=roce", "'roce' cannot be simulated"),
        ("nod-0=1gbit", "'nod-0' in 'nod-0=1gbit' is not a node: nodes are node-0, node-1 and so on"),
        ("node-01=1gbit", "'node-01' in 'node-01=1gbit' is not a node"),
        ("master=1gbit", "'master' in 'master=1gbit' is not a node"),
        ("node-0=", "'' in '' is not part of a link"),
        ("node-0", "'node-0' in 'node-0' is not part of a link"),
        ("node-0:node-1:node-2=1gbit", "has 3 groups of nodes: a link is between two"),
        ("node-0,node-1:node-1=1gbit", "'node-1' in 'node-0,node-1:node-1=1gbit' is in both groups"),
    ],
)
def test_a_wrong_text_is_told_with_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_link(text)


def test_one_thing_of_a_link_is_read_alone() -> None:
    assert parse_one("loss", "5%") == Shape(loss_ppm=50000)
    with pytest.raises(ValueError, match="sets more than one property"):
        parse_one("rate", "10mbit,5ms")


def test_links_are_checked_together() -> None:
    check_links(["10mbit", "node-0=1mbit", "node-0:node-1=1mbit"], ["node-0", "node-1"])
    with pytest.raises(ValueError, match="'node-2' in 'node-2=1mbit' is not a node of this cluster: node-0 to node-1"):
        check_links(["node-2=1mbit"], ["node-0", "node-1"])
    with pytest.raises(ValueError, match="'node-1:node-0=2mbit' and 'node-0:node-1=1mbit' are for the same links"):
        check_links(["node-0:node-1=1mbit", "node-1:node-0=2mbit"])


def test_the_most_specific_link_holds_both_ways() -> None:
    """Two racks: fast inside, slow across, one bad cable, and one plain node."""
    racks = ["1gbit", "node-0,node-1:node-2,node-3=100mbit", "node-0:node-3=10mbit", "node-2=50mbit", "node-4=plain"]
    holding = [parse_link(text) for text in racks]
    rates = {
        (one, other): (shape_between(holding, f"node-{one}", f"node-{other}").rate_bits or 0) // MBIT
        for one in range(6)
        for other in range(6)
        if one != other
    }

    assert {pair: rate for pair, rate in rates.items() if pair[0] < pair[1]} == {
        (0, 1): 1000,
        (0, 2): 100,
        (0, 3): 10,
        (0, 4): 0,
        (0, 5): 1000,
        (1, 2): 100,
        (1, 3): 100,
        (1, 4): 0,
        (1, 5): 1000,
        (2, 3): 50,
        (2, 4): 50,  # neither link is more specific: the slower one applies
        (2, 5): 50,
        (3, 4): 0,
        (3, 5): 1000,
        (4, 5): 0,
    }
    assert all(rates[one, other] == rates[other, one] for one, other in rates)


def test_a_change_replaces_what_was_said_of_the_same_links() -> None:
    links = ("1gbit", "node-0:node-1=10mbit")

    assert merged(links, ["node-1:node-0=20mbit", "node-2=1mbit"]) == ("1gbit", "node-1:node-0=20mbit", "node-2=1mbit")
    assert merged(links, ["plain"]) == ("node-0:node-1=10mbit",)
    assert merged(links, ["node-0:node-1=plain"]) == ("1gbit", "node-0:node-1=plain")
    assert merged(links, []) == ()


def test_a_link_is_shown_in_a_row() -> None:
    assert link_row("20ms,loss=0.1%") == ("all", "-", "20ms", "-", "0.1%")
    assert link_row("node-0,node-1:node-2=1gbit") == ("between node-0, node-1 and node-2", "1gbit", "-", "-", "-")
    assert link_row("node-3=wifi") == ("of node-3", "100mbit", "3ms", "1ms", "0.5%")


def test_a_spec_file_holds_one_link_or_several() -> None:
    for text, links in (("link: 1gbit", ("1gbit",)), ("link: [1gbit, node-0=1mbit]", ("1gbit", "node-0=1mbit"))):
        assert make_spec(parse_spec_text(text, "composesim.yaml", {}), {}).link == links
    with pytest.raises(SpecError) as caught:
        parse_spec_text("link:\n- 1gbit\n- 2gbps\n", "composesim.yaml", {})
    assert caught.value.message.startswith("composesim.yaml, line 3: link: '2gbps' in '2gbps' is not part of a link")


def test_links_that_the_cluster_cannot_have_are_refused() -> None:
    assert a_plan(nodes=2, link="1gbit").links == ("1gbit",)
    with pytest.raises(SpecError, match="'node-2' in 'node-2=1gbit' is not a node of this cluster: node-0 to node-1"):
        a_plan(nodes=2, link="node-2=1gbit")
    with pytest.raises(SpecError, match="the local engine does not support --link"):
        a_plan(engine="local", link="1gbit")
    with pytest.raises(SpecError, match="--link '1gbit' cannot be rendered"):
        a_plan(portable=True, link="1gbit")
