"""Suggest the known name that a misspelled one most likely means."""

from __future__ import annotations

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
    """Return the end of a message about an unknown name: the nearest known one, or all of them."""
    names = list(known)
    near = nearest(name, names)
    return f"; did you mean '{near}'?" if near else f"; there are {', '.join(names)}"
