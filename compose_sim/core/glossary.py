"""Read the glossary, and the pages with drawings that explain some of its terms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from compose_sim.core.text import did_you_mean
from compose_sim.errors import SpecError

_ROW = re.compile(
    r"^\| (?:\[(?P<linked>[^]\n]{1,99})\]\((?P<page>[^)\n]{1,99})\)|(?P<plain>[^|,\[\n]{1,99}?))(?P<also>(?:, [^|,\n]{1,99})*)"
    r" \| (?P<text>.*) \|$",
    re.MULTILINE,
)
_FRAME = re.compile(r"^```text\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^]]{1,99})\]\([^)]{1,199}\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A term of the glossary."""

    term: str
    definition: str
    page: str = ""  # relative to the glossary; "" if there is none
    also: tuple[str, ...] = ()  # other names, such as that of a class of torch


def parse_glossary(text: str) -> dict[str, Topic]:
    """Return the terms of the glossary, in order."""
    topics = {}
    for row in _ROW.finditer(text):
        term = row["linked"] or row["plain"]
        if term != "Term":
            also = tuple(row["also"].split(", ")[1:])
            topics[term] = Topic(term=term, definition=_LINK.sub(r"\1", row["text"]), page=row["page"] or "", also=also)
    return topics


def find_topic(name: str, topics: Mapping[str, Topic]) -> Topic:
    """Return the topic of this name, ignoring case, hyphens and the plural; raise SpecError with the nearest term."""
    plain = {_plain(term): topic for topic in topics.values() for term in (topic.term, *topic.also)}
    for form in (word := _plain(name), word.removesuffix("s"), word.removesuffix("es")):
        if form in plain:
            return plain[form]
    raise SpecError(f"'{name}' is not in the glossary{did_you_mean(name, topics)}", hint="composesim explain")


def parse_page(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the text of a page without its title and links, and the frames of its drawing."""
    frames = tuple(match[1].rstrip("\n") for match in _FRAME.finditer(text))
    words = _LINK.sub(r"\1", _FRAME.sub("", text).partition("\n")[2])
    return " ".join(words.split()), frames


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
