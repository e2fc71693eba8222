"""What a script leaves keeps composesim busy for a limited time."""

from __future__ import annotations

import signal

from compose_sim.engine.run_folder.judging_time import judging_time
from compose_sim.errors import OutOfTimeError


def test_steps_beyond_the_limit_are_given_up_one_by_one_and_nothing_after_it() -> None:
    given_up = 0
    with judging_time(0.05, then=0.05):
        for _ in range(3):
            try:
                while True:
                    pass
            except OutOfTimeError:
                given_up += 1

    assert given_up == 3
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
