"""
Record commands on a terminal, and draw them as an animated SVG of a minute: `python -m scripts.terminal_recording PICTURE.svg`.

Commands, outputs and their order are real. Waits are cut short, so that there is time to read. It is animated with SMIL, without
scripts, and so it also moves as an image of a page.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from rich.text import Text

from scripts.terminal_picture import COLUMNS, SVG, draw, record, screen, without_names

SECONDS = 60.0
LONGEST_WAIT_S = 1.5  # as long as `explain` shows a state of a drawing
TYPED, TYPING_S = 3, 0.12  # characters at a time
ANSWERS = {"learn run 2": "64"}  # a common one, which is wrong
FIX = (
    r"sed -i -e 's/shuffle=True/sampler=DistributedSampler(data)/' \\" + "\n"
    "  -e 's/import DataLoader/&, DistributedSampler/' 02-samples/script.py"
).replace(r"\\", "\\")
SCENES = (  # each begins on an empty terminal
    ("composesim learn init lessons",),
    ("cd lessons", "composesim learn run 2"),
    ("composesim learn hint", FIX, "composesim learn run"),
    ("composesim explain ring",),
)
_LINE, _BASE, _MARGIN, _WIDTH = 24.4, 18.5, 24, 1416


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A line of a terminal, from `begin` until `end`, in seconds."""

    row: int
    text: str  # with colors
    begin: float
    end: float


@dataclass
class Terminal:
    """What a terminal shows at present, and what it has shown."""

    lines: list[str] = field(default_factory=list)
    since: list[float] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)

    def show(self, lines: Sequence[str], now: float) -> None:
        """Replace the lines that have changed."""
        since = []
        for row, (old, new) in enumerate(zip_longest(self.lines, lines)):
            if old is not None and old != new and old:
                self.shown.append(Shown(row=row, text=old, begin=self.since[row], end=now))
            if new is not None:
                since.append(self.since[row] if old == new else now)
        self.lines, self.since = [*lines], since


def recorded(folder: Path) -> list[list[Shown]]:
    """Run the commands of all scenes, the first of them in this folder, and return what each scene shows."""
    outputs: list[list[list[tuple[float, list[str]]]]] = []
    for scene in SCENES:
        outputs.append([])
        for command in scene:
            outputs[-1].append(_states(command, folder))
            folder = folder / command.removeprefix("cd ") if command.startswith("cd ") else folder
    brief = _played(outputs, 0.0)
    lines = sum(len(states[-1][1]) for scene in outputs for states in scene)
    return _played(outputs, (SECONDS - brief[-1][-1].end) / lines)


def _states(command: str, folder: Path) -> list[tuple[float, list[str]]]:
    """Return what a command has printed after each of its waits, which are cut short."""
    answer = next((text for words, text in ANSWERS.items() if command.endswith(words)), "")
    printed, before, now, states = "", 0.0, 0.0, []
    for moment, text in record(command, folder, answer):
        now += min(moment - before, LONGEST_WAIT_S)
        printed, before = printed + text, moment
        states.append((now, screen(without_names(printed).rstrip("\n"))))
    return states or [(0.0, [])]


def _played(outputs: Sequence[Sequence[list[tuple[float, list[str]]]]], pause: float) -> list[list[Shown]]:
    """Return what each scene shows, if there are `pause` seconds to read each line that a command leaves."""
    now, scenes = 0.0, []
    for commands, states_of_all in zip(SCENES, outputs, strict=True):
        terminal = Terminal()
        for command, states in zip(commands, states_of_all, strict=True):
            above = terminal.lines
            for count in range(0, len(command) + TYPED, TYPED):
                terminal.show([*above, *_prompt(command[:count])], now)
                now += TYPING_S
            above = terminal.lines
            for moment, lines in states:
                terminal.show([*above, *lines], now + moment)
            now += states[-1][0] + pause * len(states[-1][1])
        terminal.show([], now)
        scenes.append(terminal.shown)
    return scenes


