"""`make matrix` runs tests that exist, and the page shows every result, also a bad one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compose_sim.core.request.names import CHECK_IDS
from scripts.matrix import read_results
from scripts.matrix_page import PAGE, Row, read_rows, table_lines, with_table, write_row
from tests.builders import ROOT
from tests.matrix import entries, entry_of, files

ZOO = "tests/zoo/test_zoo.py::test_a_script_is_judged_rightly"


def a_row(**changes: object) -> Row:
    values = {"torch": "2.15.0", "python": "3.11.7", "commit": "abcdef12", "date": "2026-11-27", "passed": 3}
    return Row(**{**values, **changes})  # type: ignore[arg-type]


def test_every_entry_lists_tests_that_can_run_without_an_engine() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    tier = "matrix and not docker and not gpu and not slurm and not recipes"
    told = subprocess.run([*command, "-m", tier, *files()], cwd=ROOT, capture_output=True, text=True, check=True)
    tests = [line for line in told.stdout.splitlines() if "::" in line]

    assert set(map(entry_of, tests)) == set(entries())
    assert len(set(entries())) == len(entries())


def test_a_wrong_script_of_each_check_is_listed() -> None:
    listed = [entry.partition("[")[2] for entry in entries() if entry.startswith(ZOO)]

    assert {name.partition("/")[0] for name in listed if "/broken_" in name} == set(CHECK_IDS)


def test_the_page_shows_the_latest_results() -> None:
    assert with_table(PAGE.read_text(), read_rows()) == PAGE.read_text()


@pytest.mark.parametrize(
    ("row", "is_good", "cell"),
    [
        (a_row(), True, "passed"),
        (a_row(failures=("tests/test_a.py::test_b", "tests/test_a.py::test_c")), False, "**2 failed**"),
        (a_row(problem="pytest exited with 4"), False, "**pytest exited with 4**"),
        (a_row(passed=0), False, "**no test ran**"),
    ],
)
def test_a_row_that_failed_says_so(row: Row, is_good: bool, cell: str) -> None:
    lines = table_lines([row])

    assert row.is_good is is_good
    assert lines[2].split(" | ")[2] == cell
    assert all(failure in lines[-1] for failure in row.failures)


def test_a_row_replaces_that_of_the_same_versions(tmp_path: Path) -> None:
    data, page = tmp_path / "torch.json", tmp_path / "torch.md"
    page.write_text(with_table(PAGE.read_text(), []))
    for row in (
        a_row(),
        a_row(torch="2.9.1"),
        a_row(python="3.13.0"),
        a_row(python="3.11.9", passed=4, failures=("tests/test_a.py::test_b",)),
    ):
        write_row(row, data=data, page=page)

    found = [(row.torch, row.python, row.passed) for row in read_rows(data)]
    assert found == [("2.9.1", "3.11.7", 3), ("2.15.0", "3.11.9", 4), ("2.15.0", "3.13.0", 3)]
    assert page.read_text() == with_table(page.read_text(), read_rows(data))
    assert json.loads(data.read_text())[1]["failures"] == ["tests/test_a.py::test_b"]


def test_results_are_counted_with_the_ids_of_what_failed(tmp_path: Path) -> None:
    suite = tmp_path / "test_suite.py"
    suite.write_text(
        "import pytest\n"
        "def test_right(): pass\n"
        "@pytest.mark.skip\n"
        "def test_skipped(): pass\n"
        "@pytest.mark.parametrize('name', ['a/b.py'])\n"
        "def test_wrong(name): assert False\n"
        "@pytest.fixture\n"
        "def broken(): assert False\n"
        "def test_not_begun(broken): pass\n"
    )
    words = ("-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", f"--junitxml={tmp_path}/results.xml", suite.name)
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=tmp_path, capture_output=True, check=False)

    failed = ("test_suite.py::test_wrong[a/b.py]", "test_suite.py::test_not_begun")
    assert read_results(tmp_path / "results.xml") == (1, 1, failed)
    assert read_results(tmp_path / "missing.xml") == (0, 0, ())


def test_what_is_no_version_of_torch_is_refused_before_anything_is_installed(tmp_path: Path) -> None:
    environment = {**os.environ, "TORCH": "2.15.0 newest", "MATRIX_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "scripts.matrix"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "'newest'" in done.stderr
    assert not (tmp_path / "home").exists()
