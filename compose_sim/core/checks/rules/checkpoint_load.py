"""Judge whether a loaded checkpoint reaches the model, on the device of the rank."""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed, warned
from compose_sim.core.checks.wording import names_text, ranks_text
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.precautions import LoadedElsewhere, LoadedState

QUESTION = "Does a loaded checkpoint reach the model, on the GPU of its rank?"


def judge(case: Case) -> Result:
    """Look for state dicts without any name that matches, and for tensors loaded onto the GPU of another rank."""
    for each in case.observed.of(LoadedState):
        if each.prefix or not each.strict:
            found = _unmatched(case, each)
            if found:
                return found
    elsewhere = list(case.observed.of(LoadedElsewhere))
    if elsewhere:
        first = elsewhere[0]
        return warned(
            f"{ranks_text({each.rank for each in elsewhere})} loaded a checkpoint without map_location: its tensors went to the GPU "
            f"that saved them ({', '.join(f'cuda:{each}' for each in first.devices)}), not to cuda:{first.current}",
            fix='Load with `torch.load(path, map_location="cpu")`, or with `map_location=f"cuda:{local_rank}"`.',
            at=first.at,
            ranks=sorted({each.rank for each in elsewhere}),
        )
    if any(each.op == "read" for each in case.observed.of(FileUse)):
        return passed("the names in every loaded state dict match those of the model")
    return not_applicable("no checkpoint was seen to be loaded")


def _unmatched(case: Case, each: LoadedState) -> Result | None:
    """Judge a state dict without a name that the module has; `strict` loading raises, and the script may go on from there."""
    if each.strict and case.verdict == "passed":
        return None
    names = names_text(each.unexpected)
    if not each.prefix:
        return warned(
            f"none of the {each.names} names of the model is in the state dict ({names}), and strict=False ignores that",
            fix="Load the state dict of this model, and look at the names that `load_state_dict` returns.",
            at=each.at,
        )
    outcome = "load_state_dict raised" if each.strict else "strict=False ignores that, so nothing was loaded"
    return failed(
        f"none of the {each.names} names of the model is in the state dict ({names}); they differ by the prefix '{each.prefix}' of a "
        f"wrapper, and {outcome}",
        fix="Save the weights of the model inside the wrapper, `model.module.state_dict()`, and load them before wrapping.",
        at=each.at,
    )
