"""Whether a loaded checkpoint reaches the model."""

from __future__ import annotations

import pytest

from compose_sim.core.checks.rules.checkpoints import checkpoint_load
from compose_sim.node.records.precautions import LoadedElsewhere, LoadedState
from tests.core.checks.rules.cluster import at, case, file
from tests.core.checks.rules.replicas import AT


@pytest.mark.parametrize(
    ("prefix", "strict", "verdict", "status"),
    [
        ("module.", False, "passed", "failed"),
        ("", False, "passed", "warned"),
        ("module.", True, "failed", "failed"),  # load_state_dict raised, and ended the run
        ("module.", True, "passed", "passed"),  # the script has loaded something else
        ("", True, "failed", "passed"),  # the message of torch is enough
    ],
)
def test_no_name_that_matches(prefix: str, strict: bool, verdict: str, status: str) -> None:
    state = LoadedState(4, 4, ("module.0.weight",), prefix, strict, AT)
    result = checkpoint_load.judge(case({rank: [file("read"), state] for rank in range(2)}, verdict=verdict))

    assert (result.status, at(result)) == (status, None if status == "passed" else AT)


def test_the_gpu_of_another_rank() -> None:
    result = checkpoint_load.judge(case({0: [file("read")], 1: [file("read"), LoadedElsewhere((0,), 1, AT)]}))

    assert (result.status, result.ranks, at(result)) == ("warned", (1,), AT)
