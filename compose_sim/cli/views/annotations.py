"""Does a GitHub Actions job run us? Then it is told what a check found, where it looks for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from compose_sim.cli.console import say
from compose_sim.cli.views.report import verdict_words
from compose_sim.core.report.github import summary, workflow_commands


def annotate(report: Mapping[str, Any], *, folder: Path, err: bool) -> None:
    """Annotations on stdout or stderr, of which GitHub reads both; a table in the file that it names for the step's summary."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    workspace = Path(os.environ.get("GITHUB_WORKSPACE") or folder)
    for command in workflow_commands(report, path_of=lambda file: _within(folder / file, workspace)):
        click.echo(command, err=err)
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if target:
        try:
            with Path(target).open("a", encoding="utf-8") as file:
                file.write(summary(report, verdict_words(report)) + "\n")
        except OSError as error:  # the verdict does not depend on it
            say(f"the step summary '{target}' cannot be written: {error.strerror}")


def _within(file: Path, workspace: Path) -> str:
    return str(file.relative_to(workspace)) if file.is_relative_to(workspace) else str(file)
