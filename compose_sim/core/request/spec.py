"""What did the person ask for? A ClusterSpec: everything that flags and `composesim.yaml` can hold, checked once.

Nothing behind this module validates again or sees the text that a value was written as.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from compose_sim.core.network.links import check_links
from compose_sim.core.request.field_types import CheckIds, Cpus, Duration, Gpus, Ranks, Services, Size, Text, Texts
from compose_sim.core.units import parse_bytes

MAX_NODES_ON_A_BRIDGE = 1000  # a Linux bridge has 1,024 ports; the master and the gateway take some

RUN_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class NodeSpec(BaseModel):
    """What one node has of its own; what is left out comes from the cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nproc_per_node: Ranks | None = Field(None, description="Ranks on this node")
    cpus: Cpus | None = Field(None, description="CPUs this node may use, such as 0.5")
    memory: Size | None = Field(None, description="Memory limit of this node, such as 2g")
    gpus: Gpus | None = Field(None, description="GPUs of this node: none, or numbers or UUIDs such as 0,1")
    env: dict[str, Text] = Field(default_factory=dict, description="Environment variables of this node")

    @field_validator("env")
    @classmethod
    def _environment(cls, env: dict[str, str]) -> dict[str, str]:
        return check_environment(env)

    @field_validator("gpus")
    @classmethod
    def _gpus(cls, gpus: str | None) -> str | None:
        if gpus in ("auto", "all", "emulated"):
            raise ValueError(f"'{gpus}' is for all nodes: one node's are none, or numbers or UUIDs of GPUs")
        return gpus


