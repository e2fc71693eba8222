"""Parse scenario files. Errors name file, line and key."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ValidationError

from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.request.spec_file import keys_at as keys_of_spec
from compose_sim.core.request.validation_errors import error_in_file, problems_of
from compose_sim.core.request.yaml_source import KeyPath, read_yaml
from compose_sim.core.scenarios.scenario import Expectation, FaultSpec, Scenario, Step, TriggerSpec

_INSIDE: dict[str, type[BaseModel]] = {"at": TriggerSpec, "fault": FaultSpec}
_LISTS: dict[str, type[BaseModel]] = {"steps": Step, "expect": Expectation}


def parse_scenario(text: str, source: str, variables: Mapping[str, str]) -> Scenario:
    """
    Return the scenario of a file; `variables` are the values of `${NAME}`.

    Raises SpecError with file, line and key.
    """
    read = read_yaml(text, source, variables)
    try:
        scenario = Scenario.model_validate(read.values)
    except ValidationError as error:
        raise error_in_file(read, problems_of(error, _keys_at)) from None
    try:
        ClusterSpec.model_validate(scenario.cluster)
    except ValidationError as error:
        problems = [problem.inside("cluster") for problem in problems_of(error, keys_of_spec)]
        raise error_in_file(read, problems) from None
    return scenario


def _keys_at(path: KeyPath) -> list[str]:
    """Return the keys that are valid beside the one at this path."""
    if len(path) == 1:
        return [*Scenario.model_fields]
    model = _INSIDE.get(str(path[2])) if len(path) > 3 else _LISTS.get(str(path[0]))
    return [field.alias or name for name, field in (model or Scenario).model_fields.items()]
