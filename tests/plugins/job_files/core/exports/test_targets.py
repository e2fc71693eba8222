"""Jobs for clusters: golden documents, quoting that arrives unchanged, and what a target cannot keep."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from compose_sim.core.request.names import SERVICE_NAMES
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError
from compose_sim.plugins.job_files.core.exports.job import LEFT_OUT, SLURM_KEYS
from compose_sim.plugins.job_files.core.exports.targets import TARGETS, own_changes
from tests.plugins.job_files.core.exports.jobs import ARGUMENTS, FULL, changes, document, job, spec_of

GOLDEN = Path(__file__).parent / "golden"
SCRIPTS = ("torchrun", "slurm")


def reported(target: str, **values: Any) -> set[str]:
    """Return the keys that a target reports as changed."""
    return {change.what for change in changes(target, **values)}


@pytest.mark.parametrize("target", TARGETS)
def test_a_document_is_as_reviewed(target: str, update_golden: bool) -> None:
    golden = GOLDEN / f"{target}.{'sh' if target in SCRIPTS else 'yaml'}"
    text = document(target)
    if update_golden:
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)

    assert text == golden.read_text()


@pytest.mark.parametrize("target", TARGETS)
def test_the_value_of_a_secret_is_in_no_document(target: str) -> None:
    text = document(target)

    assert "secret-value" not in text
    assert "HF_TOKEN" in text


def test_bash_reads_the_same_arguments_from_the_script_for_sbatch() -> None:
    """With stand-ins for the two programs of Slurm that print what they get."""
    stand_ins = """
scontrol() { if [ "$2" = hostnames ]; then echo node-7; echo node-8; else echo "   NodeAddr=10.0.0.7 NodeHostName=$3"; fi; }
srun() { shift; SLURM_NODEID=1 "$@"; }
torchrun() { printf '%s\\0' "$@" "$GREETING"; }
export -f torchrun
export SLURM_JOB_NODELIST=node-[7-8] SLURM_JOB_ID=12 HF_TOKEN=x
"""
    text = document("slurm", max_restarts=0).replace("exec torchrun", "torchrun")

    done = subprocess.run(["bash"], input=stand_ins + text, capture_output=True, text=True, check=True)

    words = done.stdout.split("\0")
    assert words[:2] == ["--nnodes=4", "--nproc-per-node=2"]
    assert words[2:5] == ["--node-rank=1", "--master-addr=10.0.0.7", "--master-port=20012"]
    assert words[5:-2] == ["train.py", *ARGUMENTS]
    assert words[-2] == FULL["env"]["GREETING"]


def test_a_script_does_not_start_without_its_secret() -> None:
    done = subprocess.run(["bash"], input=document("slurm"), capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "HF_TOKEN" in done.stderr


def test_sizes_are_those_of_kubernetes() -> None:
    """512m is 512 MiB for Docker, and 0.512 bytes for Kubernetes."""
    made = yaml.safe_load(document("volcano", memory="512m", shm_size="10000001"))
    pod = made["spec"]["tasks"][0]["template"]["spec"]

    assert pod["containers"][0]["resources"]["limits"]["memory"] == "512Mi"
    assert pod["volumes"][0]["emptyDir"]["sizeLimit"] == "10000001"


@pytest.mark.parametrize("target", [name for name, each in TARGETS.items() if "kubectl" in each.submit])
def test_names_that_a_controller_would_refuse_are_refused_first(target: str) -> None:
    spec = spec_of(recipe=TARGETS[target].recipe, image="example/train:1", name="a" * 48, nodes=1000)

    with pytest.raises(SpecError) as caught:
        TARGETS[target].write(replace(job(spec), name="a" * 60))

    assert f"--name {'a' * 30}" in caught.value.hint


def test_what_a_target_cannot_keep_is_reported() -> None:
    values = {"link": ("1gbit",), "timeout": "1h", "elastic": "2:4", "scratch": "64m"}
    everywhere = {"link", "scratch", "composesim", "gpus", *(["with"] if SERVICE_NAMES else [])}
    common = {"nodes": 2, "with": SERVICE_NAMES[:1], **values}

    assert reported("torchrun", **common) == everywhere | {"timeout", "elastic"}
    assert reported("slurm", **common) == everywhere | {"elastic"}
    assert reported("pytorchjob", **common) == everywhere | {"project"}


def test_no_key_of_a_spec_is_left_out_silently() -> None:
    """A new key is kept by some target, or has a sentence, or changes nothing about the job."""
    in_the_job = {"nodes", "recipe", "gpus", "env", "env_file", "mounts", "module", "script", "args"}

    assert set(ClusterSpec.model_fields) == in_the_job | set(LEFT_OUT)


def test_a_spec_without_settings_loses_only_composesim() -> None:
    assert reported("slurm", nodes=2, gpus="none") == {"composesim"}


def test_nodes_become_equal() -> None:
    nodes = [{"cpus": 1, "memory": "1g", "env": {"ROLE": "small"}}, {"cpus": 4, "memory": "2g"}]
    spec = spec_of(nodes=nodes, gpus="none")

    assert (job(spec).cpus, job(spec).memory_bytes) == (4, 2 << 30)
    assert reported("slurm", nodes=nodes, gpus="none") == {"nodes.cpus", "nodes.memory", "nodes.0.env", "composesim"}


def test_unequal_numbers_of_ranks_are_refused() -> None:
    with pytest.raises(SpecError):
        job(spec_of(nodes=[{"nproc_per_node": 1}, {"nproc_per_node": 2}]))


def test_variables_of_composesim_that_a_script_reads_are_reported() -> None:
    found = changes("slurm", source='os.environ["COMPOSESIM_SHARED"]', gpus="none")

    assert {change.what for change in found} == {"COMPOSESIM_SHARED", "composesim"}


def test_the_secret_of_a_job_is_created_by_a_command() -> None:
    text = json.dumps([change.text for change in own_changes(TARGETS["jobset"], job(spec_of(**FULL)))])

    assert "kubectl create secret generic full-job-secrets" in text


def test_skypilot_needs_the_name_of_the_gpu() -> None:
    with pytest.raises(SpecError) as caught:
        TARGETS["skypilot"].write(job(spec_of(nodes=2)))

    assert "--accelerator" in caught.value.hint


@pytest.mark.skipif(not SLURM_KEYS, reason="no plug-in has options of Slurm")
def test_options_of_slurm_are_directives_there_and_reported_elsewhere() -> None:
    values = {"partition": "gpu", "time": "01:00:00", "sbatch": "--qos=high", "gpus": "none"}
    lines = document("slurm", timeout=None, **values).splitlines()

    assert {"#SBATCH --partition=gpu", "#SBATCH --time=01:00:00", "#SBATCH --qos=high"} <= set(lines)
    assert {"partition", "time", "sbatch"} <= reported("jobset", **values)
    assert reported("slurm", nodes=2, gpus="none", timeout="10m", time="1:00:00") == {"timeout", "composesim"}
