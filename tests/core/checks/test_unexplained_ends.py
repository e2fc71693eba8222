"""A rank that ends without an exception is explained by its last collective and the last lines that it printed."""

from __future__ import annotations

import pytest

from compose_sim.core.checks import Case
from compose_sim.core.checks.unexplained_ends import file_not_yet_made, with_evidence
from compose_sim.core.report.report import Cause, Place
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.process_groups import DdpForward
from tests.core.checks.rules.cluster import WORLD, collective, two_nodes

ABORTED = Cause(kind="signal", rank=0, node="node-0", message="rank 0 was killed by SIGABRT")
GLOO = (
    "epoch 1",
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
    "  what():  [enforce fail at /gloo/transport/tcp/pair.cc:456] 20 vs 4. Received data size doesn't match",
    "frame #0: c10::Error (0x5f in libc10.so)",
    "/lib/functional_tensor.py:368: UserWarning: Failed to initialize NumPy",
    "",
)


def a_case(cause: Cause, *lines: str) -> Case:
    alone = collective("all_reduce", line=16)
    return two_nodes(lambda rank: [alone], verdict="failed", cause=cause, logs={0: lines})


def test_an_abort_names_the_last_collective_and_the_complaint() -> None:
    cause = with_evidence(a_case(ABORTED, *GLOO))

    assert cause is not None
    assert cause.place == Place(file="/work/train.py", line=16)
    assert cause.message == (
        "rank 0 was killed by SIGABRT after all_reduce (train.py, line 16): 20 vs 4. Received data size doesn't match"
    )
    assert (cause.traceback or "").splitlines()[1:2] == ["  epoch 1"]
    assert "frame #0" not in (cause.traceback or "")


def test_what_the_message_says_is_not_printed_again() -> None:
    aborted = Cause(kind="signal", rank=0, node="node-0", message=f"rank 0 aborted: {GLOO[2].partition(':  ')[2]}")
    cause = with_evidence(a_case(aborted, *GLOO))

    assert cause is not None
    assert (cause.traceback or "").splitlines() == [
        "The last lines of rank 0:",
        "  epoch 1",
        "Its last collective: all_reduce (train.py, line 16)",
    ]


def test_the_last_lines_of_an_exit_are_evidence_and_not_the_message() -> None:
    exited = Cause(kind="exit", rank=0, node="node-0", message="rank 0 exited with status 9")
    cause = with_evidence(a_case(exited, "fatal error: no such file"))

    assert cause is not None
    assert (cause.message, cause.place) == (exited.message, None)
    assert "fatal error: no such file" in (cause.traceback or "")


def test_a_forward_pass_counts_as_a_collective() -> None:
    forward = DdpForward(0, WORLD, at=("/work/train.py", 11))
    cause = with_evidence(two_nodes(lambda rank: [forward], verdict="failed", cause=ABORTED))

    assert cause is not None
    assert cause.place == Place(file="/work/train.py", line=11)


@pytest.mark.parametrize(
    "cause",
    [
        Cause(kind="exception", rank=0, node="node-0", message="ValueError: boom", traceback="Traceback …"),
        Cause(kind="oom", rank=0, node="node-0", message="rank 0 was killed: node-0 ran out of memory"),
        Cause(kind="signal", node="node-0", message="node-0 was killed (SIGKILL)"),
    ],
)
def test_other_causes_stay_as_they_are(cause: Cause) -> None:
    assert with_evidence(a_case(cause, *GLOO)) == cause


def test_a_flood_of_output_is_cut() -> None:
    cause = with_evidence(a_case(ABORTED, *["error " + "x" * 100_000] * 500))

    assert cause is not None
    assert len(cause.message) < 300
    assert len(cause.traceback or "") < 5000


def test_what_the_message_says_is_not_repeated() -> None:
    said = Cause(kind="exit", rank=0, node="node-0", message="rank 0 exited with status 1: no conf.yaml")
    cause = with_evidence(a_case(said, "no conf.yaml"))

    assert cause is not None
    assert "no conf.yaml" not in (cause.traceback or "")


@pytest.mark.parametrize(
    ("asking", "looked_for", "is_found"),
    [(0, "/work/data/table.npz", True), (1, "/work/data/table.npz", False), (0, "/work/data/other.npz", False)],
    ids=["another rank makes it", "the rank itself looked for it, too", "another file"],
)
def test_a_file_that_another_rank_is_to_make_is_named(asking: int, looked_for: str, is_found: bool) -> None:
    message = "FileNotFoundError: [Errno 2] No such file or directory: 'data/table.npz'"
    missing = Cause(kind="exception", rank=1, node="node-1", message=message)
    miss = FileUse("miss", looked_for, at=("/work/train.py", 7))
    ranks = (0, 1) if asking == 1 else (asking,)
    found = file_not_yet_made(two_nodes(lambda rank: [miss] if rank in ranks else [], verdict="failed", cause=missing))

    assert (found is not None) == is_found
    if found is not None:
        assert (found.rank, found.at) == (0, ("/work/train.py", 7))
