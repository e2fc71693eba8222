"""The recording at the top of the lessons' page shows what the commands print; `make pictures` makes it again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.terminal_recording import SCENES, SECONDS, animated, recorded, texts_of
from tests.builders import ROOT

FOLDER = ROOT / "docs" / "plugins" / "learn"
RECORDING = (FOLDER / "pictures" / "course.svg").read_text()


def test_the_recording_is_a_small_picture_that_moves_for_a_minute_without_scripts() -> None:
    begins = (FOLDER / "learn.md").read_text().partition("\n## ")[0]

    assert "](pictures/course.svg)" in begins
    assert len(RECORDING.encode()) < 200_000
    assert {float(each) for each in re.findall(r' dur="([\d.]+)s"', RECORDING)} == {SECONDS}
    assert not re.search(r"<script|https?://(?!www\.w3\.org/)|\son\w+=", RECORDING)
    assert len(texts_of(RECORDING)) == len(SCENES)


@pytest.mark.train
def test_the_recording_shows_what_the_commands_print(tmp_path: Path) -> None:
    again = [without_figures(scene) for scene in texts_of(animated(recorded(tmp_path)))]

    assert "✘#-samplesnotyet" in " ".join(again[1])
    assert "✔#-samplespassed" in " ".join(again[2])
    assert again == [without_figures(scene) for scene in texts_of(RECORDING)]


def without_figures(lines: list[str]) -> list[str]:
    """Return what is the same in every run: durations, losses and samples differ."""
    return [re.sub(r"\d[\d.]*", "#", line) for line in lines]
