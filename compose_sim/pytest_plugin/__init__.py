"""How does a test run on every rank of a cluster? With `@pytest.mark.composesim(nodes=2)`; this is pytest's side of it.

The tests of one pytest run whose clusters have the same shape share one cluster (cluster.py), whose ranks each run pytest (rank.py)
and are told which test comes next. Of their reports this process shows those of one rank (outcome.py) as its own.
Nothing but pytest and the standard library is imported before a marked test is due.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from compose_sim.pytest_plugin.cluster import Clusters

MARK = "composesim"
_SIGNATURE = "composesim(nodes=2, nproc_per_node=1, engine=None, backend='auto', timeout=300, init=True)"
_ENGINES = ("auto", "docker", "local")
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What clusters differ by; tests of one shape share one."""

    nodes: int
    nproc_per_node: int
    engine: str
    backend: str
    only: str = ""  # the one test that this cluster is for, where it begins the process group itself

    @property
    def world_size(self) -> int:
        """How many ranks it has."""
        return self.nodes * self.nproc_per_node


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a marked test asks for."""

    shape: Shape
    timeout_s: float


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which engine, where the mark does not say."""
    group = parser.getgroup("composesim")
    group.addoption(
        "--composesim-engine",
        choices=_ENGINES,
        help="what executes the nodes of tests marked composesim: auto, docker, local",
    )
    parser.addini("composesim_engine", "what executes the nodes of tests marked composesim", default="auto")


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, and take marked tests over, unless this process is a rank itself: there they just run."""
    config.addinivalue_line("markers", f"{_SIGNATURE}: run the test on every rank of a cluster")
    if not _is_rank():
        config.pluginmanager.register(_Runner(), "composesim-runner")


def _is_rank() -> bool:
    return "COMPOSESIM_RUN" in os.environ and "RANK" in os.environ


class _Runner:
    """Runs marked tests on clusters, in pytest's own process."""

    def __init__(self) -> None:
        self._clusters: Clusters | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """A mark that asks for what there is not is told before any test runs."""
        for item in items:
            wanted_by(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a marked test on its cluster; None for any other, and for one that is skipped wherever it runs."""
        wanted = wanted_by(item)
        if wanted is None or _is_skipped(item):
            return None
        if self._clusters is None:
            from compose_sim.pytest_plugin.cluster import Clusters

            self._clusters = Clusters(item.config)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = self._clusters.run(item, wanted, following=_following(item, nextitem, wanted))
        for report in (*reports, *_tear_down(item, nextitem)):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_sessionfinish(self) -> None:
        """Ctrl-C comes here too."""
        self.pytest_unconfigure()

    def pytest_unconfigure(self) -> None:
        """Leave no cluster behind."""
        if self._clusters is not None:
            self._clusters.close()
            self._clusters = None


def wanted_by(item: pytest.Item) -> Wanted | None:
    """What its mark asks for; None where it has none. UsageError for a mark that is wrong."""
    mark = item.get_closest_marker(MARK)
    if mark is None:
        return None
    try:
        return _wanted(item, *mark.args, **mark.kwargs)
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"{item.nodeid}: {error}; it is {_SIGNATURE}") from None


def _wanted(
    item: pytest.Item,
    nodes: int = 2,
    nproc_per_node: int = 1,
    engine: str | None = None,
    backend: str = "auto",
    timeout: Any = _TIMEOUT_S,
    init: bool = True,
) -> Wanted:
    engine = engine or item.config.getoption("--composesim-engine") or item.config.getini("composesim_engine")
    numbers: dict[str, Any] = {"nodes": nodes, "nproc_per_node": nproc_per_node}
    for name, value in numbers.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} is not a number from 1")
    if engine not in _ENGINES:
        raise ValueError(f"engine={engine!r} is none of {', '.join(_ENGINES)}")
    if backend not in ("auto", "gloo", "nccl"):
        raise ValueError(f"backend={backend!r} is none of auto, gloo, nccl")
    if not isinstance(timeout, int | float) or timeout <= 0:
        raise ValueError(f"timeout={timeout!r} is not a number of seconds")
    shape = Shape(nodes, nproc_per_node, engine, backend, only="" if init else item.nodeid)
    return Wanted(shape, float(timeout))


def _following(item: pytest.Item, nextitem: pytest.Item | None, wanted: Wanted) -> pytest.Item | None:
    """The next test on the same cluster, so that fixtures they share stay; xdist tells a worker the next one only."""
    candidates = [nextitem] if nextitem is not None else []
    if nextitem is not None and not hasattr(item.config, "workerinput"):
        items = item.session.items
        candidates = items[items.index(nextitem) :] if nextitem in items else candidates
    for candidate in candidates:
        other = wanted_by(candidate)
        if other is not None and other.shape == wanted.shape:
            return candidate
    return None


def _is_skipped(item: pytest.Item) -> bool:
    """Whether its marks skip it: then no cluster need be started to find that out."""
    try:
        from _pytest.skipping import evaluate_skip_marks
    except ImportError:  # not public: then the ranks find out
        return False
    try:
        return evaluate_skip_marks(item) is not None
    except Exception:  # noqa: BLE001 - a condition that cannot be evaluated is told where the test is set up
        return False


def _tear_down(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """Let go of what earlier tests in this process shared with this one, as pytest expects before the next; told if it fails."""
    call = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(nextitem), when="teardown")
    if call.excinfo is None:
        return []
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    return [report]
