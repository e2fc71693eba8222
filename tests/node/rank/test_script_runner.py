"""With each launcher, a script behaves as it does under plain Python."""

from __future__ import annotations

import ast
import os
import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compose_sim.node.agent import launchers
from compose_sim.node.shared import roles
from compose_sim.node.shared.event_log import EventLog
from tests.builders import PATIENCE_S, ROOT

SCRIPTS = ROOT / "tests" / "node" / "scripts"
CASES = SCRIPTS / "cases.py"
ALL_CASES = [
    node.name
    for node in ast.parse(CASES.read_text()).body
    if isinstance(node, ast.FunctionDef) and not node.args.args and node.name != "data_loaders"
]
Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("run")
    (folder / "events").mkdir()
    ours = {"COMPOSESIM_RUN": "test", "COMPOSESIM_DIR": str(folder), "COMPOSESIM_NODE": "node-0"}
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "COMPOSESIM_GENERATION": "0"}
    return {**os.environ, **ours, **place, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def run_python(environment: dict[str, str], *words: str, case: str) -> tuple[int, str]:
    """Run the script in a new Python, as torchrun does; return the exit status and the output."""
    ended = subprocess.run(
        [sys.executable, "-u", *words],
        env={**environment, "CASE": case},
        cwd=SCRIPTS,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return ended.returncode, ended.stdout.decode()


class Forked:
    """Ranks forked by one starter, each with a different case."""

    def __init__(self, launcher: str, program: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch):
        with monkeypatch.context() as patch:
            patch.chdir(SCRIPTS)
            for name, value in environment.items():
                patch.setenv(name, value)
            self.starter = launchers.Starter(launchers.Launch(launcher, tuple(program), "test", 1))
        self.starter.link.setblocking(True)
        assert self.starter.receive() == {"ready": True}

    def __call__(self, case: str) -> tuple[int, str]:
        read, write = os.pipe()
        self.starter.start([{"RANK": "0", "LOCAL_RANK": "0", "COMPOSESIM_GENERATION": "0", "CASE": case}], [write])
        text = _read_to_end(read).decode()
        packets = [self.starter.receive(), self.starter.receive()]
        return next(packet["status"] for packet in packets if packet and "status" in packet), text


@pytest.fixture(scope="module", params=[pytest.param("warm", marks=pytest.mark.train), "env"])
def forked(request: pytest.FixtureRequest, environment: dict[str, str]) -> Iterator[Forked]:
    with pytest.MonkeyPatch.context() as patch:
        made = Forked(request.param, ["cases.py", "--lr", "0.1", "a b"], environment, patch)
    yield made
    made.starter.close()


def _read_to_end(descriptor: int) -> bytes:
    data = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], 60)
        assert ready, f"no more output, no end: {data.decode()}"
        piece = os.read(descriptor, 65536)
        data += piece
        if not piece:
            os.close(descriptor)
            return data


def plain(text: str) -> str:
    """Remove what differs between any two processes, and the frames of a rank below the script."""
    return re.sub(r"0x[0-9a-f]+|\d{6,}|(?<=repeated )\d+", "N", text)


@pytest.mark.parametrize("case", ALL_CASES)
def test_a_rank_does_what_python_does(forked: Forked, environment: dict[str, str], case: str) -> None:
    expected_code, expected = run_python(environment, "cases.py", "--lr", "0.1", "a b", case=case)
    code, output = forked(case)
    assert (code, plain(output)) == (expected_code, plain(expected))


