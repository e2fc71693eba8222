"""The skill names commands, exit codes and fields that exist."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from compose_sim.cli import group
from compose_sim.core.verdict.verdict import EXIT_CODES
from compose_sim.plugins.skill.cli.command import _SKILL, command
from tests.builders import ROOT

TEXT = _SKILL.read_text()
SCHEMA = json.loads((ROOT / "templates" / "report.schema.json").read_text())


def test_the_file_is_written_once_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "skills" / "composesim"

    assert CliRunner().invoke(command, [str(folder)]).exit_code == 0
    assert (folder / "SKILL.md").read_text() == TEXT

    (folder / "SKILL.md").write_text("mine")
    CliRunner().invoke(command, [str(folder)])
    assert (folder / "SKILL.md").read_text() == "mine"
    CliRunner().invoke(command, [str(folder), "--force"])
    assert ((folder / "SKILL.md").read_text(), (folder / "SKILL.md.bak").read_text()) == (TEXT, "mine")


def test_the_head_is_what_agents_read() -> None:
    head = TEXT.split("---\n")[1]

    assert re.findall(r"^(\w+): \S", head, re.MULTILINE) == ["name", "description"]


@pytest.mark.parametrize("line", re.findall(r"`(composesim [^`]+)`", TEXT))
def test_every_command_is_understood(line: str) -> None:
    _, verb, *words = shlex.split(line)
    found = group.get_command(click.Context(group), verb)

    assert found is not None
    known = {name for param in found.params for name in param.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_every_exit_code_of_a_verdict_is_explained() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)}

    assert set(EXIT_CODES.values()) <= codes


def test_every_field_exists() -> None:
    schema = json.dumps(SCHEMA)
    fields = ("verdict", "cause", "place", "checks", "follows", "detail", "hints", "coverage", "replicas", "traceback")

    assert [
        field for field in fields if f'"{field}"' not in schema or f"`{field}`" not in TEXT.replace("cause.", "")
    ] == []
