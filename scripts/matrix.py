"""
Run the matrix tier of the tests with other versions of torch (`make matrix`), and write the results to docs/torch.md.

TORCH names versions of torch, and PYTHON interpreters; each pair is a row. MATRIX_HOME is where environments are kept.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from compose_sim.core.host.torch_versions import TESTED
from scripts.matrix_page import DATA, PAGE, ROOT, Row, write_row
from tests.matrix import files

LOCK = ROOT / "requirements-dev.txt"
TIER = "matrix and not docker and not gpu and not slurm and not recipes"  # what needs no more than torch
TEST_TIMEOUT_S = 900
_VERSION = re.compile(r"(?:torch==)?([0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+]*)")
_ABOUT = """
import importlib.metadata, platform
try:
    torch = importlib.metadata.version("torch").partition("+")[0]
except importlib.metadata.PackageNotFoundError:
    torch = "-"
print(platform.python_version(), torch)
"""


class MatrixError(Exception):
    """What keeps a row from being run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A virtual environment with one version of torch."""

    torch: str
    interpreter: str  # that makes it
    home: Path

    @property
    def path(self) -> Path:
        """Its folder, such as `torch-2.15.0-python3.11`; it may be a link to one that was made before."""
        return self.home / f"torch-{self.torch}-python{_minor_of(self.interpreter)}"

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.path / "bin" / "python")

    def make(self) -> None:
        """Install what is missing; nothing, if the environment is complete and was made from the same requirements."""
        stamp, wanted = self.path.with_name(f"{self.path.name}.made"), _fingerprint()
        if not Path(self.python).exists():
            self.home.mkdir(parents=True, exist_ok=True)
            _call(self.interpreter, "-m", "venv", "--clear", str(self.path))
        _, torch = self.about()
        if self.path.is_symlink():  # somebody works with it: nothing is installed; PYTHONPATH names this checkout
            if torch != self.torch:
                raise MatrixError(f"{self.path} is a link to an environment with torch {torch}, not {self.torch}")
            return
        if torch == self.torch and stamp.exists() and stamp.read_text() == wanted:
            return
        self.pip("--quiet", "--require-hashes", "--requirement", str(LOCK))
        if torch != self.torch:
            index = os.environ.get("TORCH_INDEX")
            self.pip(f"torch=={self.torch}", *(("--extra-index-url", index) if index else ()))
        self.pip("--quiet", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        stamp.write_text(wanted)

    def pip(self, *words: str) -> None:
        """Install packages."""
        _call(self.python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *words)

    def about(self) -> tuple[str, str]:
        """Return the version of Python and that of torch ("-" for none)."""
        python, torch = _output(self.python, "-I", "-W", "ignore", "-c", _ABOUT).split()
        return python, torch

    def variables(self) -> dict[str, str]:
        """Return the variables of an active environment: nodes run the Python of `VIRTUAL_ENV`, which may be another here."""
        own = {name: value for name, value in os.environ.items() if name not in ("CONDA_PREFIX", "PYTHONHOME")}
        path = f"{self.path / 'bin'}{os.pathsep}{own.get('PATH', os.defpath)}"
        return {**own, "VIRTUAL_ENV": str(self.path), "PATH": path, "PYTHONPATH": str(ROOT)}


def main() -> int:
    """Run all rows; return 1 if one failed."""
    options = _options()
    rows = []
    for interpreter in options.python:
        for version in options.torch:
            environment = Environment(torch=version, interpreter=interpreter, home=options.home)
            print(f"torch {version}, {interpreter}: {environment.path}", flush=True)
            row = run_row(environment, options.arguments)
            if not options.arguments:
                write_row(row)
            print(f"torch {row.torch}, Python {row.python}: {row.words.strip('*')}, {row.seconds} s", flush=True)
            rows.append(row)
    bad = [row for row in rows if not row.is_good]
    for row in bad:
        print(f"failed: torch {row.torch}, Python {row.python}: {row.problem or ' '.join(row.failures)}")
    print("Not written, as a part of the tests ran." if options.arguments else f"Written to {PAGE} and {DATA}.")
    return 1 if bad else 0


def run_row(environment: Environment, arguments: Sequence[str] = ()) -> Row:
    """Make the environment and run the tests; whatever goes wrong is the row's result."""
    about = {"torch": environment.torch, "commit": _commit(), "date": datetime.now(UTC).date().isoformat()}
    try:
        environment.make()
        python = environment.about()[0]
    except (MatrixError, OSError, subprocess.CalledProcessError) as error:
        print(f"matrix: {error}", file=sys.stderr)
        return Row(**about, python=_minor_of(environment.interpreter), problem="not installed")
    results = environment.home / f"{environment.path.name}.xml"
    results.unlink(missing_ok=True)
    began = time.monotonic()
    status = subprocess.run(
        [environment.python, "-m", "pytest", *_pytest_words(results), *arguments, *files()],
        cwd=ROOT,
        env=environment.variables(),
        stdin=subprocess.DEVNULL,
        check=False,
    ).returncode
    seconds = round(time.monotonic() - began)
    passed, skipped, failures = read_results(results)
    problem = "" if status == 0 or (status == 1 and failures) else f"pytest exited with {status}"
    return Row(
        **about,
        python=python,
        seconds=seconds,
        passed=passed,
        skipped=skipped,
        failures=failures,
        problem=problem,
    )


