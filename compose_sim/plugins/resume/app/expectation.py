"""Judge the expectation `state_continuous` of scenarios: each round of a run goes on from the state of the round before."""

from __future__ import annotations

import json
from itertools import pairwise

from compose_sim.app.session import Session
from compose_sim.core.scenarios.expectations import Evaluation, inconclusive, measured
from compose_sim.engine.run_folder.record import read_rounds
from compose_sim.plugins.resume.core.checkpoints import Interruption
from compose_sim.plugins.resume.core.evidence import Ending, ThreeRuns
from compose_sim.plugins.resume.core.judge import judge
from compose_sim.plugins.resume.core.options import SETTINGS
from compose_sim.plugins.resume.core.trajectory import read_run

RECORDS = {SETTINGS: json.dumps({"record": True})}  # what nodes are told, so that they record states
_ENDED = Ending(verdict="passed")


def state_continuous(wanted: bool, session: Session) -> Evaluation:
    """Expect that what a round repeats of the round before has the same samples, settings, random numbers and tensors."""
    rounds = [each for each in read_rounds(session.folder.path) if any(one.states for one in read_run(each).values())]
    found = [
        judge(
            ThreeRuns(
                whole=before,
                interrupted=before,
                resumed=after,
                interruption=Interruption(step=0, checkpoint=None),
                ending=_ENDED,
                is_one_run=True,
            )
        )
        for before, after in pairwise(rounds)
    ]
    if not found:
        return inconclusive("training was not started again")
    worst = next((each for word in ("failed", "inconclusive") for each in found if each.status == word), found[0])
    if worst.status == "inconclusive":
        return inconclusive(worst.text)
    return measured(worst.text, worst.status == "passed", good=(worst.status == "passed") == wanted)
