"""Observe what a script does in a rank, one observer per file; plug-ins have others (`composesim.observers`).

An observer may have `install()`, `enter()`, `begin(context)` and `end(context)`. `install` is called once in the process that becomes
(or forks) the rank, and sets hooks that take effect when the script imports the hooked modules. `enter` is called in the rank while
it has one thread only, and may end it; `begin` and `end` are called there before and after the script.

An observer must not change what the script computes, must survive scripts and libraries that it does not understand, and may
cost microseconds: all observers together take 0.2–0.5 ms of CPU per step (`python -m bench --only 18`).
"""

from __future__ import annotations

from ...shared import plug_ins
from ..torch_hooks import updates_by_hand
from . import (
    boundaries,
    checkpoints,
    clipping,
    collectives,
    contrastive,
    devices,
    endings,
    evaluations,
    files,
    gathers,
    gradients,
    groups,
    kept_tensors,
    loaded_generators,
    loaders,
    losses,
    messages,
    models,
    norms_of_parts,
    numbered_names,
    optimizers,
    own_batches,
    plain_tensors,
    profiles,
    randomness,
    read_streams,
    recording,
    repeats,
    replaying,
    replicated,
    running_statistics,
    schedules,
    sent_models,
    sketches,
    slopes,
    timings,
)

OBSERVERS = (
    updates_by_hand,  # first: what it ends, the others note
    models,
    gradients,
    timings,
    optimizers,
    profiles,
    groups,
    collectives,
    messages,
    files,
    devices,
    endings,
    evaluations,
    loaders,
    losses,
    randomness,
    loaded_generators,
    recording,
    replaying,
    sketches,
    gathers,
    contrastive,
    checkpoints,
    clipping,
    norms_of_parts,
    repeats,
    replicated,
    plain_tensors,
    running_statistics,
    kept_tensors,
    numbered_names,
    own_batches,
    sent_models,
    schedules,
    boundaries,
    slopes,
    read_streams,
    *map(plug_ins.load, plug_ins.names("composesim.observers").values()),
)
