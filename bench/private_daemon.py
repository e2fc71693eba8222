"""A Docker daemon to stop and kill, with storage and a network namespace that the machine's own daemon never sees."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CAN_RUN = os.geteuid() == 0 and all(shutil.which(each) for each in ("dockerd", "unshare"))
_ANSWERS_WITHIN_S = 60.0


class PrivateDaemon:
    """One daemon, which keeps what it stores while it is down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoint = f"unix://{folder}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the daemon, and return when it answers."""
        for left in (
            "docker.pid",
            "exec/containerd/containerd.pid",
        ):  # SIGKILL leaves them, and their processes may be zombies
            (self.folder / left).unlink(missing_ok=True)
        # The network namespace keeps its firewall rules and bridges away from those of the machine's own daemon.
        argv = ["unshare", "--net", "dockerd", "--host", self.endpoint, "--bridge", "none", "--storage-driver", "vfs"]
        for option, name in {"--data-root": "data", "--exec-root": "exec", "--pidfile": "docker.pid"}.items():
            argv += [option, str(self.folder / name)]
        with (self.folder / "dockerd.log").open("a") as log:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + _ANSWERS_WITHIN_S
        while self.docker("version").returncode:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError((self.folder / "dockerd.log").read_text()[-2000:])
            time.sleep(0.1)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the daemon with a signal, and return when it has exited."""
        if self._process:
            self._process.send_signal(number)
            self._process.wait()

    def pause(self) -> None:
        """Have the daemon accept connections and answer nothing, as one that hangs does."""
        if self._process:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the daemon go on."""
        if self._process:
            self._process.send_signal(signal.SIGCONT)

    def left(self, run: str) -> list[str]:
        """The containers and networks of a run."""
        wanted = ("--quiet", "--filter", f"label=composesim.run={run}")
        return [line for verb in (("ps", "--all"), ("network", "ls")) for line in self._lines(*verb, *wanted)]

    def docker(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a docker command on this daemon."""
        return subprocess.run(["docker", "--host", self.endpoint, *words], capture_output=True, text=True)

    def _lines(self, *words: str) -> list[str]:
        done = self.docker(*words)
        done.check_returncode()  # no answer must not look like nothing left
        return done.stdout.splitlines()


@contextmanager
def private_daemon() -> Iterator[PrivateDaemon]:
    """A daemon, with everything that it stores, inside the context."""
    with tempfile.TemporaryDirectory(prefix="composesim-dockerd.", ignore_cleanup_errors=True) as folder:
        daemon = PrivateDaemon(Path(folder))
        daemon.start()
        try:
            yield daemon
        finally:
            if daemon.docker("version").returncode:
                daemon.start()  # only a daemon can unmount what one that was killed has mounted
            daemon.docker("rm", "--force", *daemon.docker("ps", "--all", "--quiet").stdout.split())
            daemon.end()
            # The daemon mounts its data on themselves, and the network of containers that use the host's.
            for left in ("data", "exec/netns/default"):
                subprocess.run(["umount", Path(folder) / left], capture_output=True)
