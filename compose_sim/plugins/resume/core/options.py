"""Define the options of `check --resume`, and what ranks are told with them."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationInfo, field_validator

from compose_sim.core.request.flags import Flag

SETTINGS = "COMPOSESIM_RESUME"  # a variable of the nodes: the JSON of what an observer in each rank does


def _two_sizes(text: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]{0,3}:[1-9][0-9]{0,3}", text):
        raise ValueError(f"'{text}' is not N:M, two numbers of ranks such as 4:2")
    return text


class ResumeOptions(BaseModel):
    """Options of `check --resume`."""

    resume: Annotated[bool, Flag("resume")] = Field(
        False, description="Interrupt the script, start it again, and compare it with a run that was not interrupted."
    )
    resume_args: Annotated[str | None, Flag("resume", "ARGS", unset="--resume if the script has this switch")] = Field(
        None, description="More arguments of the script when it starts again.", examples=["--resume last.pt"]
    )
    interrupt: Annotated[Literal["sigterm", "sigkill"], Flag("resume")] = Field(
        "sigterm", description="How the script is interrupted: SIGTERM, and SIGKILL 10 s later, or SIGKILL at once."
    )
    at_step: Annotated[
        Annotated[int, Field(ge=1)] | None, Flag("resume", "N", unset="a few steps after a complete checkpoint")
    ] = Field(None, description="Interrupt the script after N optimizer steps.", examples=[12])
    mid_save: Annotated[bool, Flag("resume")] = Field(
        False, description="Kill the script while it writes a checkpoint, when half of a file is on disk."
    )
    checkpoint_folder: Annotated[tuple[str, ...], Flag("resume", "DIR")] = Field(
        (),
        description="A folder outside of the project that the script saves into: each run gets an empty one in its place.",
        examples=[["/data/checkpoints"]],
    )
    world: Annotated[Annotated[str, AfterValidator(_two_sizes)] | None, Flag("resume", "N:M", unset="the same")] = (
        Field(None, description="Run with N ranks, and start again with M.", examples=["4:2"])
    )

    @field_validator("mid_save")
    @classmethod
    def _chooses(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("resume") and info.data.get("at_step"):
            raise ValueError("it kills the script at a step of its own choice, without --at-step")
        return value

    @field_validator("resume")
    @classmethod
    def _is_alone(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("self_test"):
            raise ValueError("--self-test plants mistakes for the other checks")
        return value
