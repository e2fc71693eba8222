"""Every value of a job file ends in the list of what was taken, changed and ignored."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compose_sim.core.request.yaml_source import dotted, read_documents
from compose_sim.plugins.job_files.core.imports.draft import JobFile, Note
from compose_sim.plugins.job_files.core.imports.kinds import read_job_file
from compose_sim.plugins.job_files.core.imports.launch import read_launch
from tests.plugins.job_files.core.exports.test_validators import problems
from tests.plugins.job_files.core.imports.documents import DOCUMENTS, text_of

KeyPath = tuple[str | int, ...]
ADDED = "addedByTheTest"


def parts(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield every value in a document with its path, those that hold others too."""
    yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from parts(each, (*path, key))


def notes_about(job: JobFile, path: KeyPath, lines: range) -> list[Note]:
    """Return the notes about a value, or about what holds it."""
    keys = {dotted(path[:length]) for length in range(1, len(path) + 1)}
    return [note for note in job.notes if note.key in keys and note.line in lines]


def read(documents: list[Any]) -> JobFile:
    return read_job_file(text_of(documents), "job", {}, has_program=True)


def lines_of(documents: list[Any]) -> list[range]:
    """Return the lines of each document of a file."""
    found = read_documents(text_of(documents), "job")
    return [range(each.line_of(()), each.last_line + 1) for each in found]


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_every_value_is_taken_changed_or_ignored(kind: str) -> None:
    documents = DOCUMENTS[kind]
    job = read(documents)

    for document, lines in zip(documents, lines_of(documents), strict=True):
        leaves = [path for path, value in parts(document) if not isinstance(value, dict | list) or not value]
        assert [dotted(path) for path in leaves if not notes_about(job, path, lines)] == []
    assert {note.verdict for note in job.notes} >= {"taken", "ignored"}


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_key_that_no_kind_has_is_ignored_wherever_it_is(kind: str) -> None:
    """No note about what holds a value may hide that it was not read."""
    documents = copy.deepcopy(DOCUMENTS[kind])
    variables = ("environment", "envs")  # any key of these is a variable
    places = [
        [(path, value) for path, value in parts(each) if isinstance(value, dict) and not {*path} & {*variables}]
        for each in documents
    ]
    for _, value in [place for found in places for place in found]:
        value[ADDED] = "x"
    job = read(documents)

    for found, lines in zip(places, lines_of(documents), strict=True):
        for path, _ in found:
            notes = notes_about(job, (*path, ADDED), lines)
            is_copy = any(note.text.startswith("like ") for note in notes)
            assert is_copy or {note.verdict for note in notes} & {"changed", "ignored"}, dotted(path)


# Fills every field of a model, but for those that the test provides.
FULL_MODEL = """
import json, sys, typing
from kubeflow_trainer_api import models
def filled(kind, above=()):
    arguments = [each for each in typing.get_args(kind) if each is not type(None)]
    origin = typing.get_origin(kind)
    if origin is list:
        return [filled(arguments[0], above)]
    if origin is dict:
        return {"key": filled(arguments[1], above)}
    if arguments:
        return filled(arguments[0], above)
    if not hasattr(kind, "model_fields"):
        return "1"
    if above.count(kind):
        return {}
    return {field.alias or name: filled(field.annotation, (*above, kind)) for name, field in kind.model_fields.items()}
print(json.dumps(filled(getattr(models, json.load(sys.stdin)))))
"""


@pytest.mark.recipes
@pytest.mark.parametrize(
    ("kind", "model"), [("jobset", "JobsetV1alpha2JobSet"), ("trainjob", "TrainerV1alpha1TrainJob")]
)
def test_every_field_of_a_model_is_taken_changed_or_ignored(recipes_python: Path, kind: str, model: str) -> None:
    first, *others = DOCUMENTS[kind]
    documents = [merged(problems(recipes_python, FULL_MODEL, model), first), *others]
    job = read(documents)

    leaves = [path for path, value in parts(documents[0]) if not isinstance(value, dict | list) or not value]
    assert len(leaves) > 500
    lines = lines_of(documents)[0]
    assert [dotted(path) for path in leaves if not notes_about(job, path, lines)] == []


def merged(full: Any, own: Any) -> Any:
    """Return a full document with the values of another one in place of its own."""
    if isinstance(full, dict) and isinstance(own, dict):
        return {key: merged(full.get(key), own.get(key)) for key in {**full, **own}}
    if isinstance(full, list) and isinstance(own, list) and own and isinstance(own[0], dict):
        return [merged(full[0] if full else None, each) for each in own]
    return full if own is None else own


OPTIONS = """
--account=a --array=0-3 --begin=now --comment=x --constraint=c --cpus-per-task=2 --cpus-per-gpu=1 --deadline=now --dependency=afterok:1
--distribution=block --error=e --exclude=n9 --exclusive --export=ALL --get-user-env --gpu-bind=none --gpus-per-node=2 --gres=gpu:2
--hint=nomultithread --hold --input=i --job-name=j --licenses=l --mail-type=END --mail-user=u --mem=2G --mem-bind=local --mem-per-cpu=1G
--nice=5 --no-requeue --nodelist=n1 --nodes=2 --nodes=4 --ntasks=4 --ntasks-per-node=1 --ntasks-per-gpu=1 --open-mode=append --output=o
--overcommit --parsable --partition=p --prefer=x --priority=5 --qos=q --requeue --reservation=r --signal=B:USR1@60 --switches=1
--threads-per-core=1 --time=10 --time-min=5 --tmp=1G --wait --wait-all-nodes=1 --wckey=w --wrap=x
"""


def test_every_option_of_sbatch_is_mentioned() -> None:
    directives = OPTIONS.split()
    text = "\n".join(
        ["#!/bin/bash", *(f"#SBATCH {each}" for each in directives), "srun -l torchrun --nproc-per-node=2 train.py\n"]
    )
    job = read_job_file(text, "job", {})

    said = {(note.key, note.line) for note in job.notes}
    missing = [each for line, each in enumerate(directives, 2) if (each.partition("=")[0], line) not in said]
    assert missing == []
    assert ("--nodes", 2 + directives.index("--nodes=2")) in {
        (n.key, n.line) for n in job.notes if n.verdict == "ignored"
    }


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nnodes=2 --nproc-per-node=2 --max-restarts=0 --master-port=29500 --rdzv-id 5 --log_dir logs --role x train.py",
        "accelerate launch --num_machines 2 --num_processes 4 --mixed_precision bf16 --multi_gpu train.py",
        "deepspeed --num_nodes=2 --num_gpus=2 --hostfile h --bind_cores_to_rank train.py",
        "composer -n 2 --world_size 4 --stdout out train.py",
        "fabric run --num-nodes=2 --devices=2 --precision 16 train.py",
        "mpirun -np 4 --bind-to none -x NCCL_DEBUG --allow-run-as-root python train.py",
        "srun --nodes 2 --ntasks 4 --cpu-bind=none -l python -u -W ignore train.py",
    ],
)
def test_every_flag_of_a_launcher_is_mentioned(command: str) -> None:
    job = read_job_file(f"#!/bin/bash\n#SBATCH -N 2 --gpus-per-node=2\n{command}\n", "job", {})

    assert read_launch(command.split())
    said = " ".join(note.key for note in job.notes).replace("_", "-")
    flags = [word.partition("=")[0].replace("_", "-") for word in command.split() if word.startswith("-")]
    assert [flag for flag in flags if flag not in said] == []
