"""Record, in `check`, from which states a rank draws while it trains, and whether these come from a checkpoint that it has loaded.

The methods of torch.Generator cannot be followed, as its type is immutable. But each draw of a script's own code shows the state that a
generator is in, and a state that is the same as one in a file was taken from there. What was loaded before the first step is ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from ...records.data import GeneratorDraw
from ...records.record import Place
from ...shared.frames import is_ours, is_user_code
from ..context import RankContext, place
from ..torch_hooks import points
from . import states
from .checkpoints import follow_loaded

_MEMORY = "loaded_generators.draws"
_SIZES = (5056, 16)  # bytes of the state of a generator on the CPU and on a GPU
_DEPTH, _MAX_VALUES = 4, 20_000  # in what is loaded
_MAX_LOADS, _MAX_DRAWS, _MAX_PLACES = 4, 5_000, 64  # the last two since a load
_STEPS, _IN_A_STEP = 6, 3  # with draws at a line since a load, and draws in each of them
_COMPILER, _DISTRIBUTIONS = "/torch/_dynamo/", "/torch/distributions/"


@dataclass(eq=False)
class Draws:
    """What is known of the generators of this rank."""

    loads: int = 0
    loaded: dict[str, Place | None] = field(default_factory=dict)  # hashes of states, with where they were loaded
    # Generators with one, which are kept: torch 2.11 has no weak references to them
    restored: dict[tuple[int, int], tuple[Any, Place | None]] = field(default_factory=dict)
    count: int = 0  # draws since a load
    looks: dict[Place, dict[int, int]] = field(default_factory=dict)  # since a load: by line and step

    def begin_again(self) -> None:
        """Look at the first draws once more."""
        self.count = 0
        self.looks.clear()

    def is_due(self, at: Place, step: int) -> bool:
        """Return whether to look at a draw in this line."""
        if at not in self.looks and len(self.looks) >= _MAX_PLACES:
            return False
        steps = self.looks.setdefault(at, {})
        if step not in steps and len(steps) >= _STEPS:
            return False
        steps[step] = steps.get(step, 0) + 1
        return steps[step] <= _IN_A_STEP

    def origin(self, generator: Any, which: int, state: str) -> Place | None:
        """Return where the state that a generator goes on from was loaded; None if it was not."""
        key = id(generator), which
        if state in self.loaded:
            self.restored[key] = generator, self.loaded[state]
        known, at = self.restored.get(key, (None, None))
        return at if known is generator else None


def begin(context: RankContext) -> None:
    if context.mode == "record":
        context.memory[_MEMORY] = Draws()
        points.DRAWN.subscribe(_draw)
        follow_loaded(_note_load)


def _draw(context: RankContext, call: points.TorchCall) -> points.Steps:
    draws: Draws = context.memory[_MEMORY]
    if not context.steps or draws.count >= _MAX_DRAWS or states.is_capturing():
        return
    draws.count += 1
    generator = call.options.get("generator")
    at = place() if _is_the_scripts(sys._getframe(1)) else None
    is_due = at is not None and draws.is_due(at, context.steps)
    if not is_due and not draws.loaded:
        return
    before = _states(generator)
    origins = [draws.origin(generator, which, state) for which, state in enumerate(before)]
    if not is_due:
        return
    yield
    for state, now, origin in zip(before, _states(generator), origins):
        if state != now:
            context.note(GeneratorDraw(context.steps, state, origin, at))
            return


def _is_the_scripts(frame: FrameType | None) -> bool:
    """Return whether the script itself draws: loaders draw seeds for their workers, and new layers weights that are then loaded."""
    while frame is not None and (is_ours(frame.f_code.co_filename) or _COMPILER in frame.f_code.co_filename):
        frame = frame.f_back
    file = "" if frame is None else frame.f_code.co_filename
    return is_user_code(file) or _DISTRIBUTIONS in file


def _states(generator: Any) -> list[str]:
    """Return a hash of a generator's state, or of those of the CPU and of the current GPU."""
    torch: Any = sys.modules["torch"]
    if generator is not None:
        return _hashes([generator.get_state()])
    found = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        found.append(torch.cuda.get_rng_state())
    return _hashes(found)


def _hashes(held: Iterable[Any]) -> list[str]:
    """Hash states as they lie in memory, which no mode of the script sees."""
    return list(
        map(str, states.hashes_of([each if each.device.type == "cpu" else each.cpu() for each in held], whole=True))
    )


def _note_load(context: RankContext, loaded: Any, is_sent: bool) -> None:
    draws: Draws = context.memory[_MEMORY]
    if is_sent:  # a state that is sent by itself is to be shared
        loaded = [each for each in loaded if len(each) > 1]
    if context.steps and draws.loads < _MAX_LOADS:
        found = _hashes(_states_in(loaded, _DEPTH, [_MAX_VALUES]))
        if found:
            draws.loads += 1
            draws.loaded.update(dict.fromkeys(found, place()))
            draws.begin_again()


def _states_in(value: Any, depth: int, left: list[int]) -> Iterator[Any]:
    """Yield the tensors in a checkpoint that may be states of generators."""
    torch: Any = sys.modules["torch"]
    left[0] -= 1
    if left[0] < 0:
        return
    if type(value) is torch.Tensor:
        if value.dtype == torch.uint8 and value.dim() == 1 and value.numel() in _SIZES:
            yield value
    elif depth and isinstance(value, (dict, list, tuple)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _states_in(each, depth - 1, left)
