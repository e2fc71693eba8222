"""Print the script with which a shell completes verbs and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from compose_sim.cli.console import echo
from compose_sim.cli.spelling import OneOf

_PROGRAM = "composesim"
_SHELLS = ("bash", "zsh", "fish")


_HELP = """Print the completion script for SHELL.

\b
bash, in ~/.bashrc:
  source <(composesim completion bash)
zsh, in ~/.zshrc after compinit:
  source <(composesim completion zsh)
fish, once:
  composesim completion fish > ~/.config/fish/completions/composesim.fish
"""


@click.command("completion", help=_HELP)
@click.argument("shell", metavar="SHELL", type=OneOf(_SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script; the help text is in _HELP."""
    completion = get_completion_class(shell)
    assert completion is not None  # click supports all three
    echo(completion(context.find_root().command, {}, _PROGRAM, "_COMPOSESIM_COMPLETE").source())
