"""Define what a user can ask for: everything that flags and `composesim.yaml` can hold.

A field is the one place where a flag or key is declared. `up --help`, `docs/cli.md`, the JSON schema and the comments of a new
`composesim.yaml` come from here. The modules that receive a spec validate nothing again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from compose_sim.core.request.field_types import (
    Argument,
    CheckIds,
    Count,
    Cpus,
    Duration,
    DurationOrNever,
    Environment,
    Gpus,
    Image,
    Keep,
    Links,
    Memory,
    Mount,
    Name,
    NodeGpus,
    NodeRange,
    RunName,
    Services,
    Size,
    Subnet,
    Text,
)
from compose_sim.core.request.flags import CHECK_OPTIONS, OPTIONS, Flag
from compose_sim.core.request.names import RECIPE_NAMES, SERVICE_NAMES
from compose_sim.plugins.registry import ENGINES, built_in

ISOLATED = ("isolated", "offline")  # networks on which nodes reach only one another
MAX_NODES_ON_A_BRIDGE = 1000  # a Linux bridge has 1,024 ports; the master and the gateway take some
_ENGINES = {"docker": "as containers", "local": "as plain processes"}
_ENGINES |= {name: each.summary for name, each in built_in(ENGINES).items()}
*_SOME, _LAST = (f"{how} ({name})" for name, how in _ENGINES.items())
if TYPE_CHECKING:
    EngineName = str
else:
    EngineName = Literal[("auto", *_ENGINES)]


class NodeSpec(BaseModel):
    """Settings of one node, which override those of the cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nproc_per_node: Count | None = Field(None, description="Ranks on this node.", examples=[2])
    cpus: Cpus | None = Field(None, description="CPU limit of this node.", examples=[0.5])
    memory: Memory | None = Field(None, description="Memory limit of this node.", examples=["4g"])
    gpus: NodeGpus | None = Field(None, description="GPUs of this node, by number or UUID, or none.", examples=["0,1"])
    env: Environment = Field(
        default_factory=dict, description="Environment variables of this node.", examples=[{"ROLE": "small"}]
    )


class _CheckOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: Annotated[Annotated[int, Field(ge=1)] | None, Flag("check", "N")] = Field(
        None, description="Stop the script after N optimizer steps, and record and replay all of them.", examples=[20]
    )
    only: Annotated[CheckIds, Flag("check", "ID[,ID]")] = Field(
        (), description="Run only these checks.", examples=[["hang"]]
    )
    skip: Annotated[CheckIds, Flag("check", "ID[,ID]")] = Field(
        (), description="Skip these checks.", examples=[["teardown"]]
    )
    strict: Annotated[bool, Flag("check")] = Field(
        False, description="Exit with 3 if replicas, gradients or samples could not be judged."
    )
    self_test: Annotated[bool, Flag("check")] = Field(
        False, description="Plant known mistakes into the run, one at a time, and report which ones the checks find."
    )
    tolerance: Annotated[Annotated[float, Field(gt=0, allow_inf_nan=False)] | None, Flag("check", "X")] = Field(
        None, description="Largest relative difference to accept between world size 1 and N.", examples=["1e-3"]
    )
    junit: Annotated[Annotated[str, Field(min_length=1)] | None, Flag("check", "FILE")] = Field(
        None, description="Write the results to this file as JUnit XML.", examples=["composesim.xml"]
    )


if TYPE_CHECKING:

    class _AllCheckOptions(_CheckOptions): ...

else:  # with those of plug-ins, which follow
    _AllCheckOptions = type(
        "_AllCheckOptions", (*(each.load() for each in built_in(CHECK_OPTIONS).values()), _CheckOptions), {}
    )


class CheckSpec(_AllCheckOptions):
    """Settings of `composesim check`. `only` and `skip` also apply to the findings that `up` prints."""


MAX_NODES = 9_999


def _number_of_nodes(nodes: Any) -> Any:
    if isinstance(nodes, str) and not re.fullmatch(r"[+-]?[0-9]{1,9}", nodes.strip()):
        is_range = re.fullmatch(r"[0-9]+:[0-9]+", nodes)
        raise ValueError(f"'{nodes:.80}' is not a number of nodes" + ("; elastic takes a range" if is_range else ""))
    return int(nodes) if isinstance(nodes, str) else nodes


