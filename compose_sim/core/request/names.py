"""The names that a request may use: runs, checks, recipes, GPUs and services. Commands that only read a run import no more."""

from __future__ import annotations

import re
from typing import Any

from compose_sim.core.text import did_you_mean, nearest
from compose_sim.errors import SpecError
from compose_sim.plugins.registry import built_in, find, installed

# Causes come before their consequences. `core/checks/run.py` lists the checks in the same order.
CHECK_IDS = (
    "hang",
    "collective-mismatch",
    "rank-confusion",
    "host-dependence",
    "wrapper-bypassed",
    "params-after-wrap",
    "unused-params",
    "uneven-inputs",
    "params-in-sync",
    "gradient-mean",
    "gradient-clipping",
    "loss-scale",
    "matches-single",
    "replicated-tensors",
    "sampler-overlap",
    "set-epoch",
    "sampler-tail",
    "checkpoint-race",
    "checkpoint-load",
    "batchnorm-local",
    "same-randomness",
    "metric-local",
    "nondeterminism",
    "wasted-time",
    "teardown",
)


CHECK_GROUP = "composesim.checks"  # of plug-ins: id -> ScriptCheck
CHECK_MODES = "composesim.check_modes"  # of plug-ins: an option of `check` -> function(session, listener) -> Report


def check_ids() -> tuple[str, ...]:
    """Return the ids of all checks: CHECK_IDS, then those of plug-ins."""
    return (*CHECK_IDS, *built_in(CHECK_GROUP), *installed(CHECK_GROUP))


def chosen(only: tuple[str, ...], skip: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ids of the chosen checks, in the order of `check_ids`."""
    return tuple(name for name in check_ids() if (not only or name in only) and name not in skip)


def known_check(name: str) -> str:
    """Return the id; raise SpecError that suggests the nearest one if it does not exist."""
    problem = unknown_check(name)
    if problem:
        raise SpecError(problem, hint=f"composesim check --explain {nearest(name, CHECK_IDS) or CHECK_IDS[0]}")
    return name


def unknown_check(name: str) -> str:
    """Return why an id does not exist, or "" if it does."""
    is_known = name in CHECK_IDS or find(CHECK_GROUP, name) or name in built_in(CHECK_MODES)
    return "" if is_known else f"there is no check '{name}'{did_you_mean(name, check_ids())}"


RECIPE_GROUP = "composesim.recipes"
RECIPE_NAMES = tuple(sorted(("ddp", "exec", *built_in(RECIPE_GROUP))))

GPU_WORDS = ("auto", "none", "all", "emulated")
_GPU = re.compile(r"[0-9]+(:[0-9]+)?|(GPU|MIG)-[0-9A-Za-z/-]+")


def parse_gpus(value: Any) -> Any:
    """Return `0,1` for `[0, 1]`, `0, 1` or 0, and keywords unchanged; raise ValueError for anything else."""
    entries = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(entry, str | int) and not isinstance(entry, bool) for entry in entries):
        return value
    named = [word.strip() for entry in entries for word in str(entry).split(",") if word.strip()]
    if len(named) == 1 and named[0] in GPU_WORDS:
        return named[0]
    wrong = next((name for name in named if not _GPU.fullmatch(name)), None if named else str(value))
    if wrong is not None:
        raise ValueError(f"'{wrong}' is not {', '.join(GPU_WORDS)}, the number of a GPU (0) or its UUID (GPU-…)")
    if len(set(named)) < len(named):
        raise ValueError(f"'{','.join(named)}' names a GPU twice")
    return ",".join(named)


RUN_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
SERVICES = "composesim.services"  # the group of plug-ins; `core/plan/services.py` says what a service is
SERVICE_NAMES = tuple(built_in(SERVICES))  # in the order in which links are printed


def check_service(text: str) -> str:
    """Return `text` if it is a valid `NAME` or `NAME=VALUE`; raise ValueError otherwise."""
    name, equals, value = text.partition("=")
    service = find(SERVICES, name)
    if service is None:
        raise ValueError(f"there is no service '{name}'{did_you_mean(name, (*SERVICE_NAMES, *installed(SERVICES)))}")
    takes = getattr(service.load(), "VALUE", "")
    if equals and not (takes and value):
        raise ValueError(f"'{text}': {name} takes {takes or 'no value'}" + (" after the =" if takes else ""))
    return text
