"""What becomes of a run whose composesim is killed? This process outlives it, and removes the run within seconds.

It waits for the end of the pipe that composesim holds, which the kernel closes whatever happens, and only then imports the rest.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from compose_sim.errors import ComposesimError, SpecError

if TYPE_CHECKING:
    from compose_sim.engine.run_folder.folder import RunFolder

_RELEASED = b"released\n"
_BETWEEN_LOOKS_S = 1.0  # a docker client that was killed may have left the daemon with containers to create
_PATIENCE_S = 60.0
_NOTE = "composesim ended without cleaning up; the supervisor removed the run"


class Supervisor:
    """A run's supervisor, while composesim lives. Leaving its context in good order releases it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def release(self) -> None:
        """The run is over and as it should be: leave it alone from now on. Once is enough, twice does no harm."""
        if self._process.returncode is None:
            with contextlib.suppress(BrokenPipeError):  # somebody killed it
                self._process.communicate(_RELEASED)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.release()
        elif (
            self._process.returncode is None
        ):  # nobody knows whether all is removed: let it look, once composesim has ended
            _unreleased.append(self)


_unreleased: list[Supervisor] = []  # kept, since an object that is dropped closes its pipe


def start_supervisor(engine_name: str, run: str, folder: Path) -> Supervisor:
    """Watch over a run from now on. `folder` is the run's, and exists."""
    with (folder / "supervisor.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "compose_sim.engine.lifetime.supervisor", engine_name, run, str(folder.resolve())],
            cwd=Path(__file__).parents[2],  # from where the module is found, installed or not
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return Supervisor(process)


def main() -> None:
    """Wait; reap if composesim ended without a word. Arguments: engine, run, run folder."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the programs that we start would inherit
    engine_name, run, folder = sys.argv[1:4]
    if sys.stdin.buffer.read() == _RELEASED:
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.info("composesim has ended without a word about run '%s'", run)
    _reap(engine_name, run, Path(folder))


def _reap(engine_name: str, run: str, path: Path) -> None:
    """Remove the run until two looks in a row find nothing of it, or another composesim that has taken the name over."""
    from compose_sim.engine.run_folder.folder import RunFolder

    folder = RunFolder(path)
    deadline = time.monotonic() + _PATIENCE_S
    quiet_looks, is_ours, found = 0, False, False
    while time.monotonic() < deadline:
        is_ours = is_ours or _claim(folder)
        is_left = is_ours and _remove(engine_name, run)
        found = found or is_left
        quiet_looks = 0 if is_left else quiet_looks + 1
        if quiet_looks == 2:
            break
        time.sleep(_BETWEEN_LOOKS_S)
    logging.info("nothing is left" if is_ours and quiet_looks else "left it as it is")
    if found and (path / "events").is_dir():
        folder.append("note", reason=_NOTE)


def _claim(folder: RunFolder) -> bool:
    """Hold the run's folder, so that no new run of this name begins meanwhile; False while another process holds it."""
    try:
        folder.claim()
    except SpecError as error:
        logging.info("%s", error)
        return False
    return True


def _remove(engine_name: str, run: str) -> bool:
    """Remove the run; whether there was anything to remove, or none can know."""
    from compose_sim.engine.registry import make_engine

    try:
        engine = make_engine(engine_name)
        if run not in engine.runs_left():
            return False
        logging.info("removing what is left of run '%s'", run)
        engine.remove(run)
    except (ComposesimError, OSError) as error:
        logging.warning("%s", error)
    return True


if __name__ == "__main__":
    main()
