"""Run tests marked `@pytest.mark.composesim(nodes=2)` on every rank of a cluster.

Tests whose clusters have the same shape share one (cluster.py). The ranks run pytest themselves (rank.py) and receive the tests
one by one. For each test, this process shows the report of one rank (outcome.py).
Until a marked test is due, only pytest and the standard library are imported.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from compose_sim.assets import node_code
from compose_sim.pytest_plugin.marks import ENGINES, SIGNATURE, MarkArguments, mark_of

if TYPE_CHECKING:
    from compose_sim.pytest_plugin.cluster import RankClusters

_EMULATED = "COMPOSESIM_EMULATED_GPUS"  # as in node/shared/emulation.py


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the setting for the engine of marks that name none."""
    group = parser.getgroup("composesim")
    group.addoption("--composesim-engine", choices=ENGINES, help="engine of the nodes of tests marked composesim")
    group.addoption(
        "--composesim-emulate-cuda",
        action="store_true",
        help=f"run the tests of this process with CUDA devices that the CPU emulates: {_EMULATED} of them (1)",
    )
    parser.addini("composesim_engine", "engine of the nodes of tests marked composesim", default="auto")


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Emulate CUDA before a conftest or a test can import torch."""
    if early_config.known_args_namespace.composesim_emulate_cuda:
        if "torch" in sys.modules:
            raise pytest.UsageError("--composesim-emulate-cuda: another plugin has imported torch")
        os.environ.setdefault(_EMULATED, "1")  # processes that tests start inherit it
        sys.path.insert(0, str(node_code()))
        bootstrap = import_module("bootstrap")  # which removes the folder from sys.path again
        import_module(f"{bootstrap.NAME}.rank.emulate").install()


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and take over marked tests; in a rank they run as any other test."""
    config.addinivalue_line("markers", f"{SIGNATURE}: run the test on every rank of a cluster")
    if not ("COMPOSESIM_RUN" in os.environ and "RANK" in os.environ):
        config.pluginmanager.register(_Runner(), "composesim-runner")


class _Runner:
    """Runs marked tests on clusters, from the process that the user started."""

    def __init__(self) -> None:
        self._clusters: RankClusters | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Report a wrong mark, or that root must not work here, before any test runs."""
        if any([mark_of(item) for item in items]):
            _check_project(config)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a marked test on a cluster. Return None for all others, and for a marked test that is skipped anyway."""
        mark = mark_of(item)
        if mark is None or _is_skipped(item):
            return None
        if self._clusters is None:
            from compose_sim.pytest_plugin.cluster import RankClusters

            self._clusters = RankClusters(item.config)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = self._clusters.run(item, mark, following=_next_on_cluster(item, nextitem, mark))
        for report in (*reports, *_tear_down(item, nextitem)):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_unconfigure(self) -> None:
        """Remove all clusters; Ctrl-C gets here too."""
        if self._clusters is not None:
            self._clusters.close()
            self._clusters = None

    pytest_sessionfinish = pytest_unconfigure


def _check_project(config: pytest.Config) -> None:
    """Raise UsageError if this process is root, and the project belongs to another user."""
    from compose_sim.engine.run_folder.folder import runs_folder
    from compose_sim.errors import SpecError

    try:
        runs_folder(config.invocation_params.dir)
    except SpecError as error:
        raise pytest.UsageError(f"{error.message}\nTry: {error.hint}") from None


def _next_on_cluster(item: pytest.Item, nextitem: pytest.Item | None, mark: MarkArguments) -> pytest.Item | None:
    """Return the next test on the same cluster, so that fixtures of both tests are kept."""
    candidates = [nextitem] if nextitem is not None else []
    if nextitem is not None and not hasattr(item.config, "workerinput"):  # an xdist worker knows only the next test
        items = item.session.items
        candidates = items[items.index(nextitem) :] if nextitem in items else candidates
    for candidate in candidates:
        other = mark_of(candidate)
        if other is not None and other.shape == mark.shape:
            return candidate
    return None


def _is_skipped(item: pytest.Item) -> bool:
    """Return whether the test's marks skip it, so that it needs no cluster."""
    try:
        from _pytest.skipping import evaluate_skip_marks
    except ImportError:  # it is not public; without it, the ranks skip the test
        return False
    try:
        return evaluate_skip_marks(item) is not None
    except Exception:  # noqa: BLE001 - the ranks report a condition that cannot be evaluated
        return False


def _tear_down(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """Tear down the fixtures in this process that the next test does not use; return a report if that fails."""
    call = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(nextitem), when="teardown")
    if call.excinfo is None:
        return []
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    return [report]
