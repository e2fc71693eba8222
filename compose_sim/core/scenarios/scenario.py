"""Define the format of scenarios, the steps and the expectations that the run must meet, and parse their files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from compose_sim.core.events.events import KINDS as EVENTS
from compose_sim.core.faults.kinds import KINDS
from compose_sim.core.faults.parse import GROUP
from compose_sim.core.request.field_types import Duration
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.request.spec_file import keys_at as keys_of_spec
from compose_sim.core.request.validation_errors import error_in_file, problems_of
from compose_sim.core.request.yaml_source import KeyPath, read_yaml
from compose_sim.core.text import did_you_mean
from compose_sim.core.verdict.verdict import EXIT_CODES
from compose_sim.plugins.registry import find

ANY = "any"
EXPECTATIONS = "composesim.expectations"  # of plug-ins: a module with a function of the name, and RECORDS for the nodes
OF_PLUG_INS = ("state_continuous",)


def _one_or_more(value: Any) -> Any:
    """Accept `a`, `a, b` and `[a, b]`."""
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value


def _texts(value: Any) -> Any:
    """Accept one text as well as a list of texts; `plain` is an empty list."""
    return [] if value == "plain" else [value] if isinstance(value, str) else value


def _share(value: Any) -> Any:
    """Accept `10%` for 0.1."""
    percent = re.fullmatch(r"\s*([0-9.]+)\s*%\s*", value) if isinstance(value, str) else None
    return float(percent[1]) / 100 if percent else value


def _rank_or_any(value: Any) -> Any:
    if value != ANY and not re.fullmatch(r"[0-9]+", str(value)):
        raise ValueError(f"'{value}' is neither a rank nor any")
    return value if value == ANY else int(value)


def _count_of_nodes(value: Any) -> Any:
    """Accept `3` and `{nodes: 3}`."""
    return value["nodes"] if isinstance(value, Mapping) and list(value) == ["nodes"] else value


def _names(example: str) -> WithJsonSchema:
    texts = {"type": "array", "items": {"type": "string"}}
    return WithJsonSchema({"anyOf": [{"type": "string"}, texts], "examples": [example]})


Names = Annotated[tuple[str, ...], BeforeValidator(_one_or_more), _names("node-1")]
Share = Annotated[
    float,
    BeforeValidator(_share),
    Field(ge=0, allow_inf_nan=False),
    WithJsonSchema({"type": ["string", "number"], "examples": ["10%"]}),
]
Whole = Annotated[int, Field(ge=0)]
RankOrAny = Annotated[
    Any,
    BeforeValidator(_rank_or_any),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": ANY}]}),
]


class TriggerSpec(BaseModel):
    """When a step is due: `time`, `step` (of `rank`), `event` or `every`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    time: Duration | None = Field(None, description="This long after the start of the run")
    step: Whole | None = Field(None, description="When training has made this many steps")
    rank: Whole | None = Field(None, description="The rank that counts the steps; with event, the rank of the event")
    event: str | None = Field(None, description="When this happens after the previous step was played")
    node: str | None = Field(None, description="With event: the node of the event")
    world_size: Whole | None = Field(None, description="With event: the world size of the round")
    after: Duration | None = Field(None, description="With event: the delay after it")
    every: Duration | None = Field(None, description="Repeatedly, counted from the start of the run")
    times: Annotated[int, Field(ge=1)] | None = Field(None, description="With every: at most this many times")
    until: Duration | None = Field(None, description="With every: until this long after the start of the run")

    @field_validator("event")
    @classmethod
    def _event(cls, event: str | None) -> str | None:
        if event is not None and event not in EVENTS:
            raise ValueError(unknown("event", event, EVENTS))
        return event

    @model_validator(mode="after")
    def _one_trigger(self) -> Self:
        way = _only(self, ("time", "step", "event", "every"), "exclude each other")
        belongs = {"rank": ("step", "event"), "node": ("event",), "world_size": ("event",), "after": ("event",)}
        for key, owners in {**belongs, "times": ("every",), "until": ("every",)}.items():
            if getattr(self, key) is not None and way not in owners:
                raise ValueError(f"{key} requires {' or '.join(owners)}, not {way}")
        return self


class FaultSpec(BaseModel):
    """The fault of a step. All other keys are options of the kind."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    kind: Names = Field((), description="The kind of fault; several, or any, for a random one")
    node: Names = Field((), description="The node or nodes; any for a random one")
    rank: RankOrAny | None = Field(None, description="The rank; any for a random one")
    for_s: Duration | None = Field(None, alias="for", description="Heal it after this time")

    @field_validator("kind")
    @classmethod
    def _kind(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kind not in KINDS and kind != ANY and not find(GROUP, kind):
                raise ValueError(unknown("fault", kind, KINDS))
        return kinds

    @property
    def options(self) -> dict[str, Any]:
        """The options by name: `limit` and `--limit` are the same, and only `--kind` is an option of a kind."""
        return {key.removeprefix("--").replace("-", "_"): value for key, value in (self.model_extra or {}).items()}


class Step(BaseModel):
    """One intervention, and when it is due."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: TriggerSpec = Field(description="When")
    pick: Literal["any"] | None = Field(None, description="any: choose the node or rank at random")
    fault: FaultSpec | None = Field(None, description="Inject a fault")
    heal: str | None = Field(None, description="Heal the faults of a node, or all")
    link: Annotated[tuple[str, ...], BeforeValidator(_texts), _names("10mbit")] | None = Field(
        None, description="Set the shape of links, in the syntax of --link; plain for none"
    )
    scale: Annotated[int, BeforeValidator(_count_of_nodes), Field(ge=1)] | None = Field(
        None, description="Change the number of nodes"
    )

    @model_validator(mode="after")
    def _one_action(self) -> Self:
        _only(self, ("fault", "heal", "link", "scale"), "are separate steps")
        if self.fault is None and self.pick:
            raise ValueError("pick requires fault")
        if self.fault is not None and not (self.fault.kind or self.pick):
            raise ValueError("the fault needs a kind")
        return self


