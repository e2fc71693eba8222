"""What all tests share: the flag that rewrites golden files, and how xdist's workers share the tests."""

from __future__ import annotations

import pytest

LONGEST = "tests/zoo/test_zoo.py"  # minutes: begun last, it would keep one worker busy when the others are done


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the files in tests/golden; review the diff")


@pytest.hookimpl(tryfirst=True)  # before xdist adds the group to the ids
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Group tests for `--dist loadgroup`: one group of all that start containers, and one per file of the others.

    Containers of one test at a time: they wait for one daemon, and choose free subnets. The tests of a file share fixtures.
    """
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group_of(item)))
    clusters: dict[str, int] = {}
    for item in items:
        starts_ranks = any(item.get_closest_marker(name) for name in ("train", "docker"))
        clusters[_group_of(item)] = clusters.get(_group_of(item), 0) + starts_ranks
    items.sort(key=lambda item: (not _starts_containers(item), _file_of(item) != LONGEST, -clusters[_group_of(item)]))


def _group_of(item: pytest.Item) -> str:
    return "containers" if _starts_containers(item) else _file_of(item)


def _starts_containers(item: pytest.Item) -> bool:
    return item.get_closest_marker("docker") is not None


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
