"""Define what a request can ask of Slurm."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from compose_sim.core.request.field_types import Name, Text
from compose_sim.core.request.flags import Flag


class SlurmOptions(BaseModel):
    """Options of the job."""

    partition: Annotated[Name | None, Flag("slurm", "NAME", unset="the cluster's default")] = Field(
        None, description="Partition of the job.", examples=["gpu"]
    )
    account: Annotated[Name | None, Flag("slurm", "NAME", unset="yours")] = Field(
        None, description="Account that the job is charged to.", examples=["project1"]
    )
    time: Annotated[Name | None, Flag("slurm", "TIME", unset="the partition's")] = Field(
        None, description="Time limit of the job, as sbatch takes it.", examples=["2:00:00"]
    )
    constraint: Annotated[Name | None, Flag("slurm", "FEATURES", unset="any node")] = Field(
        None, description="Features that the nodes must have.", examples=["a100"]
    )
    sbatch: Annotated[Text | None, Flag("slurm", "OPTIONS", unset="none")] = Field(
        None, description="More options of sbatch.", examples=["--qos=high --exclusive"]
    )
