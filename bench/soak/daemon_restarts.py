"""Restart the Docker daemon during runs, and check that nothing is left over and that the verdict names the daemon."""

from __future__ import annotations

import signal
import time
from dataclasses import replace

from bench.private_daemon import CAN_RUN, PrivateDaemon, private_daemon
from bench.soak.setting import Row, Soak

RESTARTS = 20
_PATIENCE_S = 120.0
_INCONCLUSIVE = 3


def measure(soak: Soak) -> Row:
    """End and start a private daemon under a run, with SIGTERM and SIGKILL in turn."""
    leaked, wrong, notes = 0, 0, []
    if CAN_RUN:
        (soak.folder / "waits.py").write_text("import signal\nprint('begun', flush=True)\nwhile True: signal.pause()\n")
        with private_daemon() as daemon:
            soak = replace(soak, engine="docker", environment={**soak.environment, "DOCKER_HOST": daemon.endpoint})
            for number in range(RESTARTS):
                how = (signal.SIGTERM, signal.SIGKILL)[number % 2]
                status, left, seconds = _restart(soak, daemon, how)
                leaked, wrong = leaked + bool(left), wrong + (status != _INCONCLUSIVE)
                notes.append(f"{how.name}: exit code {status}, {len(left)} left {seconds:.1f} s after the restart")
    return Row(
        what="the Docker daemon restarts during a run (SIGTERM and SIGKILL in turn)",
        wanted=f"{RESTARTS} restarts: exit code {_INCONCLUSIVE} each time, nothing left",
        seen=f"{len(notes)} restarts: {wrong} with another exit code, {leaked} left something",
        reached=len(notes) == RESTARTS and not (leaked or wrong),
        notes=notes,
    )


def _restart(soak: Soak, daemon: PrivateDaemon, how: signal.Signals) -> tuple[int, list[str], float]:
    """Restart the daemon under a run; return the exit code, what is left, and how long it took to remove the rest."""
    name = soak.new_name()
    words = ("--nodes", "2", "--image", "host", "--launcher", "env", "waits.py")
    with soak.start(name, *words) as process:
        deadline = time.monotonic() + _PATIENCE_S
        while (soak.folder / f"{name}.out").read_text().count("begun") < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        daemon.end(how)
        daemon.start()
        started = time.monotonic()
        status = process.wait(_PATIENCE_S)
        while (left := daemon.left(name)) and time.monotonic() - started < _PATIENCE_S:
            time.sleep(0.1)
        return status, left, time.monotonic() - started
