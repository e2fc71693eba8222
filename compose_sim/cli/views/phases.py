"""Print how long each phase of a run took: `up --profile-phases`."""

from __future__ import annotations

import click

from compose_sim.app.session import Session
from compose_sim.cli.console import print_table, say
from compose_sim.engine.host.process_start import seconds_since_start

profile_option = click.option(
    "--profile-phases", is_flag=True, help="Print how long each phase took, from the start of the command."
)


def print_phases(session: Session) -> None:
    """Print a row for each phase of a session that has ended."""
    from compose_sim.core.state.phases import phases_of
    from compose_sim.engine.run_folder.check_inputs import read_events  # with all checks

    age, ahead = seconds_since_start(), session.folder.clock.ahead
    session.mark("last clean-up")
    now = session.marks["last clean-up"]
    marks = {phase: at + ahead for phase, at in session.marks.items()}
    phases = phases_of(now - age + ahead, marks, read_events(session.folder.path))
    say("")
    rows = [[phase.name, f"{phase.seconds:.2f} s", f"{phase.ended_at:.2f} s"] for phase in phases]
    print_table(["phase", "took", "ended at"], rows, err=True)
