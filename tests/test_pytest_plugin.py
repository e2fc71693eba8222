"""A marked test runs on every rank of a cluster, reports failures in pytest's own words, and leaves nothing behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from compose_sim.engine.local.process_labels import labeled_processes
from tests.builders import PATIENCE_S
from tests.scenarios.conftest import eventually

pytest_plugins = ["pytester"]

HEAD = """
import os
import pytest
import torch
import torch.distributed as dist
"""
COMMAND = (sys.executable, "-m", "pytest", "--composesim-engine", "local", "-p", "no:cacheprovider", "-W", "ignore")


def run(pytester: pytest.Pytester, text: str, *options: str) -> pytest.RunResult:
    """Run pytest on this one file in a separate process."""
    pytester.makepyfile(test_it=HEAD + text)
    return pytester.run(*COMMAND, *options)


def runs_of(pytester: pytest.Pytester) -> list[Path]:
    """Return the folders of the runs that still exist."""
    return sorted((pytester.path / ".composesim" / "runs").glob("pytest-*"))


@pytest.mark.train
def test_tests_of_one_shape_share_a_cluster_with_fixtures_parameters_and_classes(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
        RUNS = os.path.join(os.path.dirname(__file__), "runs")

        @pytest.fixture(scope="module")
        def model():
            return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))

        @pytest.fixture(autouse=True)
        def note():
            yield
            with open(RUNS, "a") as file:
                file.write(os.environ.get("COMPOSESIM_RUN", "here") + "\\n")

        @pytest.mark.composesim(nodes=2)
        @pytest.mark.parametrize("number", [1, 2])
        def test_reduces(number):
            total = torch.tensor([float(number)])
            dist.all_reduce(total)
            assert total.item() == 2 * number

        def test_that_is_not_marked():
            assert not dist.is_initialized()

        class TestModel:
            @pytest.mark.composesim(nodes=2)
            def test_steps(self, model, tmp_path):
                model(torch.ones(1, 2)).sum().backward()

            @pytest.mark.composesim(nodes=2)
            def test_leaves_the_group(self, model):
                dist.destroy_process_group()

        @pytest.mark.composesim(nodes=2)
        def test_finds_a_group_again():
            dist.barrier()
        """.replace("\n        ", "\n"),
    )

    done.assert_outcomes(passed=6)
    names = (pytester.path / "runs").read_text().split()
    assert sorted(map(names.count, set(names))) == [1, 10]
    assert runs_of(pytester) == []


@pytest.mark.train
def test_the_failing_ranks_assertion_is_pytests_own_and_the_next_test_gets_a_fresh_cluster(
    pytester: pytest.Pytester,
) -> None:
    done = run(
        pytester,
        """
        @pytest.mark.composesim(nodes=1, nproc_per_node=2)
        def test_fails_on_one():
            print("rank", dist.get_rank(), "speaks")
            if dist.get_rank() == 1:
                given = {"loss": 1, "steps": [1, 2]}
                assert given == {"loss": 1, "steps": [1, 3]}
            dist.barrier()

        @pytest.mark.composesim(nodes=1, nproc_per_node=2)
        def test_goes_on():
            dist.barrier()

        @pytest.mark.composesim(nodes=1, nproc_per_node=2)
        @pytest.mark.xfail(strict=True)
        def test_fails_as_expected():
            assert dist.get_rank() == 0

        @pytest.mark.composesim(nodes=1, nproc_per_node=2)
        def test_skips_itself():
            pytest.skip("found out within")

        @pytest.mark.composesim(nodes=64)
        @pytest.mark.skip(reason="no cluster is started for this")
        def test_is_skipped():
            raise AssertionError
        """.replace("\n        ", "\n"),
        "--junitxml=out.xml",
        "-rs",
    )

    done.assert_outcomes(passed=1, failed=1, xfailed=1, skipped=2)
    done.stdout.fnmatch_lines(
        [
            '>*assert given == {"loss": 1, "steps": [[]1, 3[]]}',
            "E*AssertionError: assert {'loss': 1, *} == {'loss': 1, *}",
            "E*{'steps': [[]1, 2[]]} != {'steps': [[]1, 3[]]}*",
            "failed on rank 1 of 2; rank 0 had not finished",
            "rank 1 speaks",
            "SKIPPED * found out within",
        ]
    )
    assert "test_fails_on_one" in (pytester.path / "out.xml").read_text()
    assert runs_of(pytester) == []


