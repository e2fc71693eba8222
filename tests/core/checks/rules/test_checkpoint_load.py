"""Whether a loaded checkpoint reaches the model."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import pytest

from compose_sim.core.checks.rules.checkpoints import checkpoint_load
from compose_sim.node.records.models import KeptTensors, TensorHashes, TensorRow, TensorTable
from compose_sim.node.records.precautions import LoadedElsewhere, LoadedState, UnfilledState
from compose_sim.node.records.record import Record
from tests.core.checks.rules.cluster import at, case, file
from tests.core.checks.rules.replicas import AT, step


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


@pytest.mark.parametrize(("trains", "status"), [(True, "failed"), (False, "passed")])
def test_optimizer_state_that_a_new_optimizer_has_no_place_for_is_lost(trains: bool, status: str) -> None:
    lost = UnfilledState("optim", 24, AT)
    result = checkpoint_load.judge(
        case({rank: [file("read"), lost, *([step(1)] if trains else [])] for rank in range(2)})
    )

    assert (result.status, at(result)) == (status, AT if trains else None)


ZEROS = blake2b(bytes(5 * 4), digest_size=8).hexdigest()


@pytest.mark.parametrize(
    ("weights", "states", "status"),
    [
        (("a", "b"), ("s", "s"), "failed"),
        (("a", "b"), ("s", "t"), "passed"),
        (("a", "a"), ("s", "s"), "passed"),  # copies
        (("a", "b"), (ZEROS, ZEROS), "passed"),  # set back
    ],
)
def test_the_optimizer_state_of_another_rank(weights: tuple[str, str], states: tuple[str, str], status: str) -> None:
    rows = tuple(
        TensorRow(kind, None, name, (5,), "float32")
        for kind, name in (("parameter", "0"), ("optimizer state", "0: exp_avg"))
    )

    def rank(number: int) -> list[Record]:
        before = TensorHashes(0, 1, 0, (f"before {number}", f"of {number}"))
        return [
            file("read"),
            TensorTable(0, 0, rows),
            before,
            step(2),
            TensorHashes(0, 2, 0, (weights[number], states[number])),
            step(3),
        ]

    result = checkpoint_load.judge(case({number: rank(number) for number in range(2)}))

    assert (result.status, at(result)) == (status, AT if status == "failed" else None)
    assert result.status == "passed" or result.detail.startswith("before step 3 ")


@pytest.mark.parametrize(
    ("size", "states", "status"),
    [
        (10, ("s", "s"), "warned"),
        (10, ("s", "t"), "passed"),
        (20, ("s", "s"), "passed"),  # of the whole parameter: local steps, perhaps
        (4, ("s", "s"), "passed"),
    ],
)
def test_the_state_of_a_slice_of_replicated_weights(size: int, states: tuple[str, str], status: str) -> None:
    rows = (
        TensorRow("parameter", None, "0", (20,), "float32"),
        TensorRow("optimizer state", None, "0: exp_avg", (size,), "float32"),
    )
    ranks = {
        number: [
            file("read"),
            TensorTable(0, 0, rows),
            TensorHashes(0, 1, 0, ("a", f"of {number}")),
            step(2),
            TensorHashes(0, 2, 0, ("b", states[number])),
            step(3),
        ]
        for number in range(2)
    }

    assert checkpoint_load.judge(case(ranks)).status == status


@pytest.mark.parametrize(
    ("size", "before", "after", "status"),
    [
        (13, "own", "one", "warned"),  # of 25 parameters, padded
        (13, "own", "own", "passed"),
        (13, "same", "one", "passed"),  # replicas
        (13, "constant", "one", "passed"),  # the data of each rank
        (25, "own", "one", "passed"),  # a momentum of each rank
        (9, "own", "one", "passed"),  # what has nothing to do with the parameters
    ],
)
def test_the_part_of_another_rank_in_an_optimizer_of_the_script_s_own(
    size: int, before: str, after: str, status: str
) -> None:
    def held(rank: int, steps: int) -> str:
        return {"own": f"{steps} {rank}", "same": f"{steps}", "constant": f"{rank}"}[before]

    def kept(steps: int, hashed: str, **more: Any) -> KeptTensors:
        return KeptTensors("Sharded", steps, ("m",), (size,), (hashed,), **more)

    ranks = {
        rank: [
            file("read"),
            *(kept(steps, held(rank, steps), parameters=(20, 5)) for steps in (1, 2, 4)),
            kept(6, "loaded" if after == "one" else f"loaded {rank}", loaded=AT),
        ]
        for rank in range(2)
    }
    result = checkpoint_load.judge(case(ranks))

    assert (result.status, at(result)) == (status, AT if status == "warned" else None)
