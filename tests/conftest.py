"""Configure all tests: the flag that rewrites golden files, what tests share, and how xdist's workers share tests."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from tests.builders import ROOT
from tests.matrix import entry_of

# These take minutes, the zoo most: if one of them began last, one worker would be busy when the others are done.
LONG = ("zoo/test_zoo.py", "plugins/slurm/test_slurm_runs.py", "test_pytest_plugin.py", "test_train_ddp.py")

# A shell's background job ignores SIGINT, and so would everything that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A test that waits for a core is not slow. Only newer versions of Hypothesis recognize a CI job and set no deadline by themselves.
settings.register_profile("composesim", deadline=None)
settings.load_profile("composesim")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the files in tests/golden; review the diff")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make matrix` runs. Begin with files that take longest: those that start containers, then the most ranks."""
    for item in items:
        if entry_of(item.nodeid):
            item.add_marker("matrix")
    weights: dict[str, int] = {}
    for item in items:
        starts_ranks = any(item.get_closest_marker(name) for name in ("train", "docker", "slurm"))
        weights[_file_of(item)] = weights.get(_file_of(item), 0) + starts_ranks
    weights.update((f"tests/{name}", 1000 - place) for place, name in enumerate(LONG))
    items.sort(key=lambda item: (-weights[_file_of(item)], _file_of(item), not _starts_containers(item)))


@pytest.hookimpl(
    wrapper=True, tryfirst=True
)  # around pytest-timeout, so that waiting for another worker does not count
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Let one worker at a time run the container tests of a file: workers share a daemon, and choose free subnets."""
    if _starts_containers(item):
        fcntl.flock(_containers(item.config), fcntl.LOCK_EX)
    try:
        return (yield)
    finally:
        is_last = nextitem is None or not _starts_containers(nextitem) or _file_of(nextitem) != _file_of(item)
        if _starts_containers(item) and is_last:
            fcntl.flock(_containers(item.config), fcntl.LOCK_UN)


@cache
def _containers(config: pytest.Config) -> int:
    """Return the descriptor of the lock that the workers of this run share."""
    run = getattr(config, "workerinput", {}).get("testrunuid", "alone")
    return os.open(
        Path(tempfile.gettempdir()) / f"composesim-tests-{run}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600
    )


def _starts_containers(item: pytest.Item) -> bool:
    return item.get_closest_marker("docker") is not None


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.fixture(scope="module")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a real Slurm with four nodes on this machine, whose commands are on the PATH of the tests."""
    script, folder = ROOT / "scripts" / "slurm.sh", tmp_path_factory.mktemp("slurm") / "cluster"
    try:
        subprocess.run([script, "start", folder], check=True, stdin=subprocess.DEVNULL)
        names = subprocess.run(
            ["sh", "-c", '. "$0" && echo "$PATH" && echo "$SLURM_CONF"', folder / "environment"],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        with pytest.MonkeyPatch.context() as patch:
            for name, value in zip(("PATH", "SLURM_CONF"), names.stdout.splitlines(), strict=True):
                patch.setenv(name, value)
            yield folder
    finally:
        subprocess.run([script, "stop", folder], check=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="session")
def recipes_python() -> Path:
    """The Python with composesim, Horovod, Ray and PaddlePaddle: `--python` of a run, or the one to start composesim with."""
    checked = subprocess.run([ROOT / "scripts" / "recipes.sh", "--check"], capture_output=True, text=True, check=False)
    if checked.returncode:
        pytest.fail(f"{checked.stderr.strip()} Type: make recipes")
    return ROOT / ".venv-recipes" / "bin" / "python"


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
