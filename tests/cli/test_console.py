"""The output of `cli` acts neither on a terminal nor on the runner of a CI job."""

from __future__ import annotations

import json
import sys

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compose_sim.cli.console import (
    echo,
    echo_workflow_command,
    line_of_node,
    node_prefix,
    print_json,
    print_table,
    say,
    wrapped,
)
from compose_sim.core.report.ci import workflow_commands
from tests.audit.readers import control_characters, workflow_commands_in
from tests.builders import a_report
from tests.core.report.test_ci import a_cause

HOSTILE = "\x1b]52;c;cHduZWQ=\x07\x1b[2J\x1b[31mred\x9b31m\ud800 kept\r\n"


@pytest.mark.parametrize("write", [echo, say])
def test_of_control_characters_only_colors_and_lines_are_printed(write, capsys: pytest.CaptureFixture[str]) -> None:
    write(HOSTILE)

    captured = capsys.readouterr()
    assert (captured.out + captured.err).split() == ["red31m", "kept"]  # a pipe gets no colors either


def test_json_keeps_every_character_and_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": HOSTILE})

    text = capsys.readouterr().out
    assert json.loads(text) == {"text": HOSTILE}
    assert control_characters(text) == []


TEXT = "✘ set-epoch  ranks read the same order in epochs 0 and 1, as /a/path/that/is/longer/than/the/screen shows"


def test_words_are_wrapped_with_a_hanging_indent_and_long_ones_stay_whole() -> None:
    assert wrapped(TEXT, 40, hang=4).splitlines() == [
        "✘ set-epoch  ranks read the same order",
        "    in epochs 0 and 1, as",
        "    /a/path/that/is/longer/than/the/screen",
        "    shows",
    ]


def test_colors_take_no_columns_and_lines_that_fit_stay_as_they_are() -> None:
    colored = "\x1b[31m\x1b[1mred\x1b[0m" + " word" * 7
    assert wrapped(colored, 38) == colored
    assert wrapped("a  table   row\n\n  indented", 14) == "a  table   row\n\n  indented"


def test_a_command_to_copy_is_not_broken() -> None:
    line = "Try: composesim up --mount /data:/data:ro --nodes 4 train.py"
    assert wrapped(line, 20) == line


def test_a_table_fits_into_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "50")
    print_table(("run", "script", "project"), [("digits-a3f0", "train_a_long_name.py", "/home/me/projects/digits")])
    print_table(("fault", "what it does"), [("kill", "ends the processes of a node, which comes back after --for")])

    assert [click.unstyle(line) for line in capsys.readouterr().out.splitlines()] == [
        "run          script                project",
        "digits-a3f0  train_a_long_name.py  …rojects/digits",
        "fault  what it does",
        "kill   ends the processes of a node, which comes",
        "       back after --for",
    ]


@given(st.text(st.sampled_from(" ab\n"), max_size=200), st.integers(4, 40))
def test_wrapping_keeps_every_word(text: str, width: int) -> None:
    lines = wrapped(text, width)

    assert lines.split() == text.split()
    assert all(len(line) <= width or " " not in line.strip() for line in lines.split("\n"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(["::", "##[", "error", "stop-commands", "]", " ", "\n", "\x1b[2J", "\r", "a"])).map(
        "".join
    )
)
def test_a_runner_executes_only_annotations(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GITHUB_ACTIONS", "true")
        annotation, *_ = workflow_commands(a_report(cause=a_cause(message=text), verdict="failed"), path_of=str)
        with CliRunner().isolation() as (out, *_):
            echo(text)
            echo_workflow_command(annotation, err=False)
            echo(text, nl=False)
            printed = out.getvalue().decode()

    assert len(workflow_commands_in(printed)) == 1


@pytest.mark.parametrize(
    ("line", "end"),
    [
        ("plain", ""),
        ("\x1b[31mred", "\x1b[0m"),
        ("\x1b[1;32mgreen\x1b[0m", ""),
        ("\x1b[31mred\x1b[m", ""),
        ("\x1b[0;7m", "\x1b[0m"),
    ],
)
def test_a_color_that_a_line_leaves_open_ends_with_it(line: str, end: str) -> None:
    assert line_of_node("node-0", None, 6, line) == node_prefix("node-0", None, 6) + line + end