class Expectation(BaseModel):
    """One expectation of the run. core/scenarios/expectations evaluates it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recovered_within: Duration | None = Field(None, description="From each loss to the first new step")
    recoveries_at_least: Whole | None = Field(None, description="Training continued after at least this many losses")
    steps_lost_at_most: Whole | None = Field(None, description="Steps to repeat after each loss")
    loss_continuous: Share | None = Field(
        None, description="How much the loss at a step may change across a restart, as a share of the first loss"
    )
    state_continuous: bool | None = Field(
        None, description="What is repeated after a restart has the same samples, settings, random numbers and tensors"
    )
    world_sizes: Annotated[tuple[Whole, ...], BeforeValidator(_one_or_more)] | None = Field(
        None, description="World sizes of the rounds in order, such as [4, 3, 4]"
    )
    no_collective_over: Duration | None = Field(
        None, description="The longest time that any rank waits in one collective"
    )
    on_links_at_most: Annotated[dict[str, Share], Field(min_length=1)] | None = Field(
        None, description="Upper bounds of metrics while links are shaped, as shares of their values without"
    )
    exit_code: Whole | None = Field(None, description="The exit code that `up` would have")
    verdict: Literal[*EXIT_CODES] | None = Field(None, description="The verdict of the run")  # type: ignore[valid-type]
    hang_diagnosed: Whole | None = Field(None, description="The rank that a hang was blamed on")
    faults_at_least: Whole | None = Field(None, description="At least this many faults were injected")
    nothing_left: bool | None = Field(None, description="No node, network or process of the run remains")

    @model_validator(mode="after")
    def _one_expectation(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("an entry has exactly one expectation, such as recovered_within: 3s")
        return self

    @property
    def name(self) -> str:
        """The key of the expectation."""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)

    @property
    def wanted(self) -> Any:
        """The value of that key."""
        return getattr(self, self.name)


class Scenario(BaseModel):
    """A scenario file."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="A scenario of composesim")

    shows: str = Field("", description="What the scenario shows, in one line")
    seed: int | None = Field(
        None, description="Seed of random choices. --seed overrides it; without either, each run has a new one"
    )
    cluster: Annotated[dict[str, Any], WithJsonSchema({"type": "object"})] = Field(
        default_factory=dict,
        description="Settings of the cluster, as in composesim.yaml (composesim.schema.json). Flags override them",
    )
    steps: tuple[Step, ...] = Field((), description="What to do, and when")
    expect: tuple[Expectation, ...] = Field((), description="What must hold")


def _only(model: BaseModel, keys: tuple[str, ...], why_not_both: str) -> str:
    """Return which one of these keys is given; raise ValueError for none, or for several."""
    given = [key for key in keys if getattr(model, key) is not None]
    if len(given) != 1:
        needed = f"one of {', '.join(keys[:-1])} and {keys[-1]} is required"
        raise ValueError(f"{' and '.join(given)} {why_not_both}" if given else needed)
    return given[0]


def unknown(what: str, name: str, known: Any) -> str:
    """Return the message for an unknown name."""
    return f"unknown {what} '{name}'{did_you_mean(name, sorted(known))}"


_INSIDE: dict[str, type[BaseModel]] = {"at": TriggerSpec, "fault": FaultSpec}
_LISTS: dict[str, type[BaseModel]] = {"steps": Step, "expect": Expectation}


def parse_scenario(text: str, source: str, variables: Mapping[str, str]) -> Scenario:
    """
    Return the scenario of a file; `variables` are the values of `${NAME}`.

    Raises SpecError with file, line and key.
    """
    read = read_yaml(text, source, variables)
    try:
        scenario = Scenario.model_validate(read.values)
    except ValidationError as error:
        raise error_in_file(read, problems_of(error, _keys_at)) from None
    try:
        ClusterSpec.model_validate(scenario.cluster)
    except ValidationError as error:
        problems = [problem.inside("cluster") for problem in problems_of(error, keys_of_spec)]
        raise error_in_file(read, problems) from None
    return scenario


def _keys_at(path: KeyPath) -> list[str]:
    """Return the keys that are valid beside the one at this path."""
    if len(path) == 1:
        return [*Scenario.model_fields]
    model = _INSIDE.get(str(path[2])) if len(path) > 3 else _LISTS.get(str(path[0]))
    return [field.alias or name for name, field in (model or Scenario).model_fields.items()]
