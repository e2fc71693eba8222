"""Show the help of a verb, as `composesim VERB --help` does."""

from __future__ import annotations

import click


@click.command("help", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, metavar="[VERB]...")
@click.pass_context
def command(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of VERB, or of composesim."""
    context.find_root().command.main([*words, "--help"], prog_name="composesim", standalone_mode=False)
