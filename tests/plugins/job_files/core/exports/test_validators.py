"""Documents pass the validators that others publish. scripts/recipes.sh installs those of Kubernetes.

The one of SkyPilot conflicts with this project's libraries, and installing it takes too long for CI:

python -m venv sky && sky/bin/pip install skypilot==0.14.1
COMPOSESIM_SKYPILOT_PYTHON=sky/bin/python pytest tests/plugins/job_files/core/exports/test_validators.py
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from compose_sim.plugins.job_files.core.exports.targets import TARGETS
from tests.plugins.job_files.core.exports.jobs import document

KUBERNETES = [name for name, target in TARGETS.items() if target.submit.startswith("kubectl")]

# The models of Trainer drop unknown keys silently: what does not come back was wrong.
READ_BACK = """
import json, sys
from kubeflow_trainer_api import models
def lost(given, back, path):
    if isinstance(given, dict):
        return [each for key, value in given.items() for each in lost(value, (back or {}).get(key), f"{path}.{key}")]
    if isinstance(given, list):
        return [each for n, value in enumerate(given) for each in lost(value, (back or [])[n], f"{path}[{n}]")]
    return [] if given == back else [path]
model, given = json.load(sys.stdin)
print(json.dumps(lost(given, getattr(models, model).from_dict(given).to_dict(), "")))
"""
STRICT_PODS = """
import json, sys
import kubernetes_validate
problems = []
for pod in json.load(sys.stdin):
    try:
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}, "1.37", strict=True)
    except kubernetes_validate.ValidationError as error:
        problems.append(error.message)
print(json.dumps(problems))
"""
SKYPILOT_TASK = """
import json, sys
import jsonschema
from sky.utils import schemas
found = jsonschema.Draft7Validator(schemas.get_task_schema()).iter_errors(json.load(sys.stdin))
print(json.dumps([error.message for error in found]))
"""


def problems(python: Path, program: str, values: Any) -> Any:
    """Return what a program in another environment says about these values."""
    done = subprocess.run([python, "-c", program], input=json.dumps(values), capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def pods_in(value: Any) -> list[Any]:
    """Return every pod's spec in a document."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if isinstance(value, dict) and "containers" in value and "volumes" in value else []
    return [*own, *(pod for each in inner for pod in pods_in(each))]


@pytest.mark.recipes
@pytest.mark.parametrize(
    ("target", "model"), [("jobset", "JobsetV1alpha2JobSet"), ("trainjob", "TrainerV1alpha1TrainJob")]
)
def test_the_models_of_trainer_read_every_key(recipes_python: Path, target: str, model: str) -> None:
    made = yaml.safe_load(document(target))

    assert problems(recipes_python, READ_BACK, [model, made]) == []
    made["spec"]["typo"] = "x"
    assert problems(recipes_python, READ_BACK, [model, made]) == [".spec.typo"]


@pytest.mark.recipes
@pytest.mark.parametrize("target", [name for name in KUBERNETES if name != "trainjob"])
def test_pods_are_strictly_valid(recipes_python: Path, target: str) -> None:
    pods = pods_in(yaml.safe_load(document(target)))

    assert pods
    assert problems(recipes_python, STRICT_PODS, pods) == []
    assert problems(recipes_python, STRICT_PODS, [{**pods[0], "typo": 1}])


@pytest.mark.skipif("COMPOSESIM_SKYPILOT_PYTHON" not in os.environ, reason="no COMPOSESIM_SKYPILOT_PYTHON")
def test_skypilot_accepts_the_task() -> None:
    python = Path(os.environ["COMPOSESIM_SKYPILOT_PYTHON"])
    made = yaml.safe_load(document("skypilot"))

    assert problems(python, SKYPILOT_TASK, made) == []
    assert problems(python, SKYPILOT_TASK, {**made, "typo": 1})
