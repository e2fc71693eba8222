"""Time TorchX with the local_docker scheduler."""

from __future__ import annotations

import subprocess

from bench.leftovers import sweep
from bench.measure import Contestant, NotMeasurableError
from bench.rivals import environment, image
from bench.setting import Setting

NAME = "TorchX local_docker"
_NETWORK = "torchx"  # TorchX shares it between all jobs and never removes it


def contestant(setting: Setting, image_id: str) -> Contestant:
    """Return TorchX with the fastest settings: no workspace to build into an image, no registry to query, removal not timed."""
    torchx = environment.install("torchx", "torchx==0.7.0", "docker>=7")
    had_network = _has_network()

    def measure() -> float:
        name = setting.new_name()
        command = [str(torchx / "torchx"), "run", "--scheduler", "local_docker", "--wait", "--workspace", ""]
        command += ["dist.ddp", "-j", "4x1", "--name", f"/{name}", "--image", image_id, "--memMB", "4096"]
        command += ["--env", f"OMP_NUM_THREADS={setting.threads}", "--script", image.SCRIPT]
        try:
            return setting.run(command, expect='"accuracy"').seconds
        finally:
            sweep(name)
            if not had_network:
                subprocess.run(["docker", "network", "rm", _NETWORK], capture_output=True)

    return Contestant(name=NAME, measure=measure)


def _has_network() -> bool:
    answer = subprocess.run(["docker", "network", "ls", "--format", "{{.Name}}"], capture_output=True, text=True)
    if answer.returncode != 0:
        raise NotMeasurableError(f"docker network ls: {answer.stderr.strip()}")
    return _NETWORK in answer.stdout.split()
