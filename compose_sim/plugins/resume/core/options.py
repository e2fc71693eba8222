"""Define the options of `check --resume`, and what ranks are told with them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from compose_sim.core.request.flags import Flag

SETTINGS = "COMPOSESIM_RESUME"  # a variable of the nodes: the JSON of what an observer in each rank does


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
        examples=["/data/checkpoints"],
    )
    world: Annotated[
        Annotated[str, Field(pattern=r"^[0-9]{1,4}:[0-9]{1,4}$")] | None, Flag("resume", "N:M", unset="the same")
    ] = Field(None, description="Run with N ranks, and start again with M.", examples=["4:2"])
