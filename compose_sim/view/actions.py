"""Execute what a reader of the live page asks for: the interventions of `composesim fault`, `heal`, `link` and `scale`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compose_sim.core.faults.commands import Fault, Intervention, SetLinks, intervention_from_dict
from compose_sim.core.faults.parse import parse_fault
from compose_sim.core.network.links import check_links
from compose_sim.core.plan.model import Plan
from compose_sim.engine.run_folder.control_requests import new_id, send_request
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import SpecError


def act(folder: RunFolder, values: Any) -> str:
    """Have the process of the run execute an intervention, and return the id of the request; SpecError if it is invalid."""
    try:
        intervention = _checked(values, folder.read_plan())
    except (ValueError, TypeError) as error:
        raise SpecError(f"this is no action: {error}", hint="composesim fault list") from None
    request = new_id(values["verb"])
    send_request(folder, intervention, request)
    return request


def _checked(values: Any, plan: Plan) -> Intervention:
    """Return the intervention; a fault is parsed from its words, as on the command line."""
    if isinstance(values, Mapping) and values.get("verb") == "fault":
        arguments, options, for_s = values.get("arguments"), values.get("options", {}), values.get("for_s")
        if not (isinstance(arguments, list) and all(isinstance(each, str) for each in arguments)):
            raise ValueError("arguments: not a list of texts")
        if not isinstance(options, Mapping):
            raise ValueError("options: not an object")
        fault = parse_fault(str(values.get("kind")), arguments, options, plan=plan)
        known = intervention_from_dict({"verb": "fault", "kind": fault.kind, "for_s": for_s})
        if not isinstance(known, Fault) or (for_s is not None and not 0 < for_s < float("inf")):
            raise ValueError(f"for_s: {for_s!r:.40} is no time")
        return Fault(kind=fault.kind, nodes=fault.nodes, rank=fault.rank, options=fault.options, for_s=known.for_s)
    intervention = intervention_from_dict(values)
    if isinstance(intervention, SetLinks):
        check_links(intervention.links, [node.name for node in plan.nodes])
    return intervention
