"""Test which options of a script have to do with checkpoints."""

from __future__ import annotations

import pytest

from compose_sim.plugins.resume.core.script_options import ScriptOption, command_with, resuming_option, saving_interval

SCRIPT = """
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("-r", "--resume-from")
parser.add_argument("--resume", action="store_true")
parser.add_argument("--save_every", type=int, default=500)
"""


def test_a_switch_of_the_usual_name_comes_first() -> None:
    assert resuming_option([SCRIPT]) == ScriptOption(name="--resume", is_switch=True)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ((), "500"),
        (("--save_every", "90"), "90"),
        (("--epochs", "2", "--save_every=70"), "70"),
        (("--save_every",), ""),
    ],
)
def test_the_interval_has_the_value_that_was_given(arguments: tuple[str, ...], value: str) -> None:
    assert saving_interval([SCRIPT], arguments) == ScriptOption(name="--save_every", value=value)


@pytest.mark.parametrize("text", ["", "not python (", 'parser.add_argument(name)\nparser.add_argument("--steps")'])
def test_other_scripts_have_none(text: str) -> None:
    assert (resuming_option([text]), saving_interval([text])) == (None, None)


def test_a_hint_keeps_what_was_typed() -> None:
    typed = ("check", "--resume", "--nodes", "2", "train.py", "--steps", "9")

    assert (
        command_with(typed, ("--checkpoint-folder", "/a b"), ("--save_every", "3"))
        == "composesim check --resume --checkpoint-folder '/a b' --nodes 2 train.py --steps 9 --save_every 3"
    )
