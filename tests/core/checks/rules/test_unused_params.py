"""A parameter that DDP waits for and no backward pass reached is named, from the pass itself or from DDP's error."""

from __future__ import annotations

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED
from compose_sim.core.checks.rules.wrapping import unused_params
from compose_sim.core.report.report import Cause
from compose_sim.node.records.models import UnusedParameters
from tests.core.checks.rules.cluster import at, case, collective
from tests.core.checks.rules.replicas import AT, ddp, forward, step

COMPLAINT = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. […]\n"
    "Parameter indices which did not receive grad for rank 1: 1\n In addition, you can set …"
)


def test_what_backward_left_out_is_named_with_its_ranks() -> None:
    unused = UnusedParameters(0, ("bias",), 1, AT)
    result = unused_params.judge(case({0: [ddp(), forward()], 1: [ddp(), forward(), unused]}))
    assert (result.status, result.ranks) == (FAILED, (1,))
    assert result.detail.endswith("rank 1: bias")


def test_a_gather_that_returns_no_gradient_is_the_cause() -> None:
    gathered = collective("all_gather", 8, 4, line=9, detaches=True)
    result = unused_params.judge(
        case({0: [ddp(), forward(), gathered, UnusedParameters(0, ("bias",), 1, AT)], 1: [ddp(), forward()]})
    )
    assert (result.status, "all_gather" in result.detail, "nn.functional" in result.fix) == (FAILED, True, True)
    assert at(result) == gathered.at


def test_the_places_in_the_complaint_of_ddp_become_names() -> None:
    cause = Cause(kind="exception", message=COMPLAINT, rank=1)
    result = unused_params.judge(case({rank: [ddp(), forward()] for rank in range(2)}, verdict="failed", cause=cause))
    assert result.status == FAILED
    assert result.detail.endswith(": bias")


def test_a_complaint_about_parameters_that_were_replaced_is_for_another_check() -> None:
    cause = Cause(kind="exception", message=COMPLAINT, rank=1)
    notes = [ddp(), forward(), step(1, replaced=("bias",))]
    assert (
        unused_params.judge(case({rank: notes for rank in range(2)}, verdict="failed", cause=cause)).status
        == NOT_APPLICABLE
    )


def test_where_ddp_looks_for_them_itself_nothing_is_wrong() -> None:
    result = unused_params.judge(case({rank: [ddp(find_unused=True), forward()] for rank in range(2)}))
    assert (result.status, "itself" in result.detail) == (PASSED, True)


def test_a_model_that_was_never_called_is_not_judged() -> None:
    assert unused_params.judge(case({rank: [ddp()] for rank in range(2)})).status == NOT_APPLICABLE
