"""What is observed in a rank? One file an observer; each sets its hooks when the script imports what they belong to.

An observer has `install()`, called once in the process that will become (or fork) the rank, before the script; and, where it
needs them, `begin(watch)` and `end(watch)`, called in the rank around the script. It must not change what the script computes,
must survive scripts and libraries it does not understand, and costs microseconds: all of them together 0.2 ms of CPU a step.
"""

from __future__ import annotations

from . import (
    backward,
    collectives,
    devices,
    endings,
    files,
    gradients,
    groups,
    horovod,
    loaders,
    losses,
    models,
    optimizers,
    paddle,
    randomness,
    recording,
    replaying,
)

OBSERVERS = (
    backward,
    models,
    gradients,
    optimizers,
    paddle,
    groups,
    horovod,
    collectives,
    files,
    devices,
    endings,
    loaders,
    losses,
    randomness,
    recording,
    replaying,
)
