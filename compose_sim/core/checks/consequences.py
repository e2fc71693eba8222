"""Tell the first cause from what follows from it: one mistake often makes several checks fail."""

from __future__ import annotations

from collections.abc import Collection, Mapping

_OTHER_GRADIENTS = ("wrapper-bypassed", "params-after-wrap", "gradient-mean", "gradient-clipping", "loss-scale")
_OTHER_SAMPLES = ("rank-confusion", "sampler-overlap", "replicated-tensors")
# What may follow from which failure, the likeliest cause first. Everything else is a mistake of its own.
_MAY_FOLLOW: Mapping[str, tuple[str, ...]] = {
    "hang": ("collective-mismatch", "uneven-inputs", "rank-confusion", "unused-params", "checkpoint-race"),
    "uneven-inputs": ("rank-confusion",),
    "params-in-sync": (
        *("wrapper-bypassed", "params-after-wrap", "collective-mismatch", "unused-params", "uneven-inputs"),
        *("gradient-mean", "gradient-clipping"),
    ),
    "gradient-mean": ("wrapper-bypassed", "params-after-wrap", "collective-mismatch"),
    "loss-scale": ("gradient-mean",),
    "matches-single": (*_OTHER_GRADIENTS, *_OTHER_SAMPLES, "params-in-sync", "nondeterminism"),
    "sampler-overlap": ("rank-confusion",),
    "sampler-tail": ("rank-confusion", "sampler-overlap"),
    "same-randomness": ("rank-confusion",),
    "metric-local": ("rank-confusion",),
    "checkpoint-race": ("rank-confusion",),
    "teardown": ("collective-mismatch", "uneven-inputs", "checkpoint-race"),
}
# What a warning cannot follow from: this one says that each rank's gradient is right for the parameters that all have.
_NO_CAUSE_OF_A_WARNING: Mapping[str, tuple[str, ...]] = {"matches-single": ("params-in-sync",)}


def first_cause(name: str, failures: Collection[str], *, is_warning: bool = False) -> str:
    """Return the failed check from which a problem of this check follows, directly or through others; "" if there is none."""
    excluded = _NO_CAUSE_OF_A_WARNING.get(name, ()) if is_warning else ()
    cause = next((each for each in _MAY_FOLLOW.get(name, ()) if each in failures and each not in excluded), "")
    return (first_cause(cause, failures) or cause) if cause else ""
