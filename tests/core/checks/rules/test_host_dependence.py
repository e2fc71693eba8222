"""A rendezvous address on this host, and files that only one node has, fail; what the launcher provides passes."""

from __future__ import annotations

from typing import Any

import pytest

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED, WARNED
from compose_sim.core.checks.rules.machines import host_dependence
from compose_sim.node.records.devices_and_files import VariableSet
from compose_sim.node.records.process_groups import InitProcessGroup
from compose_sim.node.records.record import Record
from compose_sim.node.records.script import LaunchEnvironment
from tests.core.checks.rules.cluster import at, file, two_nodes


def init(**more: Any) -> InitProcessGroup:
    return InitProcessGroup(**{"master_addr": "10.0.0.1", "env_world_size": 4, "at": ("/work/t.py", 3), **more})


@pytest.mark.parametrize(
    "asked",
    [
        {"master_addr": "localhost"},
        {"init_method": "tcp://127.0.0.1:29500"},
        {"init_method": "file:///tmp/meet"},
        {"store_host": "localhost"},
    ],
)
def test_meeting_places_of_one_host_fail(asked: dict[str, Any]) -> None:
    result = host_dependence.judge(two_nodes(lambda rank: [init(**asked)]))
    assert (result.status, at(result)) == (FAILED, ("/work/t.py", 3))


def test_the_launchers_address_passes_and_a_group_within_a_node_too() -> None:
    assert host_dependence.judge(two_nodes(lambda rank: [init()])).status == PASSED
    assert (
        host_dependence.judge(two_nodes(lambda rank: [init(master_addr="localhost", given_world_size=2)])).status
        == PASSED
    )
    assert host_dependence.judge(two_nodes(lambda rank: [])).status == NOT_APPLICABLE


@pytest.mark.parametrize(("facts", "status"), [({"changes": True}, FAILED), ({"written": True}, FAILED), ({}, PASSED)])
def test_an_address_is_the_scripts_where_it_changes_or_spells_it(facts: dict[str, bool], status: str) -> None:
    chosen = VariableSet("MASTER_ADDR", "127.0.0.1", **facts)
    launched = LaunchEnvironment(world_size=4, master_addr="127.0.0.1")
    assert (
        host_dependence.judge(two_nodes(lambda rank: [launched, chosen, init(master_addr="127.0.0.1")])).status
        == status
    )


def test_a_private_file_is_read_only_where_it_was_written() -> None:
    def records(rank: int) -> list[Record]:
        return [file("write", "/tmp/data.pt")] if rank == 0 else [init(), file("read", "/tmp/data.pt")]

    result = host_dependence.judge(two_nodes(records, verdict="failed"))
    assert result.status == FAILED
    assert host_dependence.judge(two_nodes(records)).status == WARNED  # these nodes share the folder
    assert "rank 2 on node-1 reads /tmp/data.pt (train.py, line 9), which exists only on node-0" in result.detail
    own = two_nodes(
        lambda rank: [file("write", "/tmp/data.pt"), file("read", "/tmp/data.pt")] if rank % 2 == 0 else [init()]
    )
    assert host_dependence.judge(own).status == PASSED