class CheckSpec(BaseModel):
    """What `composesim check` is to do; `only` and `skip` hold for what `up` says too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: Annotated[int, Field(ge=1)] | None = Field(None, description="Optimizer steps to record and replay")
    only: CheckIds = Field((), description="Checks to run; all when left out")
    skip: CheckIds = Field((), description="Checks not to run")
    tolerance: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="Largest relative difference between world size 1 and N, such as 1e-3"
    )
    junit: str | None = Field(None, min_length=1, description="File for the results, as JUnit XML")


class ClusterSpec(BaseModel):
    """One request for a cluster. Field names are the keys of `composesim.yaml` and, with dashes, the flags of `up`."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="composesim.yaml")

    name: str | None = Field(None, description="Name of the run; made from the script when left out")
    nodes: Annotated[int, Field(ge=1)] | tuple[NodeSpec, ...] = Field(
        2, description="Number of nodes, or a list with what each node has of its own"
    )
    nproc_per_node: Ranks = Field(1, description="Ranks on each node")
    recipe: str = Field(
        "ddp",
        pattern=r"^[a-z][a-z0-9-]*$",
        description="How the framework starts: ddp, exec, horovod, paddle, paddle-ray, ray, or another package's",
    )
    options: dict[str, Text] = Field(default_factory=dict, description="Options of the recipe, by name")
    engine: Literal["auto", "docker", "local"] = Field("auto", description="What executes the nodes")
    image: str = Field(
        "auto", min_length=1, description="auto, host (this machine's Python environment) or an image tag"
    )
    python: str | None = Field(None, description="Python interpreter that the nodes run")
    backend: Literal["auto", "nccl", "gloo"] = Field(
        "auto", description="torch.distributed backend nodes are set up for"
    )
    gpus: Gpus = Field(
        "auto", description="GPUs that nodes see: auto, all, numbers or UUIDs of this machine's, emulated or none"
    )
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="GPUs that each node sees; as many as it has ranks when left out"
    )
    share: Literal["auto", "mps", "timeslice", "off"] = Field(
        "auto", description="How ranks share a GPU: through MPS, by turns, or off where none may share one"
    )
    gpu_memory: Size | None = Field(None, description="GPU memory that each rank may take, such as 8g")
    launcher: Literal["warm", "torchrun", "env"] = Field("warm", description="How ranks are started on a node")
    master: Literal["service", "node-0"] = Field("service", description="Who answers at MASTER_ADDR")
    master_port: int | None = Field(None, ge=1024, le=65535, description="MASTER_PORT of the first round")
    max_restarts: int = Field(0, ge=0, description="How often a failed or lost node may be replaced by a new round")
    elastic: str | None = Field(
        None, description="MIN:MAX nodes: the run goes on while nodes leave and come back, such as 2:4"
    )
    link: Texts = Field(
        (), description="Shape of the links between nodes, such as 1gbit,20ms,loss=0.1% or node-0=10mbit"
    )
    scratch: Size | None = Field(None, description="Size of a disk of its own at /scratch in each node, such as 64m")
    services: Services = Field(
        (), alias="with", description="What runs beside the nodes: jupyter, tensorboard, prometheus, grafana"
    )
    publish: dict[str, Annotated[int, Field(ge=1, le=65535)]] = Field(
        default_factory=dict, description="Ports of this machine by the name of what opens there, such as jupyter"
    )
    env: dict[str, Text] = Field(default_factory=dict, description="Environment variables of every node")
    env_file: tuple[str, ...] = Field((), description="Files of environment variables, read in order")
    mounts: tuple[str, ...] = Field((), description="SOURCE:TARGET[:ro], folders or files of this machine")
    memory: Size | None = Field(None, description="Memory limit of each node, such as 2g")
    cpus: Cpus | None = Field(None, description="CPUs each node may use, such as 0.5")
    shm_size: Size = Field(parse_bytes("1g"), description="Size of /dev/shm in each node", validate_default=True)
    subnet: str | None = Field(
        None, description="Subnet of the run's network, such as 10.210.0.0/24; chosen when left out"
    )
    timeout: Duration | None = Field(None, description="The run is stopped after this time, such as 10m")
    hang_timeout: Duration | None = Field(
        300.0, description="The run is stopped when no rank has moved for this time, such as 5m; or never"
    )
    keep: bool = Field(False, description="Leave nodes and network in place after the run")
    check: CheckSpec = Field(CheckSpec(), description="What `composesim check` is to do")
    script: str | None = Field(None, description="Python file that is run; the recipe's own example when left out")
    module: str | None = Field(None, description="Python module that every rank runs, instead of a script")
    args: tuple[Text, ...] = Field((), description="Arguments of the script")

    @field_validator("nodes", mode="before")
    @classmethod
    def _nodes(cls, nodes: Any) -> Any:
        if isinstance(nodes, str) and not re.fullmatch(r"[+-]?[0-9]+", nodes.strip()):
            raise ValueError(f"'{nodes}' is not a number of nodes")
        return int(nodes) if isinstance(nodes, str) else nodes

    @field_validator("hang_timeout", mode="before")
    @classmethod
    def _hang_timeout(cls, value: Any) -> Any:
        return None if value == "never" else value

    @field_validator("elastic")
    @classmethod
    def _elastic(cls, text: str | None) -> str | None:
        if text is not None and not re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", text):
            raise ValueError(f"'{text}' is not MIN:MAX nodes, such as 2:4")
        if text is not None and int(text.partition(":")[0]) > int(text.partition(":")[2]):
            raise ValueError(f"'{text}' is not MIN:MAX nodes: the first number is the larger one")
        return text

    @field_validator("link")
    @classmethod
    def _link(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        check_links(texts)
        return texts

    @field_validator("name")
    @classmethod
    def _name(cls, name: str | None) -> str | None:
        if name is not None and not RUN_NAME.fullmatch(name):
            raise ValueError(f"'{name}' is not a run name: lower-case letters, digits, - and _, 48 at most")
        return name

    @field_validator("env")
    @classmethod
    def _environment(cls, env: dict[str, str]) -> dict[str, str]:
        return check_environment(env)

    @field_validator("subnet")
    @classmethod
    def _subnet(cls, subnet: str | None) -> str | None:
        from ipaddress import ip_network

        if subnet is not None and ip_network(subnet).version != 4:
            raise ValueError(f"'{subnet}' is not an IPv4 network")
        return subnet

    @field_validator("script", "module", "args")
    @classmethod
    def _printable(cls, value: Any) -> Any:
        for text in (value,) if isinstance(value, str) else value or ():
            if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
                raise ValueError(f"{text!r} is not valid UTF-8")
        return value

    @field_validator("mounts")
    @classmethod
    def _mounts(cls, mounts: tuple[str, ...]) -> tuple[str, ...]:
        for mount in mounts:
            parts = mount.split(":")
            if len(parts) not in (2, 3) or not all(parts) or (len(parts) == 3 and parts[2] not in ("ro", "rw")):
                raise ValueError(f"'{mount}' is not SOURCE:TARGET or SOURCE:TARGET:ro")
            if not parts[1].startswith("/") or not parts[1].strip("/"):
                raise ValueError(f"the target of '{mount}' must be an absolute path below /")
        return mounts

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        if self.script is not None and self.module is not None:
            raise ValueError(f"script '{self.script}' and module '{self.module}' cannot both run")
        if self.nodes == ():
            raise ValueError("nodes is an empty list: a cluster has at least one node")
        if self.elastic_range and not self.elastic_range[0] <= self.initial_node_count <= self.elastic_range[1]:
            raise ValueError(f"{self.initial_node_count} nodes are not within '{self.elastic}', the range of elastic")
        if self.gpus in ("none", "emulated") and self.names_gpus:
            raise ValueError(f"gpus '{self.gpus}' is for all nodes, and a node names GPUs of its own")
        return self

    @property
    def names_gpus(self) -> bool:
        """Whether any node names GPUs of its own."""
        return isinstance(self.nodes, tuple) and any(node.gpus not in (None, "none") for node in self.nodes)

    @property
    def elastic_range(self) -> tuple[int, int] | None:
        """(least, most) nodes of an elastic run."""
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


def check_environment(env: dict[str, str]) -> dict[str, str]:
    """The same mapping, or ValueError for a name or a value that no process can be given."""
    for name, value in env.items():
        if not _ENVIRONMENT_NAME.fullmatch(name):
            raise ValueError(f"'{name}' is not a name of an environment variable")
        if name.startswith("COMPOSESIM_"):
            raise ValueError(f"'{name}' is one of composesim's own variables, by which it finds its nodes")
        if "\0" in value:
            raise ValueError(f"the value of '{name}' holds a NUL character, which no environment can carry")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError(f"the value of '{name}' is not valid UTF-8")
    return env
