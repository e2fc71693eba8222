"""Each measurement of a link is judged by what that measurement can show."""

from __future__ import annotations

import pytest

from compose_sim.core.network.links import arguments, compare, parse_shape

MEASURED = {"step": 1, "to_node_1": 95.5e6, "to_node_0": 88.123e6, "round_trip_s": 0.0204, "lost_share": 0.0112}


def test_measured_stands_beside_wanted() -> None:
    measured = compare(parse_shape("100mbit,10ms"), MEASURED)

    assert [each.row for each in measured] == [
        ("bandwidth node-0 to node-1", "100mbit", "95.5mbit", "96%"),
        ("bandwidth node-1 to node-0", "100mbit", "88.1mbit", "88%, not within 10%"),
        ("delay, one way", "10ms", "10.2ms", "102%"),
    ]
    assert [each.is_near for each in measured] == [True, False, True]


def test_where_packets_are_lost_tcp_may_send_less_and_never_more() -> None:
    measured = compare(parse_shape("90mbit,loss=1%"), {**MEASURED, "to_node_0": 30e6, "to_node_1": 100e6})

    assert [each.row for each in measured] == [
        ("bandwidth node-0 to node-1", "90mbit", "100mbit", "111%, not within 10%"),
        ("bandwidth node-1 to node-0", "90mbit", "30mbit", "33%, TCP gives way to loss"),
        ("delay, one way", "-", "10.2ms", "-"),
        ("loss", "1.00%", "1.12%", "112%"),
    ]


def test_what_was_not_asked_for_is_only_shown() -> None:
    measured = compare(parse_shape("plain"), {**MEASURED, "round_trip_s": 4.2e-05})

    assert [each.row for each in measured] == [
        ("bandwidth node-0 to node-1", "-", "95.5mbit", "-"),
        ("bandwidth node-1 to node-0", "-", "88.1mbit", "-"),
        ("delay, one way", "-", "21us", "-"),
    ]
    assert all(each.is_near for each in measured)


@pytest.mark.parametrize(
    ("shape", "changes", "near"),
    [
        ("100us", {"round_trip_s": 0.0004}, True),  # the delay of this machine does not count against the link
        ("20ms", {"round_trip_s": 0.0464}, False),
        ("loss=1%", {"lost_share": 0.0}, False),
        ("loss=1%", {"lost_share": 0.014}, False),
        ("100mbit", {"to_node_0": 111e6}, False),
    ],
)
def test_the_room_that_each_measurement_has(shape: str, changes: dict[str, float], near: bool) -> None:
    measured = compare(parse_shape(shape), {**MEASURED, "to_node_0": 95e6, **changes})

    assert all(each.is_near for each in measured) == near


def test_datagrams_are_sent_only_where_some_are_to_be_lost() -> None:
    assert arguments(parse_shape("1gbit")) == ("3", "0")
    assert arguments(parse_shape("loss=1%")) == ("3", "20000")


def test_a_run_that_did_not_get_so_far_has_no_measurements() -> None:
    with pytest.raises(KeyError):
        compare(parse_shape("1gbit"), {})
