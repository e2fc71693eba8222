"""The page and the trace of a finished run are files that the user names."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.conftest import DONE, Project, run_finished

SCRIPT = """
import json, os
print("</script>", flush=True)
print(json.dumps({"step": 2, "loss": 0.25}), flush=True)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a run of two nodes."""
    return run_finished(tmp_path_factory.mktemp("seen"), SCRIPT, "--nodes", "2")


def test_a_page_holds_what_the_report_and_the_logs_hold(finished: Project) -> None:
    done = finished.run("report", DONE, "--html", "run.html", "--json")
    page = (finished.folder / "run.html").read_text()
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert data
    message = json.loads(data[1])

    assert done.returncode == 0
    assert len(page) < 200_000
    report = json.loads(done.stdout)
    assert {name: message["now"][name] for name in ("run", "verdict", "nodes")} == {
        name: report[name] for name in ("run", "verdict", "nodes")
    }
    assert sorted(message["metrics"]) == [["loss", rank, 2, 0.25] for rank in (0, 1)]
    assert len(message["logs"]) == 4


def test_a_page_that_cannot_be_written_is_bad_usage(finished: Project) -> None:
    done = finished.run("report", DONE, "--html", "train.py/run.html")

    assert done.returncode == 2
    assert "--html: 'train.py/run.html'" in done.stderr


def test_a_trace_has_the_name_of_the_run_unless_another_is_given(finished: Project) -> None:
    assert finished.run("trace", "--run", DONE).returncode == 0
    assert finished.run("trace", DONE, "-o", "other.json").returncode == 0
    first, second = (finished.folder / name for name in (f"{DONE}.trace.json", "other.json"))

    assert first.read_text() == second.read_text()
    names = {event["args"].get("name") for event in json.loads(first.read_text())["traceEvents"] if event["ph"] == "M"}
    assert {"node-0", "node-1", "rank 0 computes"} <= names
