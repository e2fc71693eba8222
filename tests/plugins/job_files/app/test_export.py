"""Requests that become jobs of a cluster, and requests that cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from compose_sim.app.request import Request, read_request
from compose_sim.core.request.names import RECIPE_NAMES, SERVICE_NAMES
from compose_sim.core.request.spec import ClusterSpec, NodeSpec
from compose_sim.errors import SpecError
from compose_sim.plugins.job_files.app.job_file import export
from compose_sim.plugins.job_files.core.exports.job import SLURM_KEYS
from compose_sim.plugins.job_files.core.exports.targets import TARGETS

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
        *([("slurm", {"sbatch": "--exclusive -N 9"}, "up --nodes")] if SLURM_KEYS else []),
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


# A value for every key of a spec that is not its default.
VALUES: dict[str, object] = {
    **{"nodes": 3, "nproc_per_node": 3, "options": {"cpus": "4"}, "engine": "local", "image": "team/other:2"},
    **{"python": ".venv/bin/python", "backend": "gloo", "gpus": "0,1", "gpus_per_node": 2, "share": "off"},
    **{"gpu_memory": "8g", "launcher": "env", "master": "node-0", "master_port": 29501, "max_restarts": 2},
    **{"elastic": "1:4", "link": ["1gbit"], "scratch": "64m", "services": SERVICE_NAMES, "publish": {"board": 9999}},
    **{"env": {"MODE": "fast"}, "mounts": ["/data:/data"], "memory": "2g", "cpus": 2, "shm_size": "2g"},
    **{"user": "nobody", "network": "isolated", "subnet": "10.210.0.0/24", "timeout": "10m", "hang_timeout": "1m"},
    **{"node_timeout": "60s", "name": "demo", "keep": True, "force": True, "keep_runs": 5, "keep_runs_size": "1g"},
    **{"check": {"steps": 5}, "args": ["--epochs", "3"]},
}
OF_SLURM = {"partition": "gpu", "account": "team", "time": "1:00:00", "constraint": "a100", "sbatch": "--qos=high"}
VALUES |= {key: OF_SLURM[key] for key in SLURM_KEYS}
ELSEWHERE = {"recipe", "module", "script", "env_file"}  # name the target, the program, and files that the request holds
OF_A_NODE: dict[str, object] = {
    **{"nproc_per_node": 2, "gpus": "0,1", "memory": "3g", "cpus": 3, "env": {"ROLE": "x"}},
}


def test_there_is_a_value_for_every_key() -> None:
    assert {*VALUES} | ELSEWHERE == {*ClusterSpec.model_fields}
    assert {*OF_A_NODE} == {*NodeSpec.model_fields}


@pytest.mark.parametrize("target", [name for name, each in TARGETS.items() if each.recipe in RECIPE_NAMES])
def test_every_key_is_in_the_job_or_in_the_list_of_changes(tmp_path: Path, target: str) -> None:
    base: dict[str, object] = {"recipe": TARGETS[target].recipe, "image": "team/train:1", "gpus": "all"}

    def exported(**values: object) -> tuple[str, set[str]]:
        made = export(request(tmp_path, **{**base, **values}), target, accelerator="H100")
        return made.text, {change.what for change in made.changes}

    text, _ = exported()
    silent = []
    for key, value in VALUES.items():
        if key == "services" and not SERVICE_NAMES:
            continue
        field = ClusterSpec.model_fields[key]
        with_key, said = exported(**{field.alias or key: value})
        if with_key == text and not said & {key, field.alias, "script" if key == "args" else key}:
            silent.append(key)
    text, _ = exported(nodes=[{}, {}])
    for key, value in OF_A_NODE.items():
        nodes = [{key: value}, {key: value} if key == "nproc_per_node" else {}]
        with_key, said = exported(nodes=nodes)
        if with_key == text and not said & {f"nodes.{key}", f"nodes.0.{key}"}:
            silent.append(f"nodes.{key}")

    assert silent == []
