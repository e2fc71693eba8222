"""Draw what a command prints on a terminal: `python -m scripts.terminal_picture PICTURE.svg COMMAND`."""

from __future__ import annotations

import codecs
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 112, 50
_MOVE = re.compile(r"\x1b\[(\d*)([A-HJK])|\x1b\[\?\d+[hl]")  # the colors, \x1b[…m, stay in the text
SVG = "{http://www.w3.org/2000/svg}"
# Rich's own format loads a font from a server.
_FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: {char_height}px; line-height: {line_height}px;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


def print_of(command: str, folder: Path) -> str:
    """Return what the command writes to a terminal of COLUMNS columns, with control sequences."""
    return without_names("".join(text for _, text in record(command, folder)))


def record(command: str, folder: Path, answer: str = "") -> Iterator[tuple[float, str]]:
    """Yield what the command writes to a terminal, each part with the seconds since its start; `answer` is typed if it asks."""
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {
        **os.environ,
        "TERM": "xterm-256color",
        "COLUMNS": f"{COLUMNS}",  # another one may be in the environment, as under pytest-xdist
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    environment.pop("CI", None)
    started = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=environment, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    decoder, end = codecs.getincrementaldecoder("utf-8")(), ""
    with os.fdopen(ours, "r+b", buffering=0) as output:
        for chunk in _chunks(output):
            text = decoder.decode(chunk)
            yield time.monotonic() - started, text
            end = (end + text)[-2:]
            if answer and end == ": ":  # a prompt
                output.write(f"{answer}\n".encode())
                answer = ""
    process.wait()


def without_names(text: str) -> str:
    """Return a text without the names of this machine."""
    for named, plain in (
        (str(Path(sys.executable).parent), "~/venv/bin"),
        (f"host {os.uname().nodename}", "host pc"),
    ):
        text = text.replace(named, plain)
    return text


def _chunks(output: io.RawIOBase) -> Iterator[bytes]:
    try:
        while chunk := output.read(1 << 16):
            yield chunk
    except OSError:  # how Linux reports the end of a terminal
        return


def screen(printed: str) -> list[str]:
    """Return the lines that stay on the terminal, with their colors: live lines are drawn again and again."""
    lines, row = [""], 0
    for part in re.split(r"(\n|\r|\x1b\[\d*[A-HJK]|\x1b\[\?\d+[hl])", printed):
        move = _MOVE.fullmatch(part)
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            continue  # followed by a newline, or by the removal of the line
        elif not move:
            lines[row] += part
        elif move[2] == "A":
            row -= int(move[1] or 1)
        elif move[2] == "K":
            lines[row] = ""
    return [line.rstrip() for line in lines]


def draw(command: str, lines: list[str]) -> str:
    """Return the SVG of a terminal in which the command was typed."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    for line in lines:
        console.print(Text.from_ansi(line))
    picture = console.export_svg(title="composesim", code_format=_FORMAT, unique_id="terminal")
    return picture.replace("<style>", f"<desc>{escape(command)}</desc>\n<style>", 1)


def command_of(picture: str) -> str:
    """Return the command whose output a picture shows."""
    return ElementTree.fromstring(picture).findtext(f"{SVG}desc") or ""


def text_in(picture: str) -> str:
    """Return the text of a picture that `draw` made, without spaces and line breaks."""
    rows: dict[float, list[str]] = {}
    for group in ElementTree.fromstring(picture).iter(f"{SVG}g"):
        if group.get("class") == "terminal-matrix":
            for text in group.iter(f"{SVG}text"):
                rows.setdefault(float(text.attrib["y"]), []).append("".join((text.text or "").split()))
    return "".join(word for _, words in sorted(rows.items()) for word in words)


def main() -> None:
    """Run the command here, and write the picture."""
    picture, command = Path(sys.argv[1]), sys.argv[2]
    picture.write_text(draw(command, screen(print_of(command, Path.cwd()))))


if __name__ == "__main__":
    main()
