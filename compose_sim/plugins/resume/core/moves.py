"""What the runs saved and loaded, and which line of the script a missing state points to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from compose_sim.core.events.observations import Observed
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.record import Place
from compose_sim.node.records.resumption import StateMoved
from compose_sim.plugins.resume.core.checkpoints import Checkpoint
from compose_sim.plugins.resume.core.findings import Missing
from compose_sim.plugins.resume.core.trajectory import steps_before

_KEYS: dict[str, tuple[str, ...]] = {
    "optimizer": ("optim", "opt", "velocity", "momentum", "exp_avg"),
    "scheduler": ("sched", "lr"),
    "scaler": ("scaler", "amp", "scale"),
    "average": ("ema", "average", "shadow"),
    "random": ("rng", "random", "generator"),
}
_LOADED: dict[str, str] = {
    "optimizer": "load it into the optimizer that steps",
    "scaler": "load it into the scaler",
    "average": "load it instead of copying the weights again",
}
_FIXES: dict[str, str] = {
    "optimizer": f"Save optimizer.state_dict(), and {_LOADED['optimizer']}",
    "scaler": f"Save scaler.state_dict(), and {_LOADED['scaler']}",
    "average": f"Save the average of the weights with the checkpoint, and {_LOADED['average']}",
    "buffers": "Save the whole state_dict() of the model, with its buffers, and load it",
    "accumulation": "Save only after an optimizer step, or save the gradients and the number of micro-batches too",
}


@dataclass(frozen=True, kw_only=True)
class Moves:
    """What the interrupted run saved, and what the resumed run loaded before its first step."""

    interrupted: Observed
    resumed: Observed
    checkpoint: Checkpoint | None  # that the resumed run goes on from
    is_over: bool = True  # whether the resumed run came to its end

    def loads(self, kind: str) -> bool:
        """Whether state was loaded into an object of this kind."""
        return self.first_load(kind) is not None

    def first_load(self, kind: str) -> StateMoved | None:
        """Return the first load into an object of this kind."""
        return next((each for each in self.resumed.of(StateMoved) if each.loaded and each.kind_of_state == kind), None)

    @property
    def loaded_at(self) -> Place | None:
        """The line that reads the checkpoint."""
        moved = [each for each in self.resumed.of(StateMoved) if each.loaded and each.step == 0]
        own = [each for each in moved if self._is_own(each.path)]  # not those of pretrained weights
        places = [*(each.at for each in own), *(each.at for each in self.read_files()), *(each.at for each in moved)]
        return next((at for at in places if at), None) or self.saved_at

    @property
    def saved_at(self) -> Place | None:
        """The line that writes it."""
        return self.checkpoint.at if self.checkpoint else None

    @cached_property
    def _written(self) -> set[str]:
        uses = (each for each in self.interrupted.of(FileUse) if each.op != "read")
        saved = (each for each in self.interrupted.of(StateMoved) if each.kind_of_state == "file" and not each.loaded)
        return {path for each in uses for path in (each.path, each.to) if path} | {each.path for each in saved}

    def _is_own(self, path: str) -> bool:
        """Return whether the interrupted run wrote this file, perhaps in a folder that it renamed."""
        return path in self._written or any(str(each) in self._new_names for each in PurePosixPath(path).parents)

    @cached_property
    def _new_names(self) -> set[str]:
        return {each.to for each in self.interrupted.of(FileUse) if each.op == "rename" and each.to}

    def read_files(self) -> list[FileUse]:
        """Return the reads of files of the interrupted run before the first step that follows a backward pass."""
        before = (each for rank in self.resumed for step, each in steps_before(rank.records) if not step)
        return [each for each in before if isinstance(each, FileUse) and each.op == "read" and self._is_own(each.path)]

    def restored(self, rank: int, states: Mapping[str, int]) -> set[str]:
        """Return the generators that this rank had in one of these states before its first step: what it draws next may be shifted."""
        own = self.resumed.ranks.get(rank)
        seen = [each.random for each in own.of(StateMoved) if each.random and each.step == 0] if own else []
        return {name for name, state in states.items() if any(each.get(name) == state for each in seen)}

    def loaded_paths(self) -> list[str]:
        """Return the files of the interrupted run that the resumed run loaded or read before its first step."""
        moved = (each for each in self.resumed.of(StateMoved) if each.kind_of_state == "file" and each.loaded)
        loaded = [each.path for each in moved if not each.step and each.path and self._is_own(each.path)]
        return [*dict.fromkeys((*loaded, *(each.path for each in self.read_files())))]

    @property
    def names(self) -> str:
        """The first of the files that were loaded."""
        return ", ".join(self.own_names[:2]) + (" …" if len(self.own_names) > 2 else "")

    @property
    def own_names(self) -> list[str]:
        """The names of the files that were loaded."""
        return [*dict.fromkeys(path.rpartition("/")[2] for path in self.loaded_paths())]

    @property
    def has_begun_from_a_file(self) -> bool:
        """Whether the interrupted run itself had loaded a file before its first step."""
        loads = (each for each in self.interrupted.of(StateMoved) if each.loaded and each.kind_of_state == "file")
        return any(each.step == 0 for each in loads)

    def is_saved(self, missing: str) -> bool | None:
        """Whether a key of what was saved names this state; None if no keys are known."""
        names = {name.lower() for each in self.interrupted.of(StateMoved) if not each.loaded for name in each.names}
        if not names:
            return None
        return any(key in name for key in _KEYS.get(missing, ()) for name in names)

    def place_for(self, missing: str) -> Place | None:
        """Return the line to change: where the state is loaded wrongly, or the checkpoint is read, or saved without it."""
        load = self.first_load(missing)
        if load is not None and load.at:
            return load.at
        return self.saved_at or self.loaded_at if self.is_saved(missing) is False else self.loaded_at

    def fix_for(self, missing: Missing) -> str:
        """Return what to change."""
        load = self.first_load(missing) if missing == "optimizer" else None
        if load is not None:
            return "Load the state into the optimizer that steps, after that has been made and holds all parameters"
        if missing in _LOADED and self.is_saved(missing):
            return f"The checkpoint holds it: {_LOADED[missing]}"
        return _FIXES[missing]
