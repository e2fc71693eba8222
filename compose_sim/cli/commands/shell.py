"""Help a user at the command line: the help of a verb, and the script with which a shell completes verbs and options."""

from __future__ import annotations

import click

from compose_sim.cli.console import echo
from compose_sim.cli.spelling import OneOf


@click.command("help", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, metavar="[VERB]...")
@click.pass_context
def help_command(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of VERB, or of composesim."""
    context.find_root().command.main([*words, "--help"], prog_name="composesim", standalone_mode=False)


_PROGRAM = "composesim"
_SHELLS = ("bash", "zsh", "fish")


_COMPLETION_HELP = """Print the completion script for SHELL.

\b
bash, in ~/.bashrc:
  source <(composesim completion bash)
zsh, in ~/.zshrc after compinit:
  source <(composesim completion zsh)
fish, once:
  composesim completion fish > ~/.config/fish/completions/composesim.fish
"""


@click.command("completion", help=_COMPLETION_HELP)
@click.argument("shell", metavar="SHELL", type=OneOf(_SHELLS))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the script; the help text is in _COMPLETION_HELP."""
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None  # click supports all three
    echo(completion(context.find_root().command, {}, _PROGRAM, "_COMPOSESIM_COMPLETE").source())
