"""Run `composesim check` on scripts of the zoo, and compare the results with what the scripts expect."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from compose_sim.core.checks.run import BROKEN
from compose_sim.core.report.report import Report
from compose_sim.core.request.names import CHECK_IDS

ZOO = Path(__file__).parent
KINDS = ("broken", "right", "hard")
REPLAYED = ("loss-scale", "matches-single")  # scripts of these checks need the second run, with one rank
_DIRECTIVE = re.compile(r"^# (expects|also|options|ranks per node): *(.*)$", re.MULTILINE)
_TIMEOUT_S = 180
# The folder's name keeps the checks from taking `on_cuda` for the user's code.
_ON_CUDA = f"import sys; sys.path.insert(0, '{ZOO}/site-packages'); import on_cuda"
_FIRST_IMPORT = re.compile(r"^(import|from) (?!__future__)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A script of the zoo, and the checks that must or may fail on it."""

    path: Path
    kind: str
    expects: frozenset[str] = frozenset()
    also: frozenset[str] = frozenset()
    options: tuple[str, ...] = ()
    ranks_per_node: int = 1  # the least with which its mistake exists: with one, LOCAL_RANK is 0 on every rank

    @property
    def name(self) -> str:
        """`set-epoch/broken_forgotten`."""
        return f"{self.check}/{self.path.stem}"

    @property
    def check(self) -> str:
        """The check whose folder contains the script."""
        return self.path.parent.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of checking a script."""

    example: Example
    said: frozenset[str] = frozenset()  # checks that failed or warned
    details: tuple[str, ...] = ()  # a line for each check
    error: str = ""  # why the run could not be judged
    seconds: float = 0.0

    @property
    def missed(self) -> frozenset[str]:
        """Return the checks that should have failed or warned."""
        return self.example.expects - self.said

    @property
    def false_alarms(self) -> frozenset[str]:
        """Return the checks that should not have failed or warned."""
        return self.said - self.example.expects - self.example.also

    @property
    def is_right(self) -> bool:
        """Return whether the result is as expected."""
        return not (self.missed or self.false_alarms or self.error)


def examples(ids: Sequence[str] = ()) -> list[Example]:
    """Return the scripts of these checks, or of all, in the order of CHECK_IDS; raise ValueError for an invalid script."""
    chosen = [name for name in CHECK_IDS if not ids or name in ids]
    return [read_example(path) for name in chosen for path in sorted((ZOO / name).glob("*.py"))]


def read_example(path: Path) -> Example:
    """Return a script with the expectations in its comments."""
    kind = path.stem.split("_")[0]
    words = {key: value.strip() for key, value in _DIRECTIVE.findall(path.read_text())}
    expects, also = (_ids(words.get(key, "")) for key in ("expects", "also"))
    if kind not in KINDS:
        raise ValueError(f"'{path.name}' is none of {', '.join(f'{kind}_….py' for kind in KINDS)}")
    if (kind == "broken") != bool(expects):
        raise ValueError(f"{path.parent.name}/{path.name}: a broken script, and no other, has a line '# expects: ID'")
    unknown = (expects | also) - set(CHECK_IDS)
    if unknown:
        raise ValueError(f"{path.parent.name}/{path.name}: there is no check named {', '.join(sorted(unknown))}")
    return Example(
        path=path,
        kind=kind,
        expects=expects,
        also=also,
        options=tuple(shlex.split(words.get("options", ""))),
        ranks_per_node=int(words.get("ranks per node", 1)),
    )


def fits(example: Example, options: Sequence[str]) -> bool:
    """Return whether a cluster with these options has as many ranks on each node as the script needs."""
    given = [value for name, value in pairwise(options) if name == "--nproc-per-node"]
    return not given or int(given[-1]) >= example.ranks_per_node


def run_examples(
    chosen: Iterable[Example], *, jobs: int, quick: bool = False, gpus: str = "", options: Sequence[str] = ()
) -> Iterator[Outcome]:
    """
    Yield the outcomes in order; `jobs` scripts run at a time. `quick` skips the second run unless the script's check needs it.

    Scripts that need more ranks per node than the options name are left out.
    """
    fitting = [each for each in chosen if fits(each, options)]
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda each: run_example(each, quick=quick, gpus=gpus, options=options), fitting)


def run_example(example: Example, *, quick: bool = False, gpus: str = "", options: Sequence[str] = ()) -> Outcome:
    """Check a script in an empty folder on the local engine, and time that; with `gpus`, a copy that runs on them."""
    begun = time.monotonic()
    outcome = _run_example(example, quick=quick, gpus=gpus, options=options)
    return replace(outcome, seconds=round(time.monotonic() - begun, 1))


def _run_example(example: Example, *, quick: bool, gpus: str, options: Sequence[str]) -> Outcome:
    skip = ("--skip", ",".join(REPLAYED)) if quick and example.check not in REPLAYED else ()
    command = [sys.executable, "-m", "compose_sim", "check", "--engine", "local", "--json", *skip]
    with tempfile.TemporaryDirectory(prefix="composesim-zoo-") as folder:
        script = example.path
        if gpus:
            script = Path(folder, example.path.name)
            script.write_text(_on_cuda(example.path.read_text()))
            options = ("--gpus", gpus, *options)
        try:
            done = subprocess.run(
                [*command, "--timeout", f"{_TIMEOUT_S}s", *options, *example.options, str(script)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=2 * _TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return Outcome(example=example, error=f"not done after {2 * _TIMEOUT_S} s")
        return _outcome(example, done.stdout, done.stderr)


def _on_cuda(text: str) -> str:
    """Return a script that imports `on_cuda` first, uses NCCL and has meshes of GPUs, with the same lines."""
    text = text.replace('"gloo"', '"cpu:gloo,cuda:nccl"').replace('init_device_mesh("cpu"', 'init_device_mesh("cuda"')
    text = text.replace('device_id=torch.device("cpu")', "device_id=torch.cuda.current_device()")
    return _FIRST_IMPORT.sub(lambda found: f"{_ON_CUDA}; {found[0]}", text, count=1)


def _outcome(example: Example, stdout: str, stderr: str) -> Outcome:
    try:
        values = json.loads(stdout)
    except json.JSONDecodeError:
        return Outcome(example=example, error=(stderr or stdout).strip() or "no report")
    if "error" in values:
        return Outcome(example=example, error=values["error"]["message"] + "\n" + values["error"]["evidence"])
    report = Report.from_dict(values)
    results = [result for result in report.checks if result.is_problem]
    said = frozenset(result.id for result in results)
    details = tuple(f"{result.id} {result.status}: {result.detail}" for result in results)
    failed = report.run_failed and (example.kind != "broken" or not example.expects <= said)  # whose mistake may end it
    broken = [f"{result.id}: {result.detail}" for result in report.checks if BROKEN in result.detail]
    error = f"{report.verdict}: {report.cause.message if report.cause else ''}" if failed else "\n".join(broken)
    return Outcome(example=example, said=said, details=details, error=error)


def _ids(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())
