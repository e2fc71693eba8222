"""Time plain `docker compose` with the file that composesim rendered."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from bench.leftovers import sweep
from bench.process import RunFailedError
from bench.setting import Setting


class RawCompose:
    """A rendered folder, run without composesim."""

    def __init__(self, setting: Setting, nodes: int, script: str) -> None:
        self._setting = setting
        self._name = setting.new_name()
        self._folder = Path(setting.folder, f"rendered-{self._name}")
        command = [setting.composesim(), "render", str(self._folder), "--nodes", str(nodes), "--engine", "docker"]
        command += ["--image", "host", "--launcher", "env", "--name", self._name]
        # A separate subnet: the one that `render` would choose is free now, but may belong to a run when this folder is started.
        command += ["--subnet", f"10.123.{os.getpid() % 256}.0/24", script]
        setting.run(command)

    def up_wait_down(self) -> float:
        """Return the seconds of `up -d`, of waiting for every node to exit, and of `down`, together."""
        try:
            started = time.monotonic()
            self._compose("up", "--detach", "--quiet-pull")
            codes = self._docker("wait", *self.ids()).split()
            self._compose("down")
            seconds = time.monotonic() - started
        finally:
            sweep(self._name)
        if any(code != "0" for code in codes):
            raise RunFailedError(f"the rendered file's nodes exited with {' '.join(codes)}")
        return seconds

    def start(self) -> None:
        self._compose("up", "--detach", "--quiet-pull")

    def force_remove(self) -> float:
        """Return the seconds of one `docker rm -f` of all nodes, which takes up to 50 at a time, and of removing the network."""
        try:
            started = time.monotonic()
            self._docker("rm", "--force", *self.ids())
            self._docker("network", "rm", *self._docker("network", "ls", "--quiet", *self._filter()).split())
            return time.monotonic() - started
        finally:
            sweep(self._name)

    def ids(self) -> list[str]:
        return self._docker("ps", "--all", "--quiet", "--no-trunc", *self._filter()).split()

    def remove(self) -> None:
        sweep(self._name)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _filter(self) -> list[str]:
        return ["--filter", f"label=composesim.run={self._name}"]

    def _compose(self, *arguments: str) -> None:
        self._setting.run(["docker", "compose", "--progress", "quiet", *arguments], folder=self._folder)

    def _docker(self, *arguments: str) -> str:
        answer = subprocess.run(["docker", *arguments], capture_output=True, text=True)
        if answer.returncode != 0:
            raise RunFailedError(f"`docker {arguments[0]}` exited with {answer.returncode}: {answer.stderr.strip()}")
        return answer.stdout
