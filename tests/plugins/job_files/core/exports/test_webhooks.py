"""Rules that admission webhooks check and no schema holds, restated: names, container names, reserved variables, quantities."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from compose_sim.errors import SpecError
from compose_sim.plugins.job_files.core.exports.job import parse_quantity
from compose_sim.plugins.job_files.core.exports.targets import TARGETS
from tests.plugins.job_files.core.exports.jobs import document, job, spec_of

KUBERNETES = [name for name, target in TARGETS.items() if target.submit.startswith("kubectl")]
# A label of DNS as services need it (RFC 1035): it starts with a letter.
LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


def objects(value: Any) -> list[dict[str, Any]]:
    """Return every mapping in a document."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [*([value] if isinstance(value, dict) else []), *(found for each in inner for found in objects(each))]


@pytest.mark.parametrize("target", KUBERNETES)
def test_every_name_is_a_label_of_dns(target: str) -> None:
    made = yaml.safe_load(document(target, env={}))
    names = [each["name"] for each in objects(made) if isinstance(each.get("name"), str) and "valueFrom" not in each]

    assert names
    assert [name for name in names if not LABEL.fullmatch(name)] == []


@pytest.mark.parametrize("target", KUBERNETES)
def test_a_name_that_starts_with_a_digit_is_refused(target: str) -> None:
    with pytest.raises(SpecError) as caught:
        TARGETS[target].write(replace(job(spec_of(recipe=TARGETS[target].recipe, image="a:1")), name="2nd-run"))

    assert "--name run-2nd-run" in caught.value.hint


@pytest.mark.parametrize(
    ("target", "name"),
    [("pytorchjob", "pytorch"), ("trainjob", "node"), ("rayjob", "ray-worker"), ("mpijob", "launcher")],
)
def test_containers_have_the_names_that_operators_look_for(target: str, name: str) -> None:
    containers = [each for found in objects(yaml.safe_load(document(target))) for each in found.get("containers", ())]

    assert name in {container["name"] for container in containers}


def test_an_mpijob_has_one_launcher_and_never_restarts_in_place() -> None:
    roles = yaml.safe_load(document("mpijob"))["spec"]["mpiReplicaSpecs"]

    assert roles["Launcher"]["replicas"] == 1
    assert {role["restartPolicy"] for role in roles.values()} <= {"Never", "OnFailure"}


def test_a_trainjob_sets_no_variable_that_its_controller_sets() -> None:
    """The webhook rejects PET_*."""
    with pytest.raises(SpecError) as caught:
        document("trainjob", env={"PET_NNODES": "4"})

    assert "PET_NNODES" in caught.value.message


@pytest.mark.parametrize("target", KUBERNETES)
@pytest.mark.parametrize("memory", ["512m", "64m", "1.5g"])
def test_memory_is_never_in_thousandths_of_a_byte(target: str, memory: str) -> None:
    limits = [each["limits"] for each in objects(yaml.safe_load(document(target, memory=memory))) if "limits" in each]

    assert limits
    assert all(parse_quantity(limit["memory"]) >= 64 << 20 for limit in limits)


@pytest.mark.parametrize(
    ("text", "number"), [("512m", 0.512), ("512Mi", 512 << 20), ("2", 2), ("1.5Gi", 3 << 29), ("1e3", 1000)]
)
def test_quantities_are_those_of_kubernetes(text: str, number: float) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize("text", ["", "two", "1GB", "-1", "1e999", "9" * 40])
def test_other_text_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        parse_quantity(text)
