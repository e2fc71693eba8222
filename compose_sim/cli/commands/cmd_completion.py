"""Print the script with which a shell completes verbs and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from compose_sim.cli.console import echo

_PROGRAM = "composesim"
_SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    r"""Print the completion script for SHELL.

    \b
    bash: composesim completion bash > ~/.local/share/bash-completion/completions/composesim
    zsh:  composesim completion zsh > "${fpath[1]}/_composesim"
    fish: composesim completion fish > ~/.config/fish/completions/composesim.fish
    """
    completion = get_completion_class(shell)
    assert completion is not None  # click supports all three
    echo(completion(context.find_root().command, {}, _PROGRAM, "_COMPOSESIM_COMPLETE").source())
