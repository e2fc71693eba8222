"""Requests that become jobs of a cluster, and requests that cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from compose_sim.app.cluster_jobs.export import export
from compose_sim.app.request import Request, read_request
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError

SCRIPT = "import os\nprint(os.environ['COMPOSESIM_SHARED'])\n"


def request(folder: Path, **values: object) -> Request:
    """Return a request in a project with the script `scripts/train.py`."""
    (folder / "scripts").mkdir(exist_ok=True)
    (folder / "scripts" / "train.py").write_text(SCRIPT)
    spec = ClusterSpec.model_validate({"script": "scripts/train.py", "gpus": "none", **values})
    return Request(spec=spec, folder=folder, env_files={"FROM_FILE": "1"})


def test_a_job_names_the_script_as_in_the_project_and_what_it_reads(tmp_path: Path) -> None:
    made = export(request(tmp_path, script=str(tmp_path / "scripts" / "train.py")), "slurm", accelerator="")

    assert " scripts/train.py\n" in made.text
    assert "export FROM_FILE=1" in made.text
    assert "#SBATCH --job-name=train\n" in made.text
    assert {"COMPOSESIM_SHARED", "folder"} <= {change.what for change in made.changes}


def test_a_job_made_from_that_of_another_cluster_lists_what_it_does_not_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "#!/bin/bash\n#SBATCH -N 2 --licenses=matlab\nmodule load cuda\nsrun torchrun /shared/scripts/train.py\n"
    (tmp_path / "job.sh").write_text(text)
    request(tmp_path)
    monkeypatch.chdir(tmp_path)

    made = export(read_request({}, file=tmp_path / "job.sh"), "torchrun", accelerator="")

    lost = {change.what for change in made.changes}
    assert {"line 2, --licenses", "line 3, module load cuda", "line 4, script"} <= lost
    assert "line 2, --nodes" not in lost


@pytest.mark.parametrize(
    ("target", "values", "said"),
    [
        ("jobset", {"image": "host"}, "--image"),
        ("slurm", {"recipe": "ray"}, "export rayjob"),
        ("mpijob", {}, "export torchrun"),
        ("slurm", {"recipe": "exec", "script": "hostname"}, "render DIR --recipe exec"),
        ("slurm", {"script": __file__}, f"cd {Path(__file__).parent}"),
    ],
)
def test_a_request_that_cannot_be_exported_is_refused(
    tmp_path: Path, target: str, values: dict[str, object], said: str
) -> None:
    with pytest.raises(SpecError) as caught:
        export(request(tmp_path, **values), target, accelerator="")

    assert said in caught.value.hint
