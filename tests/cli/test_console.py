"""The output of `cli` acts neither on a terminal nor on the runner of a CI job."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compose_sim.cli.console import echo, echo_workflow_command, line_of_node, node_prefix, print_json, say
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
