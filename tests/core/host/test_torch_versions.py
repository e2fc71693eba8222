"""The tested range of torch is stated once, and every version is inside it, older, newer or unknown."""

from __future__ import annotations

import pytest

from compose_sim.core.host.torch_versions import NEWEST, OLDEST, REQUIREMENT, TESTED, torch_range
from tests.builders import ROOT


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        *((version, "tested") for version in TESTED),
        ("2.15.0+cu132", "tested"),
        ("2.15.0a0+git123", "tested"),
        ("2.10.0", "tested"),
        ("2.12", "tested"),
        ("2.8.1", "older"),
        ("1.13.1", "older"),
        ("2.16.0", "newer"),
        ("2.16.0a0+git123", "newer"),
        ("2.150.0", "newer"),
        ("3.0", "newer"),
        ("", "unknown"),
        ("2", "unknown"),
        ("git-2.13.0", "unknown"),
        ("9" * 5000 + ".1", "unknown"),
    ],
    ids=lambda value: value[:20],
)
def test_a_version_is_compared_with_the_tested_range(version: str, expected: str) -> None:
    assert torch_range(version) == expected


def test_the_tested_versions_go_from_the_oldest_to_the_newest() -> None:
    minors = [tuple(map(int, version.split(".")[:2])) for version in TESTED]

    assert minors == sorted(set(minors))
    assert (minors[0], minors[-1]) == (OLDEST, NEWEST)


def test_the_page_names_the_tested_range() -> None:
    page = " ".join((ROOT / "docs" / "torch.md").read_text().split())

    assert f"torch {'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}" in page
    assert f"pip install '{REQUIREMENT}'" in page
