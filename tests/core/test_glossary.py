"""The glossary and the pages of `composesim explain` are one source."""

from __future__ import annotations

from pathlib import Path

import pytest

from compose_sim.core.glossary import find_topic, parse_glossary, parse_page
from compose_sim.errors import SpecError
from tests.builders import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
TOPICS = parse_glossary(GLOSSARY.read_text())
PAGES = sorted((ROOT / "docs" / "explain").glob("*.md"))


def test_every_row_of_the_glossary_is_a_topic() -> None:
    rows = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]

    assert len(TOPICS) == len(rows) - 1
    assert all(topic.definition for topic in TOPICS.values())


def test_every_page_is_linked_from_its_term() -> None:
    assert {topic.page for topic in TOPICS.values() if topic.page} == {f"explain/{page.name}" for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_has_text_and_a_drawing_that_fits_a_terminal(page: Path) -> None:
    text, frames = parse_page(page.read_text())

    assert text
    assert "](" not in text
    assert len(frames) >= 2
    assert max(len(line) for frame in frames for line in frame.splitlines()) <= 80


@pytest.mark.parametrize(
    ("name", "term"),
    [
        ("allreduce", "all-reduce"),
        ("DDP", "DDP"),
        ("fsdp", "FSDP"),
        ("World_Size", "world size"),
        ("Buckets", "bucket"),
    ],
)
def test_a_topic_is_found_whatever_its_case_hyphens_and_number(name: str, term: str) -> None:
    assert find_topic(name, TOPICS).term == term


@pytest.mark.parametrize(
    "name",
    [
        *(
            "barrier",
            "broadcast",
            "all-gather",
            "reduce-scatter",
            "all-to-all",
            "process group",
            "device mesh",
            "DTensor",
        ),
        *("ZeRO", "shard", "replica", "tensor parallelism", "pipeline parallelism", "micro-batch", "bubble"),
        *("resume", "random state", "warm-up"),
        *("checkpoint", "resharding", "epoch", "no_sync", "gradient accumulation", "activation checkpointing"),
        *("mixed precision", "loss scaling", "global batch", "straggler", "flight recorder", "torchrun"),
    ],
)
def test_words_of_the_course_are_explained(name: str) -> None:
    assert find_topic(name, TOPICS).term == name


@pytest.mark.parametrize(
    ("name", "term"),
    [("DistributedSampler", "sampler"), ("fully_shard", "FSDP"), ("ZeRO-3", "ZeRO"), ("send", "point-to-point")],
)
def test_a_term_is_found_by_its_other_names(name: str, term: str) -> None:
    assert find_topic(name, TOPICS).term == term


def test_a_name_leads_to_one_term() -> None:
    names = [name.lower() for topic in TOPICS.values() for name in (topic.term, *topic.also)]

    assert [name for name in names if names.count(name) > 1] == []


def test_an_unknown_topic_suggests_the_nearest() -> None:
    with pytest.raises(SpecError, match="did you mean 'bucket'"):
        find_topic("bukcet", TOPICS)