class _Options(BaseModel):
    """What a cluster is like, and how it runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="composesim.yaml", defer_build=True)

    nodes: Annotated[
        Annotated[int, Field(ge=1, le=MAX_NODES)] | tuple[NodeSpec, ...],
        BeforeValidator(_number_of_nodes),
        Flag("cluster", "N"),
    ] = Field(2, description="Number of nodes. composesim.yaml also takes a list with one entry per node.")
    nproc_per_node: Annotated[Count, Flag("cluster", "N")] = Field(
        1, description="Ranks per node; 2 for a script if no option gives the size of the cluster."
    )
    recipe: Annotated[str, Flag("recipe", "NAME")] = Field(
        "ddp",
        pattern=r"^[a-z][a-z0-9-]*$",
        description=f"Framework to start: {', '.join(RECIPE_NAMES)}, or an installed recipe.",
    )
    options: Annotated[dict[str, Text], Flag("recipe", "NAME=VALUE", names=("--option",))] = Field(
        default_factory=dict, description="Set options of the recipe.", examples=[{"cpus": 4}]
    )
    engine: Annotated[EngineName, Flag("cluster")] = Field(
        "auto", description=f"Run nodes {', '.join(_SOME)} or {_LAST}."
    )
    image: Annotated[Image, Flag("image", "auto|host|TAG")] = Field(
        "auto", description="Image of the nodes; host stands for this machine's Python environment."
    )
    python: Annotated[str | None, Flag("image", "PATH")] = Field(
        None, description="Python interpreter of the nodes.", examples=[".venv/bin/python"]
    )
    backend: Annotated[Literal["auto", "nccl", "gloo"], Flag("gpus")] = Field(
        "auto", description="Backend of torch.distributed; auto is nccl if every node has a GPU, else gloo."
    )
    gpus: Annotated[Gpus, Flag("gpus", "auto|all|0,1|UUID|none|emulated")] = Field(
        "auto", description="GPUs that nodes see; auto emulates CUDA if this machine has none."
    )
    gpus_per_node: Annotated[Count | None, Flag("gpus", "N", unset="one per rank")] = Field(
        None, description="GPUs that each node sees.", examples=[2]
    )
    share: Annotated[Literal["auto", "mps", "timeslice", "off"], Flag("gpus")] = Field(
        "auto", description="How ranks share a GPU: through MPS, by time slicing, or not at all."
    )
    gpu_memory: Annotated[Size | None, Flag("gpus", "SIZE")] = Field(
        None, description="GPU memory that each rank may allocate.", examples=["8g"]
    )
    launcher: Annotated[Literal["warm", "torchrun", "env"], Flag("cluster")] = Field(
        "warm", description="How ranks start: forked after one import of torch, by torchrun, or as a bare process."
    )
    master: Annotated[Literal["service", "node-0"], Flag("network")] = Field(
        "service", description="Who listens at MASTER_ADDR: composesim, or the script on node-0."
    )
    master_port: Annotated[Annotated[int, Field(ge=1024, le=65535)] | None, Flag("network", "PORT")] = Field(
        None, description="MASTER_PORT of the first round.", examples=[29500]
    )
    max_restarts: Annotated[int, Flag("cluster", "N")] = Field(
        0, ge=0, description="Number of new rounds after failed ranks and lost nodes."
    )
    elastic: Annotated[NodeRange | None, Flag("cluster", "MIN:MAX")] = Field(
        None, description="Keep running while nodes leave and join, within these limits.", examples=["2:4"]
    )
    link: Annotated[Links, Flag("network", "SHAPE", needs_docker=True)] = Field(
        (), description="Bandwidth, delay and loss of the links between nodes.", examples=[["1gbit,20ms,loss=0.1%"]]
    )
    scratch: Annotated[Size | None, Flag("cluster", "SIZE", needs_docker=True)] = Field(
        None, description="Size of a private disk at /scratch on each node. It takes up memory.", examples=["64m"]
    )
    services: Annotated[Services, Flag("run", "NAMES", needs_docker=True)] = Field(
        (),
        alias="with",
        description=f"Services beside the nodes: {', '.join(SERVICE_NAMES) or 'those that are installed'}.",
        examples=[[*SERVICE_NAMES[:1]]],
    )
    publish: Annotated[dict[str, Annotated[int, Field(ge=1, le=65535)]], Flag("run", "NAME=PORT")] = Field(
        default_factory=dict,
        description="Port of this machine for a service.",
        examples=[dict.fromkeys(SERVICE_NAMES[:1], 9999)],
    )
    env: Annotated[Environment, Flag("image", "NAME[=VALUE]")] = Field(
        default_factory=dict,
        description="Environment variables of every node; --env NAME passes the current value.",
        examples=[{"NCCL_DEBUG": "WARN"}],
    )
    env_file: Annotated[tuple[str, ...], Flag("image", "FILE")] = Field(
        (), description="Files with one NAME=value per line: more variables for every node.", examples=[["train.env"]]
    )
    mounts: Annotated[tuple[Mount, ...], Flag("image", "SRC:DST[:ro]", names=("--mount",), needs_docker=True)] = Field(
        (), description="Files or folders of this machine to mount into every node.", examples=[["./data:/data:ro"]]
    )
    memory: Annotated[Memory | None, Flag("cluster", "SIZE", needs_docker=True)] = Field(
        None, description="Memory limit of each node.", examples=["2g"]
    )
    cpus: Annotated[Cpus | None, Flag("cluster", "N", needs_docker=True)] = Field(
        None, description="CPU limit of each node.", examples=[0.5]
    )
    shm_size: Annotated[Size, Flag("cluster", "SIZE")] = Field(
        "1g", validate_default=True, description="Size of /dev/shm on each node."
    )
    user: Annotated[
        Annotated[Text, Field(pattern=r"^([0-9]{1,9}|[A-Za-z_][A-Za-z0-9_.-]*)$")] | None,
        Flag("cluster", "NAME|UID", unset="you, or the owner of the project if you are root", needs_docker=True),
    ] = Field(
        None,
        description="User of the nodes. Only root can choose one, in a project of root: root, or one who does not own its files.",
        examples=["nobody"],
    )
    network: Annotated[
        Literal["offline", "isolated", "open", "full"] | None,
        Flag("network", "offline|isolated|open|full", unset="open; isolated in check", needs_docker=True),
    ] = Field(
        None,
        description="What nodes can reach: one another (offline tells libraries so), other machines, or also this machine.",
        examples=["isolated"],
    )
    subnet: Annotated[Subnet | None, Flag("network", "CIDR", unset="a free one", needs_docker=True)] = Field(
        None, description="Subnet of the run's network.", examples=["10.210.0.0/24"]
    )
    timeout: Annotated[Duration | None, Flag("run", "TIME")] = Field(
        None, description="Stop the run after this time.", examples=["10m"]
    )
    hang_timeout: Annotated[DurationOrNever, Flag("run", "TIME")] = Field(
        "5m", validate_default=True, description="Stop the run when no rank has moved for this time, or never."
    )
    node_timeout: Annotated[
        Duration | None, Flag("run", "TIME", unset="30s; 5s if elastic and the machine is idle")
    ] = Field(None, description="Treat a node as lost after this time without a sign of life.", examples=["60s"])
    name: Annotated[RunName | None, Flag("run", "RUN", unset="made from the script's name")] = Field(
        None, description="Name of the run.", examples=["demo"]
    )
    keep: Annotated[Keep, Flag("run", "[=failed]", bare="true")] = Field(
        False, description="Keep the nodes and their network after the run, or only if it failed."
    )
    force: Annotated[bool, Flag("cluster")] = Field(
        False, description="Start even if the request exceeds the memory, the processes or the disk of this machine."
    )
    keep_runs: Annotated[int, Field(ge=0)] = Field(
        20, description="Number of finished runs whose folders are kept in the project; older ones are deleted."
    )
    keep_runs_size: Size = Field(
        "5g", validate_default=True, description="Size in total up to which folders of finished runs are kept."
    )


if TYPE_CHECKING:

    class _AllOptions(_Options): ...

else:  # with those of plug-ins, which follow
    _AllOptions = type("_AllOptions", (*(each.load() for each in built_in(OPTIONS).values()), _Options), {})


class ClusterSpec(_AllOptions):
    """A request for a cluster."""

    model_config = ConfigDict(defer_build=False)

    check: CheckSpec = Field(CheckSpec(), description="Settings of `composesim check`.")
    module: Annotated[Name | None, Flag("run", "MODULE", names=("-m", "--module"))] = Field(
        None, description="Python module that every rank runs, instead of a script."
    )
    script: Name | None = Field(None, description="Python file that every rank runs.", examples=["train.py"])
    args: tuple[Argument, ...] = Field((), description="Arguments of the script.", examples=[["--epochs", "3"]])

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        if self.script is not None and self.module is not None:
            raise ValueError(f"script '{self.script}' and module '{self.module}' cannot both run")
        if self.nodes == ():
            raise ValueError("nodes is an empty list: a cluster has at least one node")
        if self.elastic_range and not self.elastic_range[0] <= self.initial_node_count <= self.elastic_range[1]:
            raise ValueError(f"{self.initial_node_count} nodes are outside the range '{self.elastic}' of elastic")
        if self.gpus in ("none", "emulated") and self.names_gpus:
            raise ValueError(f"gpus '{self.gpus}' applies to all nodes, but a node names GPUs")
        return self

    @property
    def names_gpus(self) -> bool:
        """Return whether any node names GPUs."""
        return isinstance(self.nodes, tuple) and any(node.gpus not in (None, "none") for node in self.nodes)

    @property
    def elastic_range(self) -> tuple[int, int] | None:
        """Return the (minimum, maximum) of nodes in an elastic run."""
        least, _, most = (self.elastic or "").partition(":")
        return (int(least), int(most)) if most else None

    @property
    def initial_node_count(self) -> int:
        """Return how many nodes a run starts with: `nodes`, or the maximum of an elastic run that leaves it out."""
        if isinstance(self.nodes, tuple):
            return len(self.nodes)
        if self.elastic_range and "nodes" not in self.model_fields_set:
            return self.elastic_range[1]
        return self.nodes

    @property
    def node_specs(self) -> tuple[NodeSpec, ...]:
        """Return one NodeSpec per node that may ever take part. The first `initial_node_count` are there from the start."""
        given = self.nodes if isinstance(self.nodes, tuple) else (NodeSpec(),) * self.initial_node_count
        most = self.elastic_range[1] if self.elastic_range else 0
        return given + (NodeSpec(),) * max(0, most - len(given))
