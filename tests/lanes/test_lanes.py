"""Do lanes share out all tests, and is nothing called passed that did not pass?"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import ROOT
from tests.lanes.results import TRIED_AGAIN, Lane, closing_line, problems

HAS_CONTAINERS = "import pytest\n@pytest.mark.docker\ndef test_a(): pass\ndef test_b(): pass\n"
NEEDS_CAKE = "import pytest\nfrom pathlib import Path\n@pytest.mark.cake\ndef test_it(): assert Path('cake').exists()\n"
UNLUCKY = "from pathlib import Path\ndef test_once(): assert (f := Path('seen')).exists() or f.touch()\n"


def a_lane(name: str = "one", *, collected: int | None = None, status: int | None = 0, **outcomes: str) -> Lane:
    """A lane that has come to its end, whose tests were called and set up."""
    lane = Lane(name)
    for test, outcome in outcomes.items():
        phases = {"setup": "passed", "call": outcome, "teardown": "passed"}
        texts = {"call": f"{test} is wrong"} if outcome == "failed" else {}
        lane.read(line(test, phase, word, texts.get(phase, "")) for phase, word in phases.items())
    if status is not None:
        lane.read([json.dumps({"collected": len(outcomes) if collected is None else collected, "status": status})])
    return lane


def line(test: str, phase: str, outcome: str, text: str = "") -> str:
    return json.dumps({"test": test, "phase": phase, "outcome": outcome, "seconds": 0.5, "text": text})


def run(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = docker\n cake\n")
    return subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # which takes half the time
        capture_output=True,
        text=True,
    )


def test_a_test_fails_in_any_of_its_phases() -> None:
    lane = Lane("one")
    lane.read(
        [line("a", "setup", "passed"), line("a", "call", "passed"), line("a", "teardown", "failed", "left behind")]
    )
    lane.read([line("b", "setup", "skipped"), line("b", "teardown", "passed")])

    assert (lane.outcomes, lane.texts) == ({"a": "failed", "b": "skipped"}, {"a": "--- teardown\nleft behind\n"})


def test_few_failures_are_tried_again_and_many_are_not() -> None:
    few, many = (a_lane(**{f"test_{n}": "failed" for n in range(count)}) for count in (TRIED_AGAIN, TRIED_AGAIN + 1))

    assert (few.again, many.again) == (few.failed, [])


def test_what_passed_alone_counts_as_passed() -> None:
    lanes = [a_lane("one", a="passed", b="failed"), a_lane("two", c="skipped", d="failed")]

    assert closing_line(lanes, {"b"}) == "2 passed, 1 failed, 1 skipped"


@pytest.mark.parametrize(
    ("lanes", "words"),
    [
        (
            [a_lane(a="passed"), a_lane("two", status=None)],
            ["lane two ended without a word on what it had still to do"],
        ),
        ([a_lane(a="passed", status=2)], ["lane one was broken off: pytest's exit code 2"]),
        ([a_lane(a="passed", collected=2), a_lane(collected=2, status=5)], ["the lanes found 2 tests, and ran 1"]),
        (
            [a_lane(a="passed", collected=2), a_lane(b="passed", collected=3)],
            ["the lanes found 2 and 3 tests, and ran 2"],
        ),
        ([a_lane(status=5), a_lane(status=5)], ["no test was run"]),
        ([a_lane(a="passed", collected=2), a_lane(b="failed", collected=2, status=1)], []),
    ],
)
def test_lanes_that_say_nothing_of_all_tests_are_a_failure(lanes: list[Lane], words: list[str]) -> None:
    assert problems(lanes) == words


def test_a_lane_leaves_what_another_has_claimed_and_containers_that_another_has(tmp_path: Path) -> None:
    for name in ("test_free.py", "test_claimed.py"):
        (tmp_path / name).write_text("def test_it(): pass\n")
    (tmp_path / "test_containers.py").write_text(HAS_CONTAINERS)
    shared = tmp_path / "build"  # where pytest looks for no tests
    (shared / "claims").mkdir(parents=True)
    (shared / "claims" / "test_claimed.py").touch()
    lanes = [Lane(name) for name in ("one", "two")]
    with (shared / "containers.lock").open("w") as held:
        for lane in lanes:
            if lane.name == "one":
                fcntl.flock(held, fcntl.LOCK_EX)
            run(tmp_path, "pytest", "-p", "tests.lanes.plugin", "--lane", lane.name, "--lanes-folder", str(shared))
            fcntl.flock(held, fcntl.LOCK_UN)
            lane.read((shared / f"{lane.name}.jsonl").read_text().splitlines())

    assert list(lanes[0].outcomes) == ["test_containers.py::test_b", "test_free.py::test_it"]
    assert list(lanes[1].outcomes) == ["test_containers.py::test_a"]


def test_all_tests_run_and_what_failed_runs_alone_once_more(tmp_path: Path) -> None:
    (tmp_path / "test_unlucky.py").write_text(UNLUCKY)
    (tmp_path / "test_wrong.py").write_text("def test_it(): assert 1 + 1 == 3\ndef test_right(): pass\n")
    (tmp_path / "test_containers.py").write_text(HAS_CONTAINERS)

    done = run(tmp_path, "tests.lanes", "--not-run", "gpu: there is none")

    assert done.returncode == 1, done.stderr
    assert "=== test_unlucky.py::test_once passed alone: it is taken as passed" in done.stdout
    assert "=== test_wrong.py::test_it failed alone too" in done.stdout
    assert done.stdout.splitlines()[-3:] == ["Not run:", "  gpu: there is none", "4 passed, 1 failed, 0 skipped"]
    assert {path.name for path in (tmp_path / "build" / "tests").glob("*.xml")} == {"one.xml", "two.xml"}


def test_what_is_made_beside_the_lanes_is_waited_for_by_those_who_need_it(tmp_path: Path) -> None:
    """It is not made before another test has run."""
    (tmp_path / "test_a_needs.py").write_text(NEEDS_CAKE)
    (tmp_path / "test_free.py").write_text("from pathlib import Path\ndef test_it(): Path('flour').touch()\n")
    (tmp_path / "bake.sh").write_text("until [ -e flour ]; do sleep 0.05; done\ntouch cake\n")

    done = run(tmp_path, "tests.lanes", "--beside", "cake=sh bake.sh")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "2 passed, 0 failed, 0 skipped"


def test_what_cannot_be_made_fails_the_tests_that_need_it_and_the_whole(tmp_path: Path) -> None:
    (tmp_path / "test_needs.py").write_text(NEEDS_CAKE)
    (tmp_path / "test_free.py").write_text("def test_it(): pass\n")
    (tmp_path / "bake.sh").write_text("touch cake\necho no oven\nexit 3\n")

    done = run(tmp_path, "tests.lanes", "--beside", "cake=sh bake.sh")

    assert done.returncode == 1
    assert "=== test_needs.py::test_it failed alone too" in done.stdout
    assert done.stdout.count("'sh bake.sh' ended with status 3. The end of build/tests/cake.log:\nno oven\n") == 3
    assert done.stdout.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"


def test_a_check_beside_the_lanes_fails_the_whole(tmp_path: Path) -> None:
    (tmp_path / "test_free.py").write_text("def test_it(): pass\n")

    for asked in ((), ("--", "-q")):
        done = run(tmp_path, "tests.lanes", "--beside", "check=false", *asked)

        assert done.returncode == 1, done.stdout
        assert "1 passed" in done.stdout


def test_a_file_that_cannot_be_imported_fails(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    (tmp_path / "test_right.py").write_text("def test_it(): pass\n")

    done = run(tmp_path, "tests.lanes")

    assert done.returncode == 1
    assert "No module named 'no_such_module'" in done.stdout
    assert "lane one was broken off: pytest's exit code 2" in done.stdout