@pytest.mark.train
def test_a_crash_and_a_hang_are_failures_that_name_rank_and_line(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
        @pytest.mark.composesim(nodes=2)
        def test_crashes():
            if dist.get_rank() == 1:
                os.kill(os.getpid(), 9)
            dist.barrier()

        @pytest.mark.composesim(nodes=2, timeout=12)
        def test_hangs():
            if dist.get_rank() == 0:
                dist.barrier()  # alone

        @pytest.mark.composesim(nodes=2)
        def test_is_not_reached():
            pass
        """.replace("\n        ", "\n"),
        "--maxfail=2",
    )

    done.assert_outcomes(failed=2)
    text = pytester.path.joinpath("test_it.py").read_text().splitlines()
    line = next(number for number, words in enumerate(text, 1) if "# alone" in words)
    done.stdout.fnmatch_lines(
        [
            "rank 1 was killed by SIGKILL*",
            f"not finished after 12 s: rank 0 is at test_it.py, line {line}, in test_hangs",
            "More: composesim logs --run pytest-*",
        ]
    )
    assert len(runs_of(pytester)) == 2


@pytest.mark.train
def test_ranks_that_wait_for_each_other_fail_before_the_time_limit(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
        @pytest.mark.composesim(nodes=2, timeout=3000)
        def test_hangs():
            if dist.get_rank() == 0:
                dist.all_reduce(torch.ones(1))
            dist.barrier()
        """.replace("\n        ", "\n"),
    )

    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["hung: rank 0 waits in all_reduce #1 * while rank 1 waits in barrier #1 *"])


def started(pytester: pytest.Pytester) -> tuple[subprocess.Popen[bytes], str]:
    """Start pytest on a test that never ends; return it and the name of the run, once the ranks are in that test."""
    os.mkfifo(pytester.path / "began")
    began = os.open(pytester.path / "began", os.O_RDWR)
    pytester.makepyfile(
        test_it=HEAD
        + """
@pytest.mark.composesim(nodes=2)
def test_waits():
    dist.barrier()
    if dist.get_rank() == 0:
        with open("began", "w") as file:
            file.write(os.environ["COMPOSESIM_RUN"])
    dist.barrier()
    if dist.get_rank() == 0:
        dist.barrier()  # alone
"""
    )
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(COMMAND, cwd=pytester.path, **quiet)
    assert select.select([began], [], [], PATIENCE_S)[0]
    name = os.read(began, 100).decode()
    os.close(began)
    assert labeled_processes(name)
    return process, name


@pytest.mark.train
def test_an_interrupt_leaves_no_process(pytester: pytest.Pytester) -> None:
    process, name = started(pytester)

    process.send_signal(signal.SIGINT)

    assert process.wait(PATIENCE_S) == pytest.ExitCode.INTERRUPTED
    assert labeled_processes(name) == []
    assert runs_of(pytester) == []


@pytest.mark.train
def test_kill_9_of_pytest_leaves_no_process(pytester: pytest.Pytester) -> None:
    process, name = started(pytester)

    process.kill()
    process.wait()

    eventually(lambda: labeled_processes(name) == [], within=PATIENCE_S, what="the ranks end after pytest")


@pytest.mark.parametrize(
    ("mark", "problem"),
    [
        ("nodes=0", "nodes=0 is not a positive integer"),
        ("node=2", "unexpected keyword argument 'node'"),
        ("engine='podman'", "engine='podman' is not one of auto, docker, local"),
        ("timeout='1m'", "timeout='1m' is not a number of seconds"),
    ],
)
def test_a_wrong_mark_is_told_before_any_test_runs(pytester: pytest.Pytester, mark: str, problem: str) -> None:
    pytester.makepyfile(
        test_it=f"import pytest\n\ndef test_first(): pass\n\n@pytest.mark.composesim({mark})\ndef test_it(): pass\n"
    )

    done = pytester.run(*COMMAND)

    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"ERROR: test_it.py::test_it: *{problem}; the mark is composesim(nodes=2, *"])


def test_runs_that_do_not_use_it_import_nothing_heavy() -> None:
    code = "import sys, pytest, compose_sim.pytest_plugin; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )

    assert loaded & {"torch", "pydantic", "click", "rich", "jinja2", "yaml", "jsonschema", "psutil"} == set()


@pytest.mark.train
def test_an_ordinary_suite_runs_with_emulated_cuda(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPOSESIM_EMULATED_GPUS", "2")
    text = """
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_the_second_device():
    out = torch.nn.Linear(4, 2).to("cuda:1")(torch.ones(3, 4, device="cuda:1"))
    assert (out.is_cuda, out.device.index, torch.cuda.device_count()) == (True, 1, 2)

def test_devices_do_not_mix():
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device="cuda") + torch.ones(2)
"""
    run(pytester, text, "--composesim-emulate-cuda").assert_outcomes(passed=2)