def read_results(junit: Path) -> tuple[int, int, tuple[str, ...]]:
    """Return how many tests passed and were skipped, and the names of those that failed, from a file in JUnit's format."""
    passed, skipped, failures = 0, 0, []
    for case in ElementTree.parse(junit).iter("testcase") if junit.exists() else ():
        if case.find("failure") is not None or case.find("error") is not None:
            failures.append(f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}")
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, skipped, tuple(dict.fromkeys(failures))


def _pytest_words(results: Path) -> list[str]:
    workers = str(max(2, os.cpu_count() or 2))
    words = ["-m", TIER, "-n", workers, "--dist", "loadfile", "--timeout", str(TEST_TIMEOUT_S)]
    return [*words, "-p", "no:cacheprovider", "--durations", "10", f"--junitxml={results}"]


def _fingerprint() -> str:
    """Return what stands for the requirements of an environment."""
    parts = (LOCK.read_bytes(), (ROOT / "pyproject.toml").read_bytes(), str(ROOT).encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _minor_of(interpreter: str) -> str:
    return _output(interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()


def _commit() -> str:
    """Return the commit, with a `+` if files differ from it that this program does not write."""
    commit = _output("git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD").strip()
    own = [f":!{path.relative_to(ROOT)}" for path in (DATA, PAGE)]
    return commit + ("+" if _output("git", "-C", str(ROOT), "status", "--porcelain", "--", ".", *own).strip() else "")


def _call(*command: str) -> None:
    status = subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode
    if status:
        raise MatrixError(f"exit status {status}; to see why, type: {shlex.join(command)}")


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout


def _versions(text: str) -> list[str]:
    """Return the versions of torch that the text names; all that are tested if it is empty."""
    words = text.split() or list(TESTED)
    matches = [_VERSION.fullmatch(word) for word in words]
    for word, match in zip(words, matches, strict=True):
        if match is None:
            raise argparse.ArgumentTypeError(
                f"'{word}' is not a version of torch. Type: make matrix TORCH={TESTED[-1]}"
            )
    return [match[1] for match in matches if match]


def _options() -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = os.environ.get("MATRIX_HOME") or cache / "composesim" / "matrix"
    parser = argparse.ArgumentParser(prog="python -m scripts.matrix", description=__doc__)
    parser.add_argument("--torch", type=_versions, default=os.environ.get("TORCH", ""), metavar="VERSIONS")
    parser.add_argument("--python", type=str.split, default=os.environ.get("PYTHON") or sys.executable, metavar="NAMES")
    parser.add_argument("--home", type=lambda name: Path(name).absolute(), default=str(home), metavar="DIR")
    parser.add_argument("arguments", nargs="*", metavar="-- ARGUMENT", help="of pytest; then nothing is written")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
