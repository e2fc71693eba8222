"""Read and write text that people type: durations, sizes, misspelled names, and scripts without a file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like `name`, or "" if none is; - and _ are the same."""
    plain = {each.replace("_", "-"): each for each in known}
    return next((plain[each] for each in get_close_matches(name.lower().replace("_", "-"), plain, n=1)), "")


def nearest_file(name: str, known: Iterable[str]) -> str:
    """Return the known file whose name without the ending is most like that of `name`, or ""."""
    stems = {file.partition(".")[0]: file for file in known}
    return stems.get(nearest(name.partition(".")[0], stems), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known one, or all of them, if any."""
    names = list(known)
    near = nearest(name, names)
    return f"; did you mean '{near}'?" if near else f"; there are {', '.join(names)}" if names else ""


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


_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([bkmgt]?)(?:i?b)?", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h)\s*)+", re.IGNORECASE)
_PART = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)(ms|s|m|h)", re.IGNORECASE)
_MAX_DIGITS = 30  # more would be infinity


def on_one_line(text: str) -> str:
    """Return text with each control character and line break escaped as in Python."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def parse_bytes(text: str | int) -> int:
    """Return the bytes of `512m`, `2g`, `1.5GiB` or a plain number; raise ValueError for other text."""
    match = _SIZE.fullmatch(str(text).strip())
    if not match or len(match[1]) > _MAX_DIGITS:
        raise ValueError(f"'{text!s:.80}' is not a size: write it like 512m or 2g")
    return int(float(match[1]) * _BYTES[match[2].lower()])


def parse_seconds(text: str | float) -> float:
    """Return the seconds of `90s`, `10m`, `1h30m` or a plain number; raise ValueError for other text."""
    plain = str(text).strip()
    if len(plain) <= _MAX_DIGITS and re.fullmatch(r"[0-9]+(\.[0-9]+)?", plain):
        return float(plain)
    if len(plain) > _MAX_DIGITS or not _DURATION.fullmatch(plain):
        raise ValueError(f"'{text!s:.80}' is not a duration: write it like 90s, 10m or 1h30m")
    return sum(float(number) * _SECONDS[unit.lower()] for number, unit in _PART.findall(plain))


def format_bytes(count: float) -> str:
    """Return `1.5 KiB` for 1536: at most three figures."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def format_count(number: int, what: str) -> str:
    """Return `1 node`, `3 nodes`."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def format_seconds(seconds: float) -> str:
    """Return `0.84 s`, `12.3 s` or `2 min 05 s`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