@pytest.mark.train
def test_data_loaders_work_by_fork_and_by_spawn(environment: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        warm = Forked("warm", ["cases.py"], environment, patch)
    code, output = warm("data_loaders")
    warm.starter.close()
    assert code == 0, output
    assert "fork [[1, 2], [3, 4]]" in output
    assert "spawn [[1, 2], [3, 4]]" in output


@pytest.mark.parametrize("launcher", [pytest.param("warm", marks=pytest.mark.train), "env"])
def test_a_module_is_run_as_python_m_does(environment: dict[str, str], launcher: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        module = Forked(launcher, ["-m", "cases", "--lr"], environment, patch)
    ended = {case: module(case) for case in ("surroundings", "raises", "processes")}
    module.starter.close()
    for case, (code, output) in ended.items():
        expected_code, expected = run_python(environment, "-m", "cases", "--lr", case=case)
        assert (code, plain(output)) == (expected_code, plain(expected))


@pytest.mark.parametrize("name", ["no_such_script.py", "broken.py", "."])
def test_a_script_that_cannot_run_is_refused_as_by_python(
    environment: dict[str, str], name: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("print('never')\ndef broken(:\n    pass\n")
    script = str(tmp_path / name) if name != "." else str(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        made = Forked("env", [script], environment, patch)
    code, output = made("")
    made.starter.close()
    expected_code, expected = run_python(environment, script, case="")
    assert (code, output) == (expected_code, expected)


def test_an_exception_is_reported_without_our_frames(environment: dict[str, str]) -> None:
    (Path(environment["COMPOSESIM_DIR"]) / "events" / "node-0.jsonl").unlink(missing_ok=True)
    _, output = run_python(environment, roles.PROGRAM, "rank", "cases.py", case="raises")
    told = [event for event in _events(environment) if event["kind"] in ("exception", "script-ended")]
    assert [event["kind"] for event in told] == ["exception", "script-ended"]
    assert told[0]["data"]["type"] == "RuntimeError"
    assert told[0]["data"]["message"] == "several\nlines, ünïcode"
    assert told[0]["data"]["traceback"] == output.partition("\n")[2]
    assert told[1]["data"]["exit_code"] == 1


@pytest.mark.train
@pytest.mark.parametrize(
    ("started", "is_told"),
    [
        ({"TORCHELASTIC_RUN_ID": "demo"}, True),
        ({"LOCAL_WORLD_SIZE": "2"}, True),
        ({"LOCAL_WORLD_SIZE": "1"}, False),
    ],
    ids=["warm", "env, two ranks", "env, one rank"],
)
def test_ranks_that_fail_to_start_their_own_are_told_of_the_launcher_for_it(
    environment: dict[str, str], tmp_path: Path, started: dict[str, str], is_told: bool
) -> None:
    (Path(environment["COMPOSESIM_DIR"]) / "events" / "node-0.jsonl").unlink(missing_ok=True)
    script = tmp_path / "spawns.py"
    script.write_text(
        "import torch.distributed as dist, torch.multiprocessing as mp\n"
        "def main(rank):\n    dist.init_process_group('no-such-backend', rank=rank, world_size=1)\n"
        "if __name__ == '__main__':\n    mp.spawn(main, nprocs=1)\n"
    )
    run_python({**environment, **started}, roles.PROGRAM, "rank", str(script), case="")
    told = next(event["data"] for event in _events(environment) if event["kind"] == "exception")
    assert ("--launcher env" in told["hint"]) == is_told


def test_an_endless_recursion_is_reported(environment: dict[str, str]) -> None:
    (Path(environment["COMPOSESIM_DIR"]) / "events" / "node-0.jsonl").unlink(missing_ok=True)
    code, output = run_python(environment, roles.PROGRAM, "rank", "cases.py", case="recurses")
    told = [event for event in _events(environment) if event["kind"] in ("exception", "script-ended")]
    assert [event["kind"] for event in told] == ["exception", "script-ended"]
    assert told[0]["data"]["type"] == "RecursionError"
    assert told[0]["data"]["traceback"] == output.partition("\n")[2]
    assert code == 1


@pytest.mark.train
@pytest.mark.parametrize(
    ("group", "told"),
    [
        ("'gloo', store=dist.HashStore(), rank=0, world_size=1", 1),
        ("'gloo', None, None, 1, 0, dist.HashStore()", 1),
        ("'gloo', init_method='tcp://127.0.0.1:0?rank=0&world_size=1'", None),
    ],
)
def test_a_group_is_told_with_the_size_that_the_script_asks_for(
    environment: dict[str, str], tmp_path: Path, group: str, told: int | None
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import torch.distributed as dist\ndist.init_process_group({group})\ndist.destroy_process_group()"
    )
    (Path(environment["COMPOSESIM_DIR"]) / "events" / "node-0.jsonl").unlink(missing_ok=True)
    code, output = run_python(environment, roles.PROGRAM, "rank", str(script), case="")
    assert code == 0, output
    started, done = (event["data"] for event in _events(environment) if event["kind"] == "init")
    assert started == {"phase": "started", "backend": "gloo", "world_size": told}
    assert done == {"phase": "done", "backend": "gloo", "world_size": 1}


def _events(environment: dict[str, str]) -> list[dict[str, object]]:
    import json

    return [json.loads(line) for line in EventLog.from_environment(environment).path.read_text().splitlines()]
