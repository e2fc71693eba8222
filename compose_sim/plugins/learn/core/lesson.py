"""Define the format of a course: `course.yaml`, and the `lesson.yaml` in the folder of each lesson."""

from __future__ import annotations

from decimal import Decimal
from math import inf, isclose, isfinite
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from compose_sim.core.request.field_types import CheckIds, Count, Duration
from compose_sim.core.request.validation_errors import error_in_file, problems_of
from compose_sim.core.request.yaml_source import KeyPath, read_yaml
from compose_sim.core.scenarios.scenario import Expectation, Share, Step, Whole

Text = Annotated[str, Field(min_length=1)]
Par = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Picture = Literal["samples", "parameters", "messages", "timeline", "collectives", "shares", "files", "rounds", "none"]
_Model = TypeVar("_Model", bound=BaseModel)
SCRIPT = "script.py"  # of the student
_NOTHING = 1e-9  # what rounding leaves of 0
_TOLERANCE = 0.01


class MetricBound(BaseModel):
    """What the last value of a metric must be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    equals: float | None = Field(None, description="This value, up to a relative difference of 1e-6")
    at_least: float | None = Field(None, description="This value or more")
    at_most: float | None = Field(None, description="This value or less")

    @model_validator(mode="after")
    def _some_bound(self) -> Self:
        if self.equals is None and self.at_least is None and self.at_most is None:
            raise ValueError("one of equals, at_least and at_most is required")
        return self

    def holds(self, value: float) -> bool:
        """Return whether a value is within the bounds."""
        if self.equals is not None and not isclose(value, self.equals, rel_tol=1e-6, abs_tol=_NOTHING):
            return False
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def badness(self, value: float) -> tuple[float, float]:
        """Return what orders values from the best to the worst: how far out of bounds, then how near to the upper bound, if any."""
        if self.holds(value):
            return 0.0, -value if self.at_most is None and self.equals is None else value
        limits = [limit for limit in (self.equals, self.at_least, self.at_most) if limit is not None]
        excess = min(abs(value - limit) for limit in limits)
        return (excess if isfinite(excess) else inf), 0.0

    def shown(self, value: float) -> str:
        """Return a value with three digits, or with as many more as it takes to see whether it is within the bounds."""
        texts = (number_text(value, digits) for digits in (3, 6, 10))
        alike = (text for text in texts if self.holds(float(text.replace(",", ""))) == self.holds(value))
        return next(alike, number_text(value))

    @property
    def text(self) -> str:
        """The bounds in words."""
        if self.at_least is not None and self.at_least == self.at_most:
            return number_text(self.at_least)
        words = {"": self.equals, "at least ": self.at_least, "at most ": self.at_most}
        return " and ".join(f"{word}{number_text(value)}" for word, value in words.items() if value is not None)


def number_text(value: float, digits: int | None = None) -> str:
    """Return a whole number as `671,744`, and another one rounded to so many digits, without an exponent: `0.0000921`."""
    if not isfinite(value):
        return str(value)
    if abs(value) < _NOTHING or value == round(value):
        return f"{round(value):,}"
    return format(Decimal(repr(value) if digits is None else f"{value:.{digits}g}"), ",f")


class Requirements(BaseModel):
    """What a run must show for the lesson to be passed. That it ended without a failure is always required."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: Count | None = Field(None, description="Optimizer steps that each node makes, at least")
    loss_falls: Share | None = Field(
        None, description="How much lower the mean loss of the last quarter is than that of the first, at least"
    )
    collectives: Count | None = Field(None, description="Collectives that each rank issues, at least")
    elements_per_collective: Whole | None = Field(None, description="Elements of the largest collective, at most")
    reductions_per_step: float | None = Field(
        None, description="Gradient reductions by DistributedDataParallel per optimizer step, at most"
    )
    samples_per_epoch: Count | None = Field(
        None, description="Different samples that all ranks together train on in each epoch, each of them once"
    )
    orders: Count | None = Field(
        None, description="Epochs, at least, which all have their samples in different orders; needs samples_per_epoch"
    )
    backwards_per_step: Count | None = Field(None, description="Backward passes before each optimizer step")
    checks: CheckIds = Field((), description="Checks of `composesim check` that must pass")
    explained_by: CheckIds = Field((), description="Checks that are shown, if they fail, beside what was not met")
    metrics: dict[str, MetricBound] = Field(
        default_factory=dict, description="Bounds of numbers that the program reports; needs a program of the course"
    )
    expect: tuple[Expectation, ...] = Field((), description="Expectations of the scenario, as in scenario files")


