"""What does a scenario say? Steps that do something to a run at some moment, and what is expected of the run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from compose_sim.core.events.events import KINDS as EVENTS
from compose_sim.core.faults.kinds import KINDS
from compose_sim.core.request.field_types import Duration
from compose_sim.core.verdict.verdict import EXIT_CODES

ANY = "any"


def _one_or_more(value: Any) -> Any:
    """`a`, `a, b` and `[a, b]` are all lists of names; nothing is none."""
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value


def _texts(value: Any) -> Any:
    """One text as well as a list of them; `plain` is none at all."""
    return [] if value == "plain" else [value] if isinstance(value, str) else value


def _share(value: Any) -> Any:
    """`10%` is 0.1."""
    percent = re.fullmatch(r"\s*([0-9.]+)\s*%\s*", value) if isinstance(value, str) else None
    return float(percent[1]) / 100 if percent else value


def _rank_or_any(value: Any) -> Any:
    if value != ANY and not re.fullmatch(r"[0-9]+", str(value)):
        raise ValueError(f"'{value}' is neither a rank nor any")
    return value if value == ANY else int(value)


def _count_of_nodes(value: Any) -> Any:
    """`scale: 3` and `scale: {nodes: 3}`."""
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


class Moment(BaseModel):
    """When a step is due: `time`, `step` (of `rank`), `event` or `every`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    time: Duration | None = Field(None, description="So long after the run began")
    step: Whole | None = Field(None, description="When the training has made so many steps")
    rank: Whole | None = Field(None, description="The rank that has made them; with event, the rank of the event")
    event: str | None = Field(None, description="When this has happened, after the step before was played")
    node: str | None = Field(None, description="With event: the node of the event")
    world_size: Whole | None = Field(None, description="With event: the ranks of the round")
    after: Duration | None = Field(None, description="With event: so long after it")
    every: Duration | None = Field(None, description="Again and again, first so long after the run began")
    times: Annotated[int, Field(ge=1)] | None = Field(None, description="With every: so often at most")
    until: Duration | None = Field(None, description="With every: until so long after the run began")

    @field_validator("event")
    @classmethod
    def _event(cls, event: str | None) -> str | None:
        if event is not None and event not in EVENTS:
            raise ValueError(unknown("event", event, EVENTS))
        return event

    @model_validator(mode="after")
    def _one_moment(self) -> Self:
        ways = ("time", "step", "event", "every")
        given = [way for way in ways if getattr(self, way) is not None]
        if len(given) != 1:
            raise ValueError(
                f"{' and '.join(given)} are two moments" if given else "no moment is given: time, step, event or every"
            )
        belongs = {"rank": ("step", "event"), "node": ("event",), "world_size": ("event",), "after": ("event",)}
        for key, owners in {**belongs, "times": ("every",), "until": ("every",)}.items():
            if getattr(self, key) is not None and given[0] not in owners:
                raise ValueError(f"{key} goes with {' or '.join(owners)}, not with {given[0]}")
        return self


class Breakage(BaseModel):
    """A fault as a scenario names it; keys that are not named here are options of its kind."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    kind: Names = Field((), description="The kind of fault, one of several at random, or any")
    node: Names = Field((), description="The node or nodes; any for one at random")
    rank: RankOrAny | None = Field(None, description="The rank; any for one at random")
    for_s: Duration | None = Field(None, alias="for", description="Healed by itself after this time")

    @field_validator("kind")
    @classmethod
    def _kind(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kind not in KINDS and kind != ANY:
                raise ValueError(unknown("kind of fault", kind, KINDS))
        return kinds

    @property
    def options(self) -> dict[str, Any]:
        """What else is said of it, as it was written."""
        return dict(self.model_extra or {})


class Step(BaseModel):
    """One thing to do to the run, and when."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: Moment = Field(description="When")
    pick: Literal["any"] | None = Field(None, description="any: the node, or the rank, is chosen at random")
    fault: Breakage | None = Field(None, description="Break something")
    heal: str | None = Field(None, description="Heal what bears on a node, or all")
    link: Annotated[tuple[str, ...], BeforeValidator(_texts), _names("10mbit")] | None = Field(
        None, description="Give links another shape, as --link takes it; plain for none"
    )
    scale: Annotated[int, BeforeValidator(_count_of_nodes), Field(ge=1)] | None = Field(
        None, description="Have so many nodes take part"
    )

    @model_validator(mode="after")
    def _one_deed(self) -> Self:
        deeds = ("fault", "heal", "link", "scale")
        given = [deed for deed in deeds if getattr(self, deed) is not None]
        if len(given) != 1:
            raise ValueError(
                f"{' and '.join(given)} are two steps" if given else "nothing is to be done: fault, heal, link or scale"
            )
        if self.fault is None and self.pick:
            raise ValueError("pick goes with fault")
        if self.fault is not None and not (self.fault.kind or self.pick):
            raise ValueError("the fault has no kind")
        return self


class Expectation(BaseModel):
    """One thing that is expected of the run; core/scenarios/expectations/ judges each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recovered_within: Duration | None = Field(None, description="From each loss to the first new step")
    recoveries_at_least: Whole | None = Field(None, description="So often the run went on after a loss")
    steps_lost_at_most: Whole | None = Field(None, description="Steps to be made again after each loss")
    loss_continuous: Share | None = Field(
        None, description="How far the loss at a step may jump across a restart, as a share of the first loss"
    )
    world_sizes: Annotated[tuple[Whole, ...], BeforeValidator(_one_or_more)] | None = Field(
        None, description="Ranks of the rounds, one after another, such as [4, 3, 4]"
    )
    no_collective_over: Duration | None = Field(None, description="The longest that any rank waits in one collective")
    on_links_at_most: Annotated[dict[str, Share], Field(min_length=1)] | None = Field(
        None, description="The most that metrics are while links have a shape, as shares of what they are without"
    )
    exit_code: Whole | None = Field(None, description="What `up` would have ended with")
    verdict: Literal[*EXIT_CODES] | None = Field(None, description="The verdict of the run")  # type: ignore[valid-type]
    hang_diagnosed: Whole | None = Field(None, description="The rank that a hang was found to wait for")
    faults_at_least: Whole | None = Field(None, description="So many faults were injected")
    nothing_left: bool | None = Field(None, description="No node, network or process of the run is left")

    @model_validator(mode="after")
    def _one_expectation(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("an entry is one expectation, such as recovered_within: 3s")
        return self

    @property
    def name(self) -> str:
        """Which it is."""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)

    @property
    def wanted(self) -> Any:
        """The value that it names."""
        return getattr(self, self.name)


class Scenario(BaseModel):
    """A whole scenario file."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="A scenario of composesim")

    shows: str = Field("", description="What the scenario shows, in one line")
    seed: int | None = Field(
        None, description="Where random choices begin; --seed wins, and without either it is new each time"
    )
    cluster: Annotated[dict[str, Any], WithJsonSchema({"type": "object"})] = Field(
        default_factory=dict,
        description="What `up` is given, as composesim.yaml says it (composesim.schema.json); flags win",
    )
    steps: tuple[Step, ...] = Field((), description="What is done to the run")
    expect: tuple[Expectation, ...] = Field((), description="What is expected of it")


def unknown(what: str, name: str, known: Any) -> str:
    """What to say of a name that there is not."""
    nearest = next(iter(get_close_matches(name, sorted(known), n=1)), "")
    return f"there is no {what} '{name}'" + (
        f"; did you mean '{nearest}'?" if nearest else f"; there are {', '.join(sorted(known))}"
    )
