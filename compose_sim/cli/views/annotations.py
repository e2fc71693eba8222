"""Annotate the lines of code that a check complains about, if a GitHub Actions job runs composesim."""

from __future__ import annotations

import os
from pathlib import Path

from compose_sim.cli.console import echo_workflow_command, in_github_job, say
from compose_sim.cli.views.checks import relative
from compose_sim.cli.views.report import unjudged_text, verdict_text
from compose_sim.core.report.github import summary, workflow_commands
from compose_sim.core.report.report import Report


def annotate(report: Report, *, folder: Path, err: bool) -> None:
    """Print annotations on stdout or stderr (GitHub reads both), and add a table to the summary of the step."""
    if not in_github_job():
        return
    workspace = Path(os.environ.get("GITHUB_WORKSPACE") or folder)
    for command in workflow_commands(report, path_of=lambda file: relative(folder / file, workspace)):
        echo_workflow_command(command, err=err)
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if target:
        try:
            with Path(target).open("a", encoding="utf-8") as file:
                verdict = "; ".join(filter(None, (unjudged_text(report), verdict_text(report))))
                file.write(summary(report, verdict) + "\n")
        except OSError as error:
            say(f"the step summary '{target}' cannot be written: {error.strerror}")
