"""Remove a run whose composesim was killed, or could not remove it: a process that outlives composesim acts within seconds.

It reads from a pipe whose other end composesim holds. The kernel closes that end however composesim dies; only then does the
supervisor import the rest of composesim. While the engine does not respond, it tries again, for a day.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from compose_sim.errors import ComposesimError, SpecError
from compose_sim.node.shared.process import ALIVE

if TYPE_CHECKING:
    from compose_sim.engine.run_folder.folder import RunFolder
    from compose_sim.engine.run_folder.safe_files import SafeFolder

_RELEASED = b"released\n"
_CHECK_EVERY_S = 1.0  # a docker client that was killed may have left the daemon with containers to create
_LONGEST_PAUSE_S = 10.0  # between tries to reach an engine that does not respond; `down` waits for us a little longer
_TIMEOUT_S = 24 * 3600.0
_NOTE = "composesim ended without cleaning up; the supervisor removed the run"


class Supervisor:
    """A run's supervisor, as composesim sees it."""

    def __init__(self, process: subprocess.Popen[bytes], files: SafeFolder, alive: int) -> None:
        self.process, self._files, self._alive = process, files, alive

    def release(self) -> None:
        """Have the supervisor leave the run alone, because its nodes are gone or kept. May be called more than once."""
        if self.process.returncode is None:
            with contextlib.suppress(OSError, SpecError):  # a script of the local engine can put a folder there
                self._files.remove(ALIVE)
            self._unlock()
            with contextlib.suppress(BrokenPipeError):  # the supervisor was killed
                self.process.communicate(_RELEASED)

    def hand_over(self) -> None:
        """Have the supervisor remove what is left of the run, unless it was released."""
        if self.process.returncode is None and self.process.stdin:
            self.process.stdin.close()
            self._unlock()
            _at_work.append(self)

    def _unlock(self) -> None:
        alive, self._alive = self._alive, -1
        if alive >= 0:
            os.close(alive)


_at_work: list[Supervisor] = []  # kept because Python warns about a Popen object that is deleted while its process runs


def start_supervisor(engine_name: str, run: str, folder: Path) -> Supervisor:
    """Start the supervisor of a run, whose folder must exist."""
    from compose_sim.engine.run_folder.safe_files import SafeFolder

    files = SafeFolder(folder)
    files.replace("supervisor.log", "")
    files.replace(ALIVE, "", mode=0o644)
    # This process and the supervisor hold the lock together. When both are gone, nodes end by themselves.
    alive = files.open_file(ALIVE, os.O_RDWR)
    fcntl.flock(alive, fcntl.LOCK_EX)
    with os.fdopen(files.open_file("supervisor.log", os.O_WRONLY | os.O_APPEND), "a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "compose_sim.engine.lifetime.supervisor", engine_name, run, str(folder.resolve())],
            cwd=Path(__file__).parents[2],  # where Python finds the module, installed or not
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(alive,),
            start_new_session=True,
        )
    return Supervisor(process, files, alive)


def main() -> None:
    """Wait for the end of composesim, and remove the run unless released before. Arguments: engine, run, run folder."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # SIG_IGN would be inherited by the programs that we start
    engine_name, run, folder = sys.argv[1:4]
    if sys.stdin.buffer.read() == _RELEASED:
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.info("composesim has ended without releasing run '%s'", run)
    _remove_until_gone(engine_name, run, Path(folder))


def _remove_until_gone(engine_name: str, run: str, path: Path) -> None:
    """Remove the run until two checks in a row find nothing of it, or another composesim has claimed the name."""
    from compose_sim.engine.run_folder.folder import RunFolder

    folder = RunFolder(path)
    deadline = time.monotonic() + _TIMEOUT_S
    checks_without_run, is_ours, removed, pause_s = 0, False, False, _CHECK_EVERY_S
    while time.monotonic() < deadline:
        is_ours = is_ours or _claim(folder)
        try:
            found = is_ours and _remove(engine_name, run, path, is_last=checks_without_run == 1)
            pause_s = _CHECK_EVERY_S
        except (ComposesimError, OSError) as error:
            found, pause_s = True, min(1.5 * pause_s, _LONGEST_PAUSE_S)
            logging.warning("%s; trying again in %.1f s", error, pause_s)
        removed = removed or found
        checks_without_run = 0 if found else checks_without_run + 1
        if checks_without_run == 2:
            break
        time.sleep(pause_s)
    logging.info("nothing is left" if is_ours and checks_without_run else "gave up")
    if removed and folder.files.status("plan.json"):
        folder.append_event("note", message=_NOTE)


def _claim(folder: RunFolder) -> bool:
    """Claim the run's folder, so that no new run of this name starts; return False if another process holds it."""
    try:
        folder.claim()
    except SpecError as error:
        logging.info("%s", error)
        return False
    return True


def _remove(engine_name: str, run: str, folder: Path, *, is_last: bool) -> bool:
    """Remove the run; return whether it had nodes or a network. The last look (`is_last`) also opens the host that it had closed."""
    from compose_sim.engine.host.run_names import claimed_name
    from compose_sim.engine.registry import make_engine
    from compose_sim.engine.run_folder.folder import RunFolder, is_run_folder

    engine = make_engine(engine_name)
    remaining = engine.remaining_runs()
    if run not in remaining:
        if is_last:  # the run may have closed this machine to nodes that it never started
            with contextlib.suppress(SpecError), claimed_name(engine_name, run):
                engine.forget_absent_runs(over=run)
        return False
    other = Path(remaining[run] or folder)  # another project may have begun a run of the same name
    if other.resolve() != folder and is_run_folder(other) and RunFolder(other).is_claimed():
        return False
    logging.info("removing what is left of run '%s'", run)
    with claimed_name(engine_name, run):
        engine.remove(run)
    return True


if __name__ == "__main__":
    main()
