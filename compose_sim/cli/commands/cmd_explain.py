"""Explain a term of the glossary, with a drawing that moves."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click

from compose_sim import assets
from compose_sim.cli.console import echo, print_table, print_text
from compose_sim.core.glossary import find_topic, parse_glossary, parse_page
from compose_sim.core.request.names import CHECK_IDS
from compose_sim.errors import SpecError

_FRAME_S = 1.5


@click.command("explain")
@click.argument("term", required=False, metavar="[TERM]")
def command(term: str | None) -> None:
    """Explain TERM, such as allreduce, ring, ddp, fsdp, bucket or sampler; without it, list the glossary.

    In a terminal the drawing moves; elsewhere, all of its states are printed.
    """
    docs = assets.root() / "docs"
    topics = parse_glossary((docs / "glossary.md").read_text(encoding="utf-8"))
    if term is None:
        rows = [("▸" if topic.page else "", topic.term, topic.definition) for topic in topics.values()]
        print_table(("", "term", "meaning (▸ with a drawing)"), rows)
        return
    if term in CHECK_IDS:
        raise SpecError(f"'{term}' is a check, and not in the glossary", hint=f"composesim check --explain {term}")
    topic = find_topic(term, topics)
    echo(click.style(", ".join((topic.term, *topic.also)), bold=True))
    print_text(topic.definition)
    if topic.page:
        text, frames = parse_page((docs / topic.page).read_text(encoding="utf-8"))
        echo()
        print_text(text)
        echo()
        _play(frames)


def _play(frames: Sequence[str]) -> None:
    """Show the frames of a drawing one after the other in a terminal, or print all of them."""
    if not sys.stdout.isatty():
        echo("\n\n".join(frames))
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    height = max(frame.count("\n") for frame in frames)
    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        for number, frame in enumerate(frames):
            live.update(Text(frame + "\n" * (height - frame.count("\n"))), refresh=True)
            time.sleep(_FRAME_S if number + 1 < len(frames) else 0)