class Lesson(BaseModel):
    """A lesson.yaml file."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", title="A lesson of a composesim course", populate_by_name=True
    )

    title: Text = Field(description="The title")
    goal: Text = Field(description="What the student is to reach, in one sentence")
    question: Text = Field(description="What the student should predict before the first run")
    answer: Text = Field(description="The answer to the question, shown once the lesson is passed")
    why: Text = Field(description="Why the mistake matters, shown with each failed attempt")
    hints: tuple[Text, Text, Text] = Field(description="Three hints, each stronger than the one before")
    concepts: tuple[Text, ...] = Field((), description="What the lesson teaches, in the field's terms")
    nodes: Count = Field(2, description="Number of nodes")
    ranks_per_node: Count = Field(1, description="Ranks on each node")
    program: Text = Field(
        SCRIPT, pattern=r"^[\w-]+\.py$", description="What the ranks run: the script, or a program that imports it"
    )
    timeout: Duration = Field("60s", validate_default=True, description="Stop an attempt after this time")
    hang_timeout: Duration = Field("15s", validate_default=True, description="Stop it if no rank moves for this time")
    max_restarts: int = Field(0, ge=0, description="New rounds after failed ranks and lost nodes")
    steps: tuple[Step, ...] = Field((), description="Faults to inject, as in the steps of a scenario file")
    required: Requirements = Field(alias="pass", description="What the run must show")
    score: dict[str, Par] = Field(
        default_factory=dict,
        description="Numbers that the program reports and of which less is better, each with par: what the solution reaches. "
        "The largest value of all ranks counts, and only if the run passed",
    )
    fails: Text = Field(description="The requirement that the delivered script does not meet, such as set-epoch")
    picture: Picture = Field("none", description="What is drawn from the run")
    number: float | None = Field(None, description="The number that answers the question, to compare predictions with")
    needs: dict[str, Text] = Field(
        default_factory=dict,
        description="For a check in `pass`: what a script must have, so that there is something to judge",
    )

    def agrees(self, prediction: str) -> bool | None:
        """Return whether a prediction names the number that answers the question; None if one of both has no number."""
        words = (word.strip(".:;!?()'\"").replace(",", "") for word in prediction.split())
        numbers = [float(word) for word in words if word.replace(".", "", 1).removeprefix("-").isdecimal()]
        if self.number is None or not numbers:
            return None
        return any(isclose(each, self.number, rel_tol=1e-6) for each in numbers)

    @property
    def limits(self) -> tuple[str, ...]:
        """What the run may use at most, in words: a student cannot guess it. Tolerances of differences are left out."""
        bounds = self.required.metrics.items()
        return tuple(
            f"{name} {each.text}" for name, each in bounds if each.at_most is not None and each.at_most > _TOLERANCE
        )

    @property
    def requirements(self) -> tuple[str, ...]:
        """The ids of all requirements, in the order in which they are judged."""
        wanted = self.required
        counted = (
            *("steps", "loss_falls", "samples_per_epoch", "orders", "backwards_per_step"),
            *("elements_per_collective", "reductions_per_step", "collectives"),
        )
        return (
            *("run", *(name for name in wanted.checks if name == "hang")),  # what does not end cannot be judged further
            *(name for name in counted if getattr(wanted, name) is not None),
            *(name for name in wanted.checks if name != "hang"),
            *wanted.metrics,
            *(each.name for each in wanted.expect),
            *(name for name in wanted.explained_by if name not in wanted.checks),
        )

    @model_validator(mode="after")
    def _fails_for_a_requirement(self) -> Self:
        if self.fails not in self.requirements or self.fails in self.required.explained_by:
            raise ValueError(
                f"fails: '{self.fails}' is not a requirement of this lesson: {', '.join(self.requirements)}"
            )
        if set(self.requirements) <= {"run", *self.required.explained_by}:
            raise ValueError("pass: it requires nothing, so an empty script would pass")
        measured = "metrics" if self.required.metrics else "score" if self.score else ""
        if measured and self.program == SCRIPT:
            raise ValueError(f"{measured}: a script can print any number; use a `program` of the course that measures")
        if self.required.orders and not self.required.samples_per_epoch:
            raise ValueError("orders: it needs samples_per_epoch, which tells epochs apart")
        return self


class Course(BaseModel):
    """A course.yaml file."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="A course of composesim")

    title: Text = Field(description="The title")
    welcome: Text = Field(description="What the student reads first")
    farewell: Text = Field(description="What the student reads when all lessons are passed")


def parse_lesson(text: str, source: str) -> Lesson:
    """Return the lesson in a text; raise SpecError with file, line and key."""
    return _parse(Lesson, text, source)


def parse_course(text: str, source: str) -> Course:
    """Return the course in a text; raise SpecError with file, line and key."""
    return _parse(Course, text, source)


def _parse(model: type[_Model], text: str, source: str) -> _Model:
    read = read_yaml(text, source, {})
    try:
        return model.model_validate(read.values)
    except ValidationError as error:
        raise error_in_file(read, problems_of(error, lambda path: _keys_at(model, path))) from None


def _keys_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    """Return the keys that are valid beside the one at this path."""
    inside: dict[str, type[BaseModel]] = {"pass": Requirements, "metrics": MetricBound}
    own = next((inside[str(key)] for key in reversed(path[:-1]) if key in inside), model)
    return [field.alias or name for name, field in own.model_fields.items()]
