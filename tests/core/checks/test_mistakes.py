"""What `check --self-test` concludes from a run with a known mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compose_sim.core.checks import Result, failed, not_applicable, passed, warned
from compose_sim.core.checks.mistakes import MISTAKES, NEED_A_REPLAY, outcome, summary
from compose_sim.core.report.report import Report
from compose_sim.core.request.names import CHECK_IDS
from compose_sim.node.rank.torch_hooks.mistakes import NAMES
from tests import builders


def report(verdict: str = "passed", **results: Result) -> Report:
    checks = tuple(replace(result, id=name.replace("_", "-")).to_report() for name, result in results.items())
    return builders.a_report(verdict=verdict, checks=checks)


@pytest.mark.parametrize(
    ("after", "status", "checks", "why"),
    [
        (report(params_in_sync=failed("apart", fix="")), "found", ("params-in-sync",), ""),
        (report(set_epoch=warned("again", fix="")), "found", ("set-epoch",), ""),
        (report("hung"), "found", (), "the run hung"),
        (report(params_in_sync=passed("equal")), "missed", (), "params-in-sync: equal"),
        (report(params_in_sync=not_applicable("sharded")), "missed", (), "params-in-sync: sharded"),
        (report(metric_local=warned("own", fix="")), "missed", (), "params-in-sync did not run"),
    ],
)
def test_a_mistake_is_found_by_problems_that_the_script_does_not_have_without_it(
    after: Report, status: str, checks: tuple[str, ...], why: str
) -> None:
    found = outcome("other-rate", report(metric_local=warned("own", fix="")), after, is_planted=True)

    assert (found.status, found.checks, found.why) == (status, checks, why)


def test_what_the_script_never_reaches_is_not_counted() -> None:
    found = outcome("fixed-epoch", report(), report(params_in_sync=failed("apart", fix="")), is_planted=False)
    one = outcome("other-rate", report(), report(params_in_sync=failed("apart", fix="")), is_planted=True)

    assert (found.status, found.why) == ("not-planted", f"it takes {MISTAKES['fixed-epoch'].needs}")
    assert summary((found, one)).startswith("1 of 1 planted mistake ")


def test_a_script_that_resumes_from_the_run_before_has_no_mistakes_planted() -> None:
    read = ": it read last.pt (train.py, line 9), and may have taken the training to be over"
    found = outcome("other-rate", report(), report(), is_planted=True, no_step=read)

    assert (found.status, found.why) == ("not-planted", f"no optimizer stepped{read}")


def test_ranks_can_plant_every_mistake_and_checks_can_find_it() -> None:
    assert set(MISTAKES) == NAMES
    assert set(MISTAKES) >= NEED_A_REPLAY
    assert {each for mistake in MISTAKES.values() for each in mistake.expects} <= set(CHECK_IDS)
