"""Record what one rank needs to repeat the first steps of a run: batches, gradients, settings and parameters."""

from __future__ import annotations

import json
import os
import pickle
import random
import weakref
from pathlib import Path
from typing import Any

import torch

from ...records.replays import EvaluationDraws, RecordedStep, RecordingStopped, StopReason
from .. import tracked
from ..context import IN_CHECKPOINT, RankContext
from ..torch_hooks import points
from . import batches, shards
from .batch_ids import LoaderNumbers, Passage
from .chosen_samples import Numbering, length_of, random_states
from .gradients import Clipped, gradients_of, only, settings_of
from .inputs import Inputs, held_by
from .rng_usage import RngUsage
from .weights import WeightRecord
from .wrapped_models import computes_low, describe, models_of, names_of_parameters, wrapped_models

STEPS = 20
_STEPS_IN_PARTS = 8  # for which all ranks keep what they hold, if it is little
_MAX_BYTES = 512 << 20  # for batches of all ranks together, and for gradients
_MAX_UNUSED_BYTES = 64 << 20  # for batches that are fetched with gradients off: those of an evaluation


class Recorder:
    """One rank's recording; `is_over` once the last wanted step is recorded or the space is used up."""

    def __init__(self, context: RankContext) -> None:
        """Create the folder, in which every rank writes separate files."""
        self.context = context
        self.folder = Path(os.environ["COMPOSESIM_RECORD"])
        self.folder.mkdir(parents=True, exist_ok=True)
        self.rank = context.events.rank or 0
        asked = os.environ.get("COMPOSESIM_CHECK_STEPS")
        self.steps_wanted = int(asked) if asked else STEPS
        self.ends_script = asked is not None
        self.steps = 0
        self.is_over = False
        self.loaders = LoaderNumbers()
        self.rng_usage = RngUsage()
        self._evaluation_draws = RngUsage()
        self.clipped = Clipped()
        self.inputs = Inputs()
        self.weights = WeightRecord(context, self._save)
        self._passages: Any = weakref.WeakKeyDictionary()
        self._numbering: Any = weakref.WeakKeyDictionary()
        self._states: list[int] = []
        self._index = (self.folder / f"{self.rank}.jsonl").open("w", buffering=1)
        self._fetched = 0
        self._backwards = 0
        self._room = _MAX_BYTES // int(os.environ.get("WORLD_SIZE") or 1)
        self._unused_room = min(_MAX_UNUSED_BYTES, self._room // 4)
        self._room_for_steps = _MAX_BYTES
        self._initial_kept: set[int] = set()
        self._seen: set[int] = set()
        self._pending: dict[str, Any] | None = None
        self._hooked = False
        self._wraps = False  # whether a model is wrapped
        self._covered: set[int] = set()  # the optimizers that train only what a wrapper holds
        self._parts: dict[str, Any] | None = None  # of a step
        self._shared: dict[int, list[bool]] = {}  # by optimizer: the parameters of which each rank keeps its own
        self._flat: dict[int, shards.FlatPart] = {}  # by the id of a parameter that the first FSDP shards
        points.DRAWN.subscribe(self.rng_usage.notice)
        self.clipped.notice()

    def keep_randomness(self) -> None:
        """Save rank 0's random states before the script runs: the replay starts from them if the script sets no seed."""
        if self.rank == 0:
            self._save({"torch": torch.get_rng_state(), "random": random.getstate()}, "randomness.pt")

    # Batches

    def begins(self) -> None:
        """Keep the random states before an iterator is made, which may draw."""
        self._states = random_states()

    def began(self, loader: Any, iterator: Any) -> None:
        """Record that the script begins to iterate over a loader."""
        passage, is_first = self.loaders.begin(loader)
        passage.first_step, passage.backwards = self.steps, self._backwards
        self._passages[iterator] = passage
        if is_first:
            self._write(loader=passage.loader, facts=self.loaders.facts(loader, length_of(loader)))
        self._numbering[iterator] = numbering = Numbering(loader.dataset)
        key = {"loader": passage.loader, "passage": passage.number}
        self._write(**key, step=self.steps, base=numbering.base, random=self._states)

    def got(self, iterator: Any, batch: Any, indices: list[int] | None) -> None:
        """Record a batch that the script has taken, and the indices of its samples."""
        passage = self._passages.get(iterator)
        if passage is None:
            return
        self._keep_initial()
        file = self._save_batch(passage, batch)
        number = passage.batches
        line = {"loader": passage.loader, "passage": passage.number, "batch": number, "step": self.steps}
        samples = self._numbering[iterator](indices) if indices else []
        self._write(**line, file=file, size=batches.size(batch), indices=indices, samples=samples)
        passage.batches += 1
        self._fetched += 1
        self.inputs.fetched()

    def may_draw(self) -> None:
        """Count draws as the training's from now on, unless this is an evaluation, or there is no model or loader yet."""
        if tracked.optimizers.made and self._fetched and torch.is_grad_enabled():
            self.rng_usage.open()

    def evaluates(self) -> None:
        """Watch what an evaluation draws, until its loader draws."""
        if not (torch.is_grad_enabled() or self._evaluation_draws.is_open):
            self._evaluation_draws.open()

    def waits(self) -> None:
        """Watch no draws: a loader makes a batch, or an optimizer steps."""
        self.rng_usage.close()
        self._evaluation_draws.close()
        drew = self._evaluation_draws.take()
        if drew:
            self.context.note(EvaluationDraws(drew))

    def completed(self) -> None:
        """Record that the script has ended, and all of its steps are recorded."""
        self.waits()
        self._write(completed=True)

    def ended(self, iterator: Any) -> None:
        """Record that a loader has no more batches."""
        passage = self._passages.get(iterator)
        if passage is not None:
            evaluated = (passage.first_step, passage.backwards) == (self.steps, self._backwards)
            key = {"loader": passage.loader, "passage": passage.number}
            self._write(**key, step=self.steps, ended=True, evaluated=evaluated)

    def _save_batch(self, passage: Passage, batch: Any) -> str:
        """Save a batch and return the file's name; return "" if there is no space for it, or if it cannot be saved."""
        weight = batches.weight(batch)
        if not torch.is_grad_enabled():
            if weight > self._unused_room:
                return ""
            self._unused_room -= weight
        self._room -= weight
        if self._room < 0:
            self._stop("room", "batches take more than the space for them")
            return ""
        file = f"{self.rank}.{passage.loader}.{passage.number}.{passage.batches}.pt"
        try:
            self._save(batches.compact(batch), file)
        except (pickle.PicklingError, TypeError, AttributeError, RuntimeError, OSError) as error:
            self._stop("unsaved", f"a batch of type {type(batch).__name__} cannot be saved: {error}")
            return ""
        return file

    # Models

    def called(self, module: Any, given: Any) -> None:
        """Record what an outermost model is given if no loader gave it."""
        self.weights.after(self.inputs.called.modules)
        if self.inputs.add(module, given) and tracked.optimizers.made:
            self._keep_initial()
            self.rng_usage.close()
            self.rng_usage.open()

    def backward_ended(self) -> None:
        """Count no draws as the training's until the next call, if no loader gives batches: they make the next samples."""
        self._backwards += 1
        if not self._fetched:
            self.rng_usage.close()

    # Steps

    def before_step(self, optimizer: Any) -> None:
        """Record the gradients that the step will use."""
        self.waits()
        index = tracked.optimizers.number(optimizer)
        if index not in self._seen:
            self._seen.add(index)
            self._look_around(optimizer)
        if not self._wraps:
            self.weights.before(self.inputs.called.modules())
        inputs, rows = self.inputs.take(index), self.inputs.rows
        self._pending = {
            "optimizer": index,
            "fetched": self._fetched,
            "step": self.steps,
            "inputs": inputs,
            "rows": rows,
            "held": held_by(tracked.parameters_of(optimizer)) if inputs and not self.steps else None,
            "outside": self._wraps and index not in self._covered,
        }
        self._parts = None
        if self.steps < _STEPS_IN_PARTS and self._may_hold_parts(optimizer, index):
            gradients = gradients_of(optimizer, self.clipped)
            self._parts = {"before": self._copies(optimizer), "gradients": gradients}
        self.context.note(RecordedStep(self.steps, index, self.rng_usage.take(), self._fetched, len(inputs)))
        if any(self._shared[index]):
            self._pending["gradients"] = gradients_of(optimizer, self.clipped, self._flat)
        if self.rank == 0:
            names = names_of_parameters()
            self._pending |= {
                "gradients": self._pending.get("gradients") or gradients_of(optimizer, self.clipped, self._flat),
                "settings": settings_of(optimizer),
                "names": [names.get(id(each), f"parameter {name}") for name, each in tracked.numbered(optimizer)],
                "by_value": self.clipped.by_value,
                "hooked": self._hooked,
            }

    def after_step(self, optimizer: Any) -> None:
        """Record the parameters after the step."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        shared = self._shared[pending["optimizer"]]
        if self._parts is not None:
            parts = {**self._parts, "after": self._copies(optimizer)}
            self._save(parts, shards.file_of(f"parts.{self.steps}", self.rank))
        if self.rank == 0 or any(shared):
            after = self._copies(optimizer)
            if self.rank:
                pending["gradients"], after = only(pending["gradients"], shared), only(after, shared)
            weight = 2 * batches.weight(after)
            if self.steps and weight > self._room_for_steps:
                self._stop("room", "gradients take more than the space for them")
                return
            self._room_for_steps -= weight
            self._save({**pending, "after": after}, shards.file_of(f"step.{self.steps}", self.rank))
        known = {key: pending[key] for key in ("optimizer", "fetched", "inputs", "rows", "held", "outside")}
        self._write(**known, step=self.steps)
        self.clipped.clear()
        self.steps += 1
        if self.steps >= self.steps_wanted:
            self._stop("steps", "")

    def _may_hold_parts(self, optimizer: Any, index: int) -> bool:
        """Return whether this rank may hold parts of parameters by the script's own means, and these are few enough to keep now."""
        parameters = tracked.parameters_of(optimizer)
        is_plain = all(each.layout is torch.strided and type(each.detach()) is torch.Tensor for each in parameters)
        copies = 3 * (_STEPS_IN_PARTS if self.steps else 1)
        return is_plain and index not in self._covered and copies * batches.weight(parameters) <= self._room

    def closed_over(self) -> None:
        """Stop recording, because the optimizer computes gradients by itself, more than once per step."""
        self.context.note(RecordingStopped("closure", "the optimizer computes gradients several times per step"))
        self.is_over = True

    def _keep_initial(self) -> None:
        """Save the parameters before the first step, for scripts that set no seed."""
        for optimizer, index in tracked.optimizers.living():
            if index in self._initial_kept:
                continue
            self._initial_kept.add(index)
            self._flat |= shards.flat_parts(models_of("torch.distributed.fsdp", "FullyShardedDataParallel"))
            wanted = self.rank == 0 or any(
                shards.is_sharded(each, self._flat) for each in tracked.parameters_of(optimizer)
            )
            if wanted and index not in self._seen:
                self._save(self._copies(optimizer), shards.file_of(f"initial.{index}", self.rank))

    def _save(self, value: Any, file: str) -> None:
        """Save a part of the recording, which is no checkpoint of the script."""
        self.context.memory[IN_CHECKPOINT] = True
        try:
            torch.save(value, self.folder / file)
        finally:
            self.context.memory[IN_CHECKPOINT] = False

    def _copies(self, optimizer: Any) -> list[Any]:
        return [shards.copied(each, self._flat.get(id(each))) for each in tracked.parameters_of(optimizer)]

    def _look_around(self, optimizer: Any) -> None:
        """Record what decides whether one rank can repeat the steps of this optimizer at all."""
        index, models = tracked.optimizers.number(optimizer), wrapped_models()
        found, flat = describe(optimizer, index, models)
        self._flat |= flat
        self._wraps = bool(models.parallel or models.fully_sharded)
        self._covered |= {index} if found.covered or models.fully_sharded else set()
        held = {id(parameter) for model in models.parallel for parameter in model.parameters()}
        self._shared[index] = [found.sharded and id(each) not in held for each in tracked.parameters_of(optimizer)]
        self._hooked = bool(found.hooks) or any(map(computes_low, models.fully_sharded))
        self.context.note(found)

    def _stop(self, reason: StopReason, detail: str) -> None:
        self.is_over = True
        self.context.note(RecordingStopped(reason, detail, self.steps))

    def _write(self, **line: Any) -> None:
        self._index.write(json.dumps(line) + "\n")
