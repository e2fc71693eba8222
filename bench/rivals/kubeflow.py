"""Time the Kubeflow SDK with the container backend."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from bench.leftovers import sweep
from bench.measure import Contestant
from bench.process import run_together
from bench.rivals import environment, image
from bench.setting import BENCH, CACHE, Setting

NAME = "Kubeflow SDK containers"


def contestant(setting: Setting) -> Contestant:
    """Return the SDK with the fastest settings: no runtime to fetch, the shortest poll interval, removal not timed."""
    programs = environment.install("kubeflow", "kubeflow[docker]==0.5.0")

    def measure() -> float:
        name = setting.new_name()
        home = tempfile.mkdtemp(prefix="home.", dir=CACHE)  # the SDK keeps every job's folder below HOME
        # -I: otherwise this folder comes first on the path, and `import kubeflow` finds this file.
        command = [str(programs / "python"), "-I", str(Path(BENCH, "rivals", "kubeflow_job.py")), name]
        command += [image.WITH_SCRIPT, image.SCRIPT, str(setting.threads)]
        own = {**setting.environment, "HOME": home}
        try:
            return run_together([command], folder=setting.folder, environment=own, expect='"accuracy"').seconds
        finally:
            sweep(name)
            shutil.rmtree(home, ignore_errors=True)

    return Contestant(name=NAME, measure=measure)
