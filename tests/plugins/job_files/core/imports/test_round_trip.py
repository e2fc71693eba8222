"""A spec that is exported and imported again gives the same plan, apart from what the export lists as changed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compose_sim.core.plan.model import Plan, Program
from compose_sim.core.plan.planner import make_plan
from compose_sim.core.request.names import RECIPE_NAMES
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.plugins.job_files.core.exports.job import SLURM_KEYS, changes_of, job_of
from compose_sim.plugins.job_files.core.exports.targets import TARGETS
from compose_sim.plugins.job_files.core.imports.kinds import is_job_file, read_job_file
from tests.builders import a_host

READ = [
    name for name, each in TARGETS.items() if name != "torchrun" and each.recipe in RECIPE_NAMES
]  # which writes command lines, not a job file
SECRET = "HF_TOKEN"
MIB = 1 << 20
LETTERS = st.characters(exclude_categories=["Cc", "Cs", "Co", "Cn"])
SPECIAL = st.sampled_from(["\n", "$", "$$", "$(A)", "${A}", "$1", "`", "\\", "'", '"', "#", " ", "{0..3}"])
TEXT = st.lists(LETTERS | SPECIAL, max_size=6).map("".join)
NAMES = st.from_regex(r"[A-Z]{1,4}_X", fullmatch=True)


@st.composite
def specs(draw: st.DrawFn, target: str) -> dict[str, Any]:
    """Return a spec in whole units of the target: Slurm counts CPUs and MiB, SkyPilot GiB."""
    recipe = TARGETS[target].recipe
    unit = {"skypilot": 1024}.get(target, 1)
    most_nodes = draw(st.integers(1, 5))
    optional: dict[str, Any] = {
        "cpus": st.integers(1, 16) if target == "slurm" else st.sampled_from([0.5, 1.5, 2, 12]),
        "memory": st.integers(544, 4096).map(lambda size: size * unit * MIB),  # enough for four ranks
        "shm_size": st.integers(7 * MIB, 512 * MIB),
        "timeout": st.integers(1, 10**6),
        "env": st.dictionaries(NAMES | st.just(SECRET), TEXT, max_size=3),
        "gpus": st.sampled_from(["none", "auto"]),
        "gpus_per_node": st.integers(1, 8),
        "link": st.just(["1gbit"]),
        "scratch": st.just("8m"),
        "hang_timeout": st.just("1m"),
        "name": st.just("own-name"),
    }
    if target == "slurm" and SLURM_KEYS:  # the import ignores them: there is one machine
        optional |= {"partition": st.just("gpu"), "constraint": st.just("a100"), "sbatch": st.just("--qos=high -w n1")}
    if recipe == "ddp":
        optional["max_restarts"] = st.integers(1, 5)
        optional["master_port"] = st.integers(1024, 65535)
        optional["elastic"] = st.just(f"1:{most_nodes + 1}")
    if recipe != "ray":
        optional["nproc_per_node"] = st.integers(1, 4)
    given_keys = draw(st.sets(st.sampled_from(sorted(optional))))
    values = {key: draw(optional[key]) for key in sorted(given_keys)}
    if values.get("gpus") == "none":
        values.pop("gpus_per_node", None)
    args = draw(st.lists(TEXT, max_size=3))
    return {
        "recipe": recipe,
        "nodes": most_nodes,
        "image": "example/train:1",
        "args": args,
        "script": "train.py",
        **values,
    }


def plan_of(values: dict[str, Any]) -> Plan:
    spec = ClusterSpec.model_validate(values)
    program = Program(target=str(spec.script), arguments=spec.args, folder="/project")
    host = a_host(memory_bytes=1 << 50, cpus=1000)
    return make_plan(spec, host, run="demo", run_folder="/runs/demo", program=program)


@pytest.mark.parametrize("target", READ)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_an_import_undoes_an_export(target: str, data: st.DataObject) -> None:
    values, cluster = data.draw(specs(target)), TARGETS[target]
    spec = ClusterSpec.model_validate(values)
    program = Program(target="train.py", arguments=spec.args, folder="/project")
    job = job_of(spec, program, name="train", image=spec.image, accelerator="H100", variables={})
    lost = {
        change.what for change in changes_of(spec, job, keeps=cluster.keeps, needs_image=cluster.needs_image, source="")
    }

    text = cluster.write(job)
    has_program = target != "raycluster"  # which names no script, as its list of changes says
    imported = read_job_file(text, "job", {}, has_program=not has_program)
    program_given = {} if has_program else {"script": "train.py", "args": values["args"]}

    assert is_job_file(text)
    image = {} if "image" in cluster.keeps else {"image": "auto"}
    if SECRET in values.get("env", {}):
        values = {**values, "env": {name: text for name, text in values["env"].items() if name != SECRET}}
        assert any(SECRET in note.text and note.verdict == "ignored" for note in imported.notes) == (target != "slurm")
    assert plan_of({**imported.values, **program_given}) == plan_of(
        {key: each for key, each in values.items() if key not in {*lost, *SLURM_KEYS} - {"gpus"}} | image
    )