def _prompt(typed: str) -> list[str]:
    first, *more = typed.split("\n")
    return [f"\x1b[1;32m$\x1b[0m \x1b[1m{first}\x1b[0m", *(f"> \x1b[1m{line}\x1b[0m" for line in more)]


def animated(scenes: Sequence[Sequence[Shown]]) -> str:
    """Return the SVG. Without animation, it shows the end."""
    every = [shown for scene in scenes for shown in scene]
    texts = list(dict.fromkeys(shown.text for shown in every))
    if wide := [text for text in texts if Text.from_ansi(text).cell_len > COLUMNS]:
        raise SystemExit(f"more than {COLUMNS} columns: {wide[0]}")
    drawn = draw("", texts)
    styles = "".join(re.findall(r"\.terminal-r\d+ \{[^}]*\}", drawn))
    parts = _rows_of(drawn)
    height = (max(shown.row for shown in every) + 1) * _LINE + 2 * _MARGIN
    last = max(shown.end for shown in every)
    groups = "".join(
        f"<g>{''.join(_group(shown, parts[texts.index(shown.text)], last) for shown in scene)}</g>\n"
        for scene in scenes
    )
    commands = " ; ".join(command for scene in SCENES for command in scene)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:g}" xmlns="http://www.w3.org/2000/svg" role="img">\n'
        f"<title>A lesson of composesim learn in a terminal</title>\n<desc>{escape(commands)}</desc>\n"
        "<style>text { font: 20px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre; }"
        f"{styles}</style>\n"
        f'<rect width="{_WIDTH}" height="{height:g}" rx="8" fill="#292929"/>\n'
        f'<g transform="translate({_MARGIN},{_MARGIN + _BASE})">\n{groups}</g>\n</svg>\n'
    )


def _rows_of(drawn: str) -> list[str]:
    """Return the elements of each line that `draw` has drawn, below the command."""
    rows: dict[int, str] = {}
    for group in ElementTree.fromstring(drawn).iter(f"{SVG}g"):
        if group.get("class") == "terminal-matrix":
            for text in group.iter(f"{SVG}text"):
                if (text.text or "").strip():
                    place = f'class="{text.get("class")}" x="{text.get("x")}" textLength="{text.get("textLength")}"'
                    row = round((float(text.attrib["y"]) - 20) / _LINE)
                    rows[row] = f"{rows.get(row, '')}<text {place}>{escape(text.text or '')}</text>"
    return [rows.get(row, "") for row in range(1, max(rows) + 1)]


def _group(shown: Shown, elements: str, last: float) -> str:
    """Return a line, which is visible at its time."""
    if shown.end - shown.begin < 0.01:
        return ""
    times = f"0;{shown.begin / last:.4f};{shown.end / last:.4f}"
    values = f'values="hidden;visible;hidden" keyTimes="{times}" dur="{last:g}s"'
    if shown.end >= last:
        values = f'values="hidden;visible" keyTimes="{times.rpartition(";")[0]}" dur="{last:g}s"'
    state = "visible" if shown.end >= last else "hidden"
    animate = f'<animate attributeName="visibility" calcMode="discrete" repeatCount="indefinite" {values}/>'
    return f'<g transform="translate(0,{shown.row * _LINE:.1f})" visibility="{state}">{animate}{elements}</g>'


def texts_of(picture: str) -> list[list[str]]:
    """Return the lines with which each scene of a picture ends, without colors and spaces."""
    found = []
    for scene in ElementTree.fromstring(picture).findall(f"{SVG}g/{SVG}g"):
        ends = [(_end(line), "".join("".join(line.itertext()).split())) for line in scene]
        found.append([text for end, text in ends if end == max(end for end, _ in ends)])
    return found


def _end(line: ElementTree.Element) -> float:
    animate = line.find(f"{SVG}animate")
    assert animate is not None
    times = animate.attrib["keyTimes"].split(";")
    return float(times[2]) if len(times) > 2 else 1.0


def main() -> None:
    """Record in a temporary folder, and write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        Path(sys.argv[1]).write_text(animated(recorded(Path(folder))), encoding="utf-8")


if __name__ == "__main__":
    main()
