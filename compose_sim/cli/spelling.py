"""Accept other spellings of options, and suggest the verb or the option that a misspelled one most likely means."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping

import click

from compose_sim.core.text import did_you_mean, nearest

_OTHER_NAMES = {"nnodes": "nodes"}  # of torchrun
_EXTRA = re.compile(r"Got unexpected extra argument \((\S+)\)")  # Click's words
MEANT = {"-n": "--nodes", "-np": "--nproc-per-node", "--node": "--nodes"}
_VERBS_MEANT = {
    "run": "up",
    "start": "up",
    "launch": "up",
    "stop": "down",
    "kill": "down",
    "list": "ps",
    "status": "ps",
}


class OneOf(click.Choice[str]):
    """One of some words; the error suggests the nearest one, or the one that a word of another tool stands for."""

    def __init__(self, choices: Iterable[str], meant: Mapping[str, str] | None = None) -> None:
        """Let `meant` map words that are not choices to the choice that they stand for."""
        super().__init__([*choices])
        self._meant = meant or {}

    def get_invalid_choice_message(self, value: str, ctx: click.Context | None) -> str:
        """Return the message with one suggestion, or else with all choices."""
        return f"there is no '{value}'{did_you_mean(self._meant.get(value.lower(), value), self.choices)}"


def normalize(name: str) -> str:
    """Return the name of an option, without dashes before it, as composesim spells it: torchrun also has underscores."""
    plain = name.replace("_", "-")
    return _OTHER_NAMES.get(plain, plain)


def normalized(word: str) -> str:
    """Return an option of a command line as composesim spells it."""
    name = word.lstrip("-")
    return word[: len(word) - len(name)] + normalize(name)


def no_such_verb(name: str, verbs: Iterable[str], context: click.Context) -> click.UsageError:
    """Return the error about an unknown verb, with the nearest one."""
    near = _VERBS_MEANT.get(name.lower()) or nearest(name, verbs)
    return click.UsageError(f"No such command '{name}'." + (f" Did you mean '{near}'?" if near else ""), context)


def with_suggestion(error: click.ClickException) -> click.ClickException:
    """Return an error about a command line with what the user most likely means, if that is known."""
    if isinstance(error, click.NoSuchOption) and error.ctx:
        words = f"No such option '{error.option_name}'.{_meant_by(error.option_name, error.ctx)}"
        return click.UsageError(words, error.ctx)
    if isinstance(error, click.UsageError) and error.ctx and (extra := _EXTRA.fullmatch(error.message)):
        takes_run = any("--run" in param.opts for param in error.ctx.command.params)
        suggestion = f" Did you mean '--run {extra[1]}'?" if takes_run else ""
        return click.UsageError(f"{error.message}.{suggestion}", error.ctx)
    return error


def _meant_by(name: str, context: click.Context) -> str:
    """Return the sentence about an unknown option, after a space: what the user most likely means, or nothing."""
    if name[1:].isdecimal():
        return " A number must be at least 1."
    if isinstance(context.command, click.Group) and name[2:] in context.command.commands:
        return f" Did you mean '{context.command_path} {name[2:]}'?"
    known = [spelling for param in context.command.params for spelling in param.opts]
    meant = MEANT.get(name, "")
    near = meant if meant in known else nearest(name, known)
    script = next((word for word in sys.argv[1:] if word.endswith(".py")), "") if "program" in known else ""
    if script and meant not in known and not near.startswith(name[:4]):
        return f" Options of {script} go after it: {context.command_path} {script} {name} …"
    return f" Did you mean '{near}'?" if near else ""
