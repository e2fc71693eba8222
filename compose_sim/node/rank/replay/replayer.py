"""Repeat the recorded steps of all ranks on one rank, with the joined batches, recorded settings and recorded parameters.

Every step starts from recorded parameters, so rounding does not grow, and an error in one step does not affect the next.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import torch

from ...records.replays import Precision, ReplayedStep, ReplayEnd, ReplayMisaligned
from ...shared import emulation
from .. import tracked
from ..context import RankContext, place
from ..torch_hooks.updates_by_hand import stands_in
from . import batches, shards, weights
from .batch_ids import LoaderNumbers, Passage, aligned, read_record
from .batches import collated
from .chosen_samples import Choices
from .gradients import (
    Clipped,
    GradientComparison,
    add,
    compare,
    gradients_of,
    least_to_compare,
    only,
    put,
    set_settings,
    settings_of,
    unset_settings,
)
from .inputs import Inputs, are_joined, held_by, replicated
from .layouts import Layout, infer, positions

_ALL_PARTS = "the steps of which all parts were recorded have been repeated"
_ONLY_GPU = {f"cuda:{index}": "cuda:0" for index in range(1, 64)}  # a node of the recorded run may have more


class Replayer:
    """One rank's replay of a record: of all ranks together, or of one rank alone."""

    def __init__(self, context: RankContext) -> None:
        """Read the record."""
        self.context = context
        self.folder = Path(os.environ["COMPOSESIM_RECORD"])
        alone = os.environ.get("COMPOSESIM_RECORD_RANK")
        self.alone = int(alone) if alone else None
        self.record = read_record(self.folder)
        self.passages = aligned(self.record)
        self.loaders = LoaderNumbers()
        self._choices = Choices()
        self.clipped = Clipped()
        self.clipped.notice()
        self.inputs = Inputs()
        self.divisors: set[float] = set()
        self.low = False  # whether autocast was seen
        self._stepped: set[int] = set()
        self._put: set[int] = set()
        self._step = 0
        self._fetched = 0
        self._why_not = ""
        self._is_collated = False  # a batch of this step
        self._layouts: list[Layout] = []  # of the parameters, if ranks hold some in parts
        # By optimizer, at its first step, with the places of the parameters in what each rank holds
        self._inferred: dict[int, tuple[list[Layout], list[tuple[int | None, ...]]]] = {}
        # What the script does now, it does only to evaluate what it has trained, or it trains nothing
        self.has_all_steps = not any(each.steps for each in self.record)
        # Optimizers of parameters that no wrapper holds: until it is known that ranks hold them in parts, each may have its own
        self._outside = {step["optimizer"] for rank in self.record for step in rank.steps if step["outside"]}
        self._has_stages = False
        self._stages: list[bool] = []  # whether only some ranks hold the parameter at all
        self._before: list[Any] = []
        self._largest = 0.0
        self._now: dict[str, Any] = {}
        self._ended = False
        self.weights = weights.WeightReplay(context, self.folder)
        self._is_moved = False  # by the step whose weights are compared

    def set_randomness(self) -> None:
        """Set the random states that rank 0 began with."""
        path = self.folder / "randomness.pt"
        if path.exists():
            states = torch.load(path, weights_only=False)
            torch.set_rng_state(states["torch"])
            random.setstate(states["random"])

    # Batches

    def length(self, loader: Any, natural: int | None) -> int | None:
        """Return how many batches a loader had on rank 0, or its `natural` length if that is not known."""
        known = self.record[0].loaders
        number = self.loaders.number_of(loader)
        if number is not None and all(map(self._is_evaluation, self._of_loader(number))):
            return natural
        if number is None:
            facts = self.loaders.facts(loader, None)
            alike = {key: value for key, value in known.items() if value["dataset"] == facts["dataset"]}
            same = [key for key, value in alike.items() if value["created"] == facts["created"]]
            number = same[0] if same else next(iter(alike)) if len(alike) == 1 else None
        recorded = known.get(number, {}).get("length") if number is not None else None
        return natural if recorded is None else recorded

    def passage(self, loader: Any) -> Replayed | None:
        """Return an iterator over recorded batches, to take the place of one over this loader; None for a whole evaluation.

        One rank evaluates all samples in their own order, which predictions may be compared in.
        """
        number, _ = self.loaders.begin(loader)
        passages = self.passages.get(number.key, {})
        if len(passages) == len(self.record) and all(map(self._is_evaluation, passages.values())):
            self._fetched += passages[0].batches
            self.inputs.fetched()
            self._put_initial()
            return None
        if self.alone is None and len(passages) == len(self.record):
            self._compare_choice(loader, passages)
        return Replayed(self, loader, passages)

    def _compare_choice(self, loader: Any, passages: dict[int, Passage]) -> None:
        """Note whether the script would train one rank on the same samples; what goes wrong here must not end the replay."""
        try:
            found = self._choices.compared(loader, passages, place())
        except Exception:  # noqa: BLE001 - samplers and data sets are the script's
            return
        if found is not None:
            self.context.note(found)

    def _is_evaluation(self, passage: Passage) -> bool:
        """Return whether a passage only evaluates, as far as is known: without a backward pass, and after the first step."""
        is_asked = self.alone is None and "COMPOSESIM_RECORDED_PASSAGES" not in os.environ
        return is_asked and passage.evaluated and passage.first_step > 0

    def _of_loader(self, number: int) -> list[Passage]:
        return [each for record in self.record for each in record.passages.values() if each.loader == number]

    def batch(self, loader: Any, passages: dict[int, Passage], number: int) -> Any:
        """Return a batch of all ranks as one. Raise StopIteration after the last one; end the replay after the recorded ones."""
        own = passages.get(self.alone or 0)
        if own is None or number >= own.batches:
            if own is not None and own.ended:
                raise StopIteration
            self.end("all that was recorded has been repeated")
        chosen = [own] if self.alone is not None else [passages[rank] for rank in sorted(passages)]
        self._fetched += 1
        self.inputs.fetched()
        self._put_initial()
        if number not in own.files:  # there was no space for this batch of an evaluation, where any batch will do
            if not own.files:
                self.end("batches of an evaluation were not recorded")
            return self._load(own.files[max(own.files)])
        return self._joined(loader, chosen, number)

    def _joined(self, loader: Any, chosen: list[Passage], number: int) -> Any:
        parts = [self._load(passage.files[number]) for passage in chosen if number in passage.files]
        sizes = {passage.sizes.get(number) for passage in chosen}
        if self.alone is None and len(parts) < len(self.record):
            self._why_not = f"only {len(parts)} of {len(self.record)} ranks had this batch"
        elif len(sizes) > 1:
            self._why_not = f"ranks had batches of different sizes ({', '.join(map(str, sorted(sizes, key=str)))})"
        if self._files("step.0")[1:]:  # the parameters are spread over a mesh
            parts = list(batches.distinct(parts))
        try:
            return batches.join(parts)
        except batches.CannotJoin as error:
            together = collated(loader, [passage.indices.get(number, []) for passage in chosen], parts)
            if together is None:
                self._why_not = str(error)
                return parts[0]
            self._is_collated = True
            return together

    def _load(self, file: str) -> Any:
        return torch.load(self.folder / file, weights_only=False, map_location=_ONLY_GPU)

    def called(self, module: Any, given: Any) -> None:
        """Take note of what a model is given, before its first step from the recorded parameters."""
        if self._is_moved:
            self.weights.after(self.inputs.called.modules(), self._now["settings_are_equal"])
            self.end("the first step has been repeated")
        if self.inputs.add(module, given) and tracked.optimizers.made:
            self._put_initial()

    def _put_initial(self) -> None:
        """Set the recorded parameters before the first step, for scripts that set no seed."""
        for optimizer, index in tracked.optimizers.living():
            path = self.folder / f"initial.{index}.pt"
            if index not in self._put and index not in self._stepped and path.exists():
                held = [self._load(file) for file in self._files(f"initial.{index}")]
                put(tracked.parameters_of(optimizer), shards.joined(held, replicas_agree=False))
            self._put.add(index)

    # Steps

    def before_step(self, optimizer: Any) -> None:
        """Compare the gradients, and make the step use the recorded settings."""
        index = tracked.optimizers.number(optimizer)
        self._stepped.add(index)
        path = self.folder / f"step.{self._step}.pt"
        steps = self.record[0].steps
        if self._step >= len(steps) or not path.exists():
            self.end("all recorded steps have been repeated")
        recorded = self._now = self._recorded_step()
        if (recorded["optimizer"], recorded["fetched"]) != (index, self._fetched):
            self.context.note(ReplayMisaligned(self._step, self._fetched, recorded["fetched"]))
            self.end("the script takes other steps at world size 1")
        self._compare_inputs(index)
        if weights.is_on():
            self._begin_update(optimizer, recorded)
            return
        ours, held = gradients_of(optimizer, self.clipped), tracked.parameters_of(optimizer)
        shapes = [len(held) == len(recorded["after"])]
        shapes += [one.shape == other.shape for one, other in zip(held, recorded["after"])]
        self._layouts, kept = [], None
        if all(shapes) and recorded["outside"]:
            self.end("the optimizer trains parameters that are in no DistributedDataParallel model", have_own=True)
        if all(shapes) and self._has_stages:
            self.end("some ranks were given no samples, and one rank has no more parameters than each of them")
        if all(shapes) and self.alone is None and self._are_apart():
            self.end("ranks began with different values of parameters that have the same shape at world size 1")
        if not all(shapes):
            self._layouts = self._put_together(held, ours, recorded)
            kept = None if self._layouts else self._replicated(held)
        if (not all(shapes) and not (kept or self._layouts)) or len(ours) != len(recorded["after"]):
            self.context.note(ReplayMisaligned(self._step))
            self.end("the optimizer has other parameters at world size 1")
        if kept:
            ours, recorded["gradients"] = only(ours, kept), only(recorded["gradients"], kept)
        recorded["own_settings"] = settings_of(optimizer)
        precision = self._precision_of(optimizer, recorded)
        compared = self._compared(ours, recorded, precision)
        if compared is not None and self._outside <= self._inferred.keys():
            self._note(compared, recorded, precision, parts=kept.count(False) if kept else 0)
        if kept:
            self.end(_ALL_PARTS)
        self._why_not, self._is_collated = "", False
        self._before = [shards.copied(each) for each in held] if self._layouts else []
        set_settings(optimizer, recorded["settings"])

    def _begin_update(self, optimizer: Any, recorded: dict[str, Any]) -> None:
        """Keep the weights before the first step, if it can be compared by what it makes of them."""
        rows = {step["rows"] for rank in self.record for step in rank.steps[:1]}
        if len(rows) > 1:
            self.end(f"ranks had batches of different sizes ({', '.join(map(str, sorted(rows)))})")
        why = self._why_not or self.weights.before(self.inputs.called.modules())
        if why:
            self.end(why)
        recorded["settings_are_equal"] = not stands_in(optimizer) and settings_of(optimizer) == recorded["settings"]

    def _put_together(self, held: list[Any], ours: Any, recorded: dict[str, Any]) -> list[Layout]:
        """Put what ranks hold in parts together, in the record of this step, and return how; nothing if that is not possible."""
        parts = [self._load(file) for file in self._parts(self._step) if self.alone is None]
        wholes = [shards.copied(each) for each in held]
        layouts, places = self._inferred.get(recorded["optimizer"], ([], None))
        places = places or positions(wholes, [part["before"] for part in parts])
        if not parts or places is None:
            return []

        def held_at(name: str, at: int) -> list[Any]:
            return [None if place is None else part[name][place] for part, place in zip(parts, places[at])]

        for _ in range(0 if layouts else 2):  # the parts of matrices tell how those are divided that begin as zeros
            found: list[Layout | None] = []
            for at, each in enumerate(wholes):
                found.append(infer(each, held_at("before", at), layouts, found[-1] if found else None))
            layouts = [each for each in found if each is not None]
        if len(layouts) < len(held):
            return []
        self._inferred[recorded["optimizer"]] = layouts, places
        self._stages = [place.count(None) > 0 for place in places]
        for name, mine in (("gradients", ours), ("after", wholes)):
            recorded[name] = [
                layout.joined(held_at(name, at), nearest_to=mine[at]) for at, layout in enumerate(layouts)
            ]
        return layouts

    def _parts(self, step: int) -> list[str]:
        """Return the files with what ranks held in a step; none unless all ranks have written theirs."""
        files = self._files(f"parts.{step}")
        return files if len(files) == len(self.record) else []

    def _compare_update(self, optimizer: Any) -> None:
        """Compare what a step has made of parameters that ranks hold in parts; an adaptive step magnifies rounding."""
        recorded = self._now
        if type(optimizer).__name__ == "SGD":
            held = [shards.copied(each) for each in tracked.parameters_of(optimizer)]
            pairs = [
                (mine - before, theirs - before) for mine, theirs, before in zip(held, recorded["after"], self._before)
            ]
            precision = self._precision_of(optimizer, recorded)
            compared = compare(
                [one for one, _ in pairs], [other for _, other in pairs], largest=0.0, precision=precision
            )
            self._note(compared, recorded, precision, of_update=True)
        if not self._parts(self._step + 1):
            self.end(_ALL_PARTS)

    def _are_apart(self) -> bool:
        """Return whether ranks began with different parameters: one rank may have a part of their model, and no more of it alone."""
        return not self._step and any(len(set(each)) > 1 for each in zip(*self._held_at_first()))

    def _replicated(self, parameters: list[Any]) -> list[bool] | None:
        """Return which parameters all ranks held before the first step, if all together held the others; else None."""
        return replicated(held_by(parameters) or [], self._held_at_first()) if not self._step else None

    def _held_at_first(self) -> list[list[int]]:
        """Return the hashes of the parameters that each rank held before the first step; [] for one that did not record them."""
        return [rank.steps[0].get("held") or [] for rank in self.record if rank.steps]

    def _compare_inputs(self, optimizer: int) -> None:
        """End the replay if the script itself makes its batches, and these are not those of all ranks together."""
        ours = self.inputs.take(optimizer)
        theirs = [rank.steps[self._step]["inputs"] for rank in self.record if self._step < len(rank.steps)]
        chosen = theirs if self.alone is None else theirs[self.alone : self.alone + 1]
        given = [each for each in chosen if each]
        self._has_stages = 0 < len(given) < len(chosen)  # of a pipeline, of which one or two are given the samples
        if given and not are_joined(ours, given):
            different = {tuple(sorted(each.items())) for each in given}
            self.end(
                "at world size 1 the script makes other batches than all ranks together; those of a DataLoader could be compared",
                other_batches=len(different),
            )

    def after_step(self, optimizer: Any) -> None:
        """Continue from the parameters that the recorded run continued from."""
        if weights.is_on():
            self._is_moved = True
            return
        if self._layouts:
            self._compare_update(optimizer)
        unset_settings(optimizer, self._now)
        put(tracked.parameters_of(optimizer), self._now["after"])
        self.clipped.clear()
        self.divisors = set()
        self.context.flush()
        self._step += 1
        goes_on = self.alone is None and self.record[0].completed  # to evaluate what it has trained
        self.has_all_steps = self._step >= len(self.record[0].steps)
        if self.has_all_steps and not goes_on:
            self.end("all recorded steps have been repeated")

    def _recorded_step(self) -> dict[str, Any]:
        """Load what rank 0 recorded of this step, with the parts of sharded tensors that other ranks recorded."""
        first, *others = [self._load(file) for file in self._files(f"step.{self._step}")]
        if others and len(others) < len(self.record) - 1:
            self.end("all recorded steps have been repeated")
        try:
            return {
                **first,
                "gradients": shards.joined([each["gradients"] for each in (first, *others)], replicas_agree=False),
                "after": shards.joined([each["after"] for each in (first, *others)], replicas_agree=True),
            }
        except shards.NotComplete as error:
            self.end(str(error))

    def _files(self, name: str) -> list[str]:
        files = [shards.file_of(name, rank) for rank in range(len(self.record))]
        return [file for file in files if (self.folder / file).exists()]

    def _compared(self, ours: Any, recorded: dict[str, Any], precision: Precision) -> GradientComparison | None:
        """Compare the gradients; return None if the gradients of single ranks are still to be compared."""
        if self.alone is not None:
            path = self.folder / f"alone.{self._step}.pt"
            before = self._load(path.name) if path.exists() else {"ranks": [], "sum": [None] * len(ours)}
            total = add(before["sum"], ours, 1.0 / len(self.record))
            sums = {"ranks": [*before["ranks"], self.alone], "sum": total}
            torch.save(sums, path)
            if len(sums["ranks"]) < len(self.record):
                return None
            ours = sums["sum"]
        self._largest = self._largest or least_to_compare(recorded["after"])
        compared = compare(ours, recorded["gradients"], largest=self._largest, precision=precision)
        self._largest = max(self._largest, compared.norm or 0.0)
        return compared

    def _note(
        self,
        compared: GradientComparison,
        recorded: dict[str, Any],
        precision: Precision,
        *,
        parts: int = 0,
        of_update: bool = False,
    ) -> None:
        batch_sizes = [size for each in self.record[0].passages.values() for size in each.sizes.values()]
        batch_sizes += [step["rows"] for step in self.record[0].steps if step["inputs"]]
        self.context.note(
            ReplayedStep(
                step=self._step,
                optimizer=recorded["optimizer"],
                tensor=_name(recorded["names"], compared.worst),
                finite=compared.finite,
                vanished=compared.vanished,
                difference=compared.difference,
                cosine=compared.cosine,
                least_cosine=compared.least_cosine,
                ratio=compared.ratio,
                why_not=self._why_not,
                precision=precision,
                by_value=self.clipped.by_value or recorded["by_value"],
                settings=tuple(recorded["own_settings"]),
                recorded_settings=tuple(recorded["settings"]),
                divisors=tuple(sorted(self.divisors)),
                batch_size=max(batch_sizes, default=0),
                parts=parts or sum(map(self._is_in_parts, range(len(self._layouts)))),
                is_part=bool(self._layouts) and self._layouts[compared.worst].dim is not None,
                stage=self._stage_of(compared.worst, anywhere=of_update),
                of_update=of_update,
                collated=self._is_collated,
                batches_per_step=recorded["fetched"] / (self._step + 1) or 1.0,
            )
        )

    def _stage_of(self, at: int, *, anywhere: bool) -> int | None:
        """Return the rank that alone holds a parameter, or also any other one; None if ranks are no stages."""
        is_stage = bool(self._layouts) and (self._stages[at] or (anywhere and any(self._stages)))
        return self._layouts[at].ranks[0] if is_stage else None

    def _is_in_parts(self, at: int) -> bool:
        return self._layouts[at].dim is not None or self._stages[at]

    def _precision_of(self, optimizer: Any, recorded: dict[str, Any]) -> Precision:
        kinds = {parameter.dtype for parameter in tracked.parameters_of(optimizer)}
        if self.low or recorded["hooked"] or kinds & {torch.float16, torch.bfloat16}:
            return "low"
        is_gpu = not emulation.is_on() and any(parameter.is_cuda for parameter in tracked.parameters_of(optimizer))
        return "tf32" if is_gpu else "float32"

    def end(self, why: str, **more: Any) -> NoReturn:
        """End the script here; what else is given belongs to the record."""
        self.context.note(ReplayEnd(why, self._step, **more))
        self.context.flush()
        if self._ended or threading.current_thread() is not threading.main_thread():
            sys.stdout.flush()
            os._exit(0)  # the script catches SystemExit, or waits for one of its threads
        self._ended = True
        raise SystemExit(0)


def _name(names: list[str], at: int) -> str:
    return names[at] if at < len(names) else f"parameter {at}"


class Replayed:
    """The iterator over a loader in a replay."""

    def __init__(self, replayer: Replayer, loader: Any, passages: dict[int, Passage]) -> None:
        self._replayer, self._loader, self._passages, self._next = replayer, loader, passages, 0

    def __iter__(self) -> Replayed:
        return self

    def __next__(self) -> Any:
        batch = self._replayer.batch(self._loader, self._passages, self._next)
        self._next += 1
        return batch
