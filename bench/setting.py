"""Provide what every measurement needs: the command, the scripts, the environment, and unique names."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.measure import NotMeasurableError
from bench.process import Finished, run_together

BENCH = Path(__file__).resolve().parent
REPOSITORY = BENCH.parent
CACHE = BENCH / ".cache"

IDLE_SCRIPT = "pass\n"
WAITING_SCRIPT = "import signal\n\nprint('waiting', flush=True)\nwhile True: signal.pause()\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One run of the benchmark."""

    repeats: int
    folder: Path  # contestants run here: train_ddp.py with its data, idle.py, waiting.py
    prefix: str  # the prefix of every name on the engine, so that leftovers can be found
    environment: dict[str, str]
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def python(self) -> Path:
        return Path(sys.executable)

    @property
    def threads(self) -> int:
        """CPU threads for each of four ranks, the same for all contestants; composesim plans this number by itself."""
        return max(1, len(os.sched_getaffinity(0)) // 4)

    def new_name(self) -> str:
        return f"{self.prefix}-{next(self._numbers)}"

    def composesim(self) -> str:
        command = self.python.with_name("composesim")
        if not command.exists():
            raise NotMeasurableError(f"{command.relative_to(REPOSITORY)} does not exist: run `make setup`")
        return str(command)

    def run(
        self,
        command: Sequence[str],
        *,
        folder: Path | None = None,
        expect: str = "",
        environment: Mapping[str, str] | None = None,
        codes: Sequence[int] = (0,),
    ) -> Finished:
        """Time one command in the folder and environment of the benchmark; see `process.run_together`."""
        return run_together(
            [command],
            folder=folder or self.folder,
            environment=environment or self.environment,
            expect=expect,
            allowed=codes,
        )

    def require_engine(self) -> None:
        if shutil.which("docker") is None:
            raise NotMeasurableError("there is no `docker` command: run `make engine`")
        answer = subprocess.run(["docker", "version"], capture_output=True, text=True)
        if answer.returncode != 0:
            raise NotMeasurableError(f"no Docker engine answers: {answer.stderr.strip() or 'run `make engine`'}")


@contextmanager
def prepared(repeats: int) -> Iterator[Setting]:
    """Yield the setting, with a work folder that is deleted when the benchmark ends."""
    CACHE.mkdir(exist_ok=True)
    # Not in /tmp, which is private to every node, nor in bench/.cache, which git ignores, so that `render` would copy nothing.
    with tempfile.TemporaryDirectory(prefix="composesim-bench.", dir="/var/tmp") as folder:
        path = Path(folder)
        path.chmod(0o755)
        shutil.copy(REPOSITORY / "train_ddp.py", path)
        shutil.copytree(REPOSITORY / "data", path / "data")
        (path / "idle.py").write_text(IDLE_SCRIPT)
        (path / "waiting.py").write_text(WAITING_SCRIPT)
        yield Setting(repeats=repeats, folder=path, prefix=f"bench-{os.getpid()}", environment=_environment())


def _environment() -> dict[str, str]:
    """Return our environment without variables that make every start recompile Python modules, or change what Python finds."""
    unwanted = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_NUM_THREADS"}
    return {name: value for name, value in os.environ.items() if name not in unwanted}
