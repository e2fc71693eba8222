"""`up --profile-phases` accounts for the whole time of the command."""

from __future__ import annotations

import time

from tests.cli.conftest import UP, Project


def test_the_phases_end_where_the_command_ends(project: Project) -> None:
    project.write("train.py", "print(1)\n")
    began = time.monotonic()
    ended = project.run(*UP, "--profile-phases", "train.py")
    elapsed = time.monotonic() - began

    assert ended.returncode == 0
    table = ended.stderr.partition("phase  ")[2].splitlines()[1:]
    phases = {line[:24].strip(): line[24:].split() for line in table}
    assert list(phases)[:2] == ["Python and imports", "inspection and plan"]
    assert list(phases)[-1] == "last clean-up"
    assert {"nodes start", "rendezvous", "nodes stop", "checks and report"} < set(phases)
    took, ends = zip(*[(float(words[0]), float(words[2])) for words in phases.values()], strict=True)
    assert list(ends) == sorted(ends)
    assert abs(sum(took) - ends[-1]) < 0.01 * len(took)  # rounded
    assert ends[-1] < elapsed
