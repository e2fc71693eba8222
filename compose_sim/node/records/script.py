"""How a rank was launched, and how its script ended."""

from __future__ import annotations

from dataclasses import dataclass

from .record import Place, Record


@dataclass(frozen=True)
class LaunchEnvironment(Record):
    """The launcher's variables when the script starts."""

    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    master_addr: str | None = None


@dataclass(frozen=True)
class ScriptEnd(Record, observers="collectives horovod models optimizers paddle"):
    """The script's main code has ended."""

    raised: str | None = None  # the type and message of the exception that ended it
    steps: int = 0  # of all optimizers
    synchronizations: int = 0  # collectives, and reductions by DDP


@dataclass(frozen=True)
class RaisedAfterTraining(Record, observers="endings"):
    """The script raised at a line that can only be reached after the loops around the last backward pass."""

    at: Place


@dataclass(frozen=True)
class MistakePlanted(Record):
    """`check --self-test` has changed what the script does, and the script has reached the change."""

    mistake: str


@dataclass(frozen=True)
class FeatureOff(Record):
    """Part of what observers record is missing: torch lacks a private name that it needs, or its code has raised."""

    feature: str  # the module of the observer, or the kind of the record that could not be written
    why: str  # in words, with the version of torch
    traceback: str = ""
