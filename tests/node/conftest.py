"""Clusters for the tests of the node's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.harness import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Make clusters that run a script given as text; all their processes are killed after the test."""
    clusters: list[Cluster] = []

    def make(script: str, *arguments: str, **options: Any) -> Cluster:
        folder = tmp_path / f"run-{len(clusters)}"
        file = tmp_path / "work" / "script.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(script)
        clusters.append(Cluster(folder, [str(file), *arguments], **options))
        return clusters[-1]

    yield make
    for made in clusters:
        made.close()
