"""Documents for Kubernetes fit the schemas of the operators, with unknown fields refused.

The schemas are the operators' own CRDs, which are not part of this project: COMPOSESIM_CRDS names a folder with TARGET.yaml for each.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.plugins.job_files.core.exports.jobs import document

KINDS = ("jobset", "trainjob", "pytorchjob", "volcano", "mpijob", "rayjob", "raycluster")
CRDS = os.environ.get("COMPOSESIM_CRDS")

pytestmark = pytest.mark.skipif(not CRDS, reason="COMPOSESIM_CRDS names no folder with CRDs")


def strict(schema: Any) -> Any:
    """Return an OpenAPI schema of a CRD as JSON schema that refuses fields which it does not name."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items() if key != "description"}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found["additionalProperties"] = False
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, {"gpus": "none", "env": {}, "nodes": 1}], ids=["full", "small"])
def test_a_document_has_only_fields_of_the_crd(kind: str, changes: dict[str, Any]) -> None:
    crd = yaml.safe_load(Path(CRDS or "", f"{kind}.yaml").read_text())
    made = yaml.safe_load(document(kind, **changes))
    group, _, version = made["apiVersion"].partition("/")
    schema = next(each for each in crd["spec"]["versions"] if each["name"] == version)["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object"}

    problems = [error.message for error in Draft202012Validator(strict(schema)).iter_errors(made)]

    assert (group, made["kind"]) == (crd["spec"]["group"], crd["spec"]["names"]["kind"])
    assert problems == []


def test_a_misspelled_field_is_refused() -> None:
    """The oracle itself works."""
    crd = yaml.safe_load(Path(CRDS or "", "jobset.yaml").read_text())
    made = yaml.safe_load(document("jobset").replace("restartPolicy", "restartPolcy"))

    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object"}

    assert any("restartPolcy" in error.message for error in Draft202012Validator(strict(schema)).iter_errors(made))
