"""`render --engine slurm` writes the job that `export slurm` prints, and the code that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from compose_sim.app.render import render_job
from compose_sim.app.request import Request
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError
from compose_sim.plugins.job_files.app.job_file import export
from compose_sim.plugins.registry import ENGINES, built_in


@pytest.mark.skipif("slurm" not in built_in(ENGINES), reason="no plug-in has such an engine")
def test_a_folder_for_slurm_holds_the_exported_job_and_the_code(tmp_path: Path) -> None:
    project, folder = tmp_path / "project", tmp_path / "new"
    project.mkdir()
    (project / "train.py").write_text("print('hi')\n")
    values = {"script": "train.py", "gpus": "none", "engine": "slurm"}
    request = Request(spec=ClusterSpec.model_validate(values), folder=project)

    job, size = render_job(request, folder, force=False)

    assert (folder / "job.sbatch").read_text() == job.text == export(request, "slurm", accelerator="").text
    assert (folder / "code" / "train.py").read_text() == "print('hi')\n"
    assert size == len("print('hi')\n")
    with pytest.raises(SpecError):
        render_job(request, folder, force=False)
