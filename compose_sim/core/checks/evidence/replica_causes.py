"""Say why replicas of a parameter differ, from what each rank did before: backward passes, no_sync(), the state it began with."""

from __future__ import annotations

from compose_sim.core.checks.evidence.replica_diff import Difference, states_at_start
from compose_sim.core.checks.wording import ranks_text
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.models import SteppedModel


def begun_with_state(observed: Observed, found: Difference) -> tuple[str, str] | None:
    """Return why a parameter differs if only some ranks had state of it in the optimizer before the first step."""
    if found.kind != "parameter" or not found.nth:
        return None
    kept = states_at_start(observed, found)
    having = [rank for rank, names in sorted(kept.items()) if names]
    without = [rank for rank, names in sorted(kept.items()) if not names]
    if not having or not without:
        return None
    names = ", ".join(sorted(kept[having[0]]))
    return (
        f"before its first step the optimizer had state of it ({names}) on {ranks_text(having)}, and none on {ranks_text(without)}",
        "Load the state of the optimizer on every rank: `optimizer.load_state_dict(…)`; DistributedDataParallel shares only weights.",
    )


def by_model(found: Difference, model: SteppedModel | None, backwards: int) -> tuple[str, str]:
    """Return why a parameter of a DDP model differs and what to change, as far as the model's passes show."""
    if model is not None:
        if found.name in (*model.new, *model.replaced, *model.unfrozen):
            return (
                "it was added or changed after DistributedDataParallel wrapped the model",
                "Build, replace, freeze and unfreeze before wrapping, or wrap again afterwards.",
            )
        if model.graded and not model.forwards:
            return (
                "the model was not called through its wrapper",
                "Call the DistributedDataParallel wrapper, not the model inside it.",
            )
        if model.graded and not backwards:
            return (
                "gradients were set without any backward pass, as from torch.autograd.grad, and DistributedDataParallel reduces only "
                "those of backward passes",
                "Call `loss.backward()` instead of torch.autograd.grad, or average what it returns over the ranks with all_reduce.",
            )
        if model.forwards and not model.reduced:
            return (
                "every forward pass before the step ran in no_sync(), so nothing was reduced",
                "Leave no_sync() for the last micro-batch before each step: run its forward and backward outside.",
            )
        if 0 < model.reduced < model.forwards:
            return (
                f"only {model.reduced} of {model.forwards} forward passes before the step ran outside no_sync(), and not the last one",
                "Leave no_sync() for the last micro-batch before each step, not for another: its backward reduces what was added up. "
                "The forward pass decides it, so set require_backward_grad_sync before that.",
            )
        if backwards > model.forwards:
            return (
                f"{backwards} backward passes followed {model.forwards} forward passes, and only one backward per forward is reduced",
                "Add the losses and call backward once per forward pass.",
            )
    return (
        "ranks change it differently after DistributedDataParallel has reduced its gradient, or its gradient is never reduced",
        "Do the same on every rank between backward and the next step: clipping, every change of a gradient or weight.",
    )
