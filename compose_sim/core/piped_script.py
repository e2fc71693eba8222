"""Name a script that has no file, such as one from stdin, as Python does: `<stdin>`. Ranks run it from a temporary folder."""

from __future__ import annotations

import re

STDIN = "<stdin>"
CELL = "<cell>"  # of a notebook
FOLDER_PREFIX = "composesim-"  # of the temporary folder
_FOLDER = re.compile(rf"/{FOLDER_PREFIX}\w+/(?={STDIN}|{CELL})")


def without_temporary_folder(text: str) -> str:
    """Return the text with `<stdin>` in place of `/tmp/composesim-8m6r1lqo/<stdin>`."""
    if "/<" not in text:
        return text
    *before, last = _FOLDER.split(text)  # no regular expression for the path: that takes long on hostile text
    return "".join([*map(_without_path_at_end, before), last])


def _without_path_at_end(text: str) -> str:
    word = max(text.rfind(end) for end in " \t\n\"'`") + 1
    slash = text.find("/", word)
    return text[:slash] if slash >= 0 else text
