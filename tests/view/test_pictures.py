"""Pictures in the documents show the page as it is."""

from __future__ import annotations

import re
import secrets
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from scripts.terminal_picture import command_of, draw, print_of, screen, text_in
from tests.builders import ROOT

RUN = ROOT / "docs" / "pictures" / "run.svg"


def test_all_pictures_of_the_page_were_made_from_the_present_code() -> None:
    """`make pictures` makes them again. The name order is that of the shell."""
    sources = sorted((ROOT / "compose_sim" / "view" / "page").iterdir())
    made_from = [line.split() for line in (ROOT / "docs" / "pictures" / "made-from").read_text().splitlines()]
    pictures = sorted((ROOT / "docs" / "pictures").glob("*.png"))

    assert made_from == [
        [sha256(b"".join(path.read_bytes() for path in sources)).hexdigest(), "-"],
        *([sha256(path.read_bytes()).hexdigest(), f"./{path.name}"] for path in pictures),
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


@pytest.mark.parametrize(
    "page",
    [
        *("check", "elastic", "emulation", "faults", "gpu-sharing", "hangs", "launchers", "links", "nodes", "recipes"),
        *("scenarios", "view"),
        *(f"plugins/{page.parent.name}/{page.stem}" for page in (ROOT / "docs" / "plugins").glob("*/*-cluster.md")),
    ],
)
def test_a_page_about_a_concept_has_a_picture(page: str) -> None:
    assert re.search(
        r"!\[[^]]+\]\(pictures/[a-z-]+\.(png|svg)\)|<img src=\"pictures/[a-z-]+\.png\" alt=",
        (ROOT / "docs" / f"{page}.md").read_text(),
    )


@pytest.mark.train
@pytest.mark.docker
def test_the_picture_of_a_terminal_shows_what_the_command_prints(tmp_path: Path) -> None:
    """`make pictures` makes it again."""
    shutil.copy(ROOT / "train_ddp.py", tmp_path)
    shutil.copytree(ROOT / "data", tmp_path / "data")
    command, name = command_of(RUN.read_text()), f"demo-{secrets.token_hex(3)}"
    printed = print_of(command.replace("--name demo", f"--name {name}"), tmp_path).replace(name, "demo")

    assert "✔ passed" in printed
    assert _without_figures(text_in(draw(command, screen(printed)))) == _without_figures(text_in(RUN.read_text()))


def _without_figures(text: str) -> str:
    """Return what is the same in every run: no numbers, no digest of an image, no build of torch, no slowest rank."""
    text = re.sub(r"slowestrank.*?\)(?=look)", "", re.sub(r"\([0-9a-f]{12}\)|\+(cpu|cu\d+)", "", text))
    return re.sub(r"\d[\d.]*([KMG]iB|B)?", "#", text)
