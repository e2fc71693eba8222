"""Record which random numbers a rank draws while it loads samples, and inside the model.

Only the states of generators are read; nothing is drawn. The first few fetches and forwards are enough: ranks that share random
numbers share them from the beginning.
"""

from __future__ import annotations

import sys
import zlib
from typing import Any

from ...records.data import LoaderRanks, RandomDraws, TrainingForward
from .. import tracked
from ..context import RankContext, place
from ..torch_hooks import points
from .iterations import Iteration
from .loaders import ACTIVE, BEGUN, FETCHING, WHEN_TAKEN
from .samples import bytes_of, rows_of

_LOOKS = {"": (2, 3, 6)}  # epochs; fetches of each; forwards
_THOROUGH = (4, 12, 24)
_FORWARDS, _LAST_STATE, _GROUPS = "randomness.forwards", "randomness.last_state", "randomness.groups"
_LOADS, _LOOKED_FROM, _MAX_LOADS = "randomness.loads", "randomness.looked_from", 4
_DEPTH, _CUDA_STATE = 4, 16  # of dicts and lists in a file; bytes of the state of a GPU's generator
_SAMPLES = 4  # at least, in a batch that may not be read
# Numbers from generators of modules: fewer may be decisions that ranks make alike, such as which layers to skip
_OF_A_SAMPLE = 8
_WORDS = 624  # in the state of a Mersenne twister: it returns this many numbers, then generates new ones
_State = tuple[int, int, int]  # a hash of it, how many more numbers it returns, a hash of what those are made from
_States = dict[str, Any]  # generator -> _State


def install() -> None:
    WHEN_TAKEN.append(_keep_state)
    points.BATCH_MADE.subscribe(_fetch, in_children=True)
    points.DDP_FORWARD.subscribe(_forward)
    points.LOADED.subscribe(_loaded)


def _fetch(context: RankContext, call: points.TorchCall) -> points.Steps:
    """Follow the making of a batch, in the rank and in the workers."""
    iteration: Iteration | None = context.memory.get(FETCHING if context.is_here else BEGUN)
    if iteration is None:
        return
    epochs, fetches, _ = _LOOKS.get(context.mode, _THOROUGH)
    iteration.fetches += 1
    if iteration.epoch >= epochs or iteration.fetches > fetches:
        return
    index, before = call.arguments[1], generator_states(iteration.loader.generators)
    yield
    after = generator_states(iteration.loader.generators)
    drawn = {name: (state[0], draws(state, after[name])) for name, state in before.items() if name in after}
    note = context.note if context.is_here else context.observations.note_from_child
    note(
        RandomDraws(
            loader=iteration.loader.number,
            epoch=iteration.epoch,
            fetch=iteration.fetches - 1,
            size=len(index) if isinstance(index, (list, tuple)) else 1,
            worker=None if context.is_here else _worker(),
            states={name: state for name, state in drawn.items() if state[1]},
        )
    )


def _worker() -> int | None:
    info = sys.modules["torch"].utils.data.get_worker_info()
    return None if info is None else int(info.id)


def generator_states(generators: list[Any]) -> _States:
    """Return the state of each generator that code uses without naming one, and of those in the data set."""
    states: _States = {"torch": _device_state()}
    random, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    if random is not None:
        states["python"] = _python_state(random)
    if numpy is not None:
        _, keys, position, *_ = numpy.get_state()
        data, position = keys.tobytes(), int(position)
        states["numpy"] = zlib.crc32(data, position), _WORDS - position, zlib.crc32(data)
    for index, generator in enumerate(generators):
        states[f"own {index}"] = _state_of(generator)
    return states


def torch_state(generator: Any = None) -> _State:
    """Return the state of a generator of torch on the CPU, a Mersenne twister as torch lays it out in memory."""
    state = bytes_of(sys.modules["torch"].get_rng_state() if generator is None else generator.get_state())
    left = int.from_bytes(state[8:12], sys.byteorder, signed=True)
    return zlib.crc32(state), left, zlib.crc32(state[24 : 24 + 8 * _WORDS])


def _device_state() -> _State:
    """Return the state of torch's generator, with that of the current GPU: models and data on a GPU draw from the latter."""
    whole, left, numbers = torch_state()
    cuda = sys.modules["torch"].cuda
    if cuda.is_initialized() and not cuda.is_current_stream_capturing():
        whole = zlib.crc32(bytes_of(cuda.get_rng_state()), whole)
    return whole, left, numbers


def _python_state(random: Any) -> _State:
    numbers = random.getstate()[1]
    # A hash of numbers is the same in every process.
    return hash(numbers) & 0xFFFFFFFF, _WORDS - numbers[-1], hash(numbers[:-1])


def _state_of(generator: Any) -> _State:
    if hasattr(generator, "get_state"):
        return torch_state(generator)
    if hasattr(generator, "getstate"):
        return _python_state(generator)
    # NumPy has many kinds: any change counts as many draws.
    whole = zlib.crc32(repr(generator.bit_generator.state).encode())
    return whole, 0, whole


def draws(before: _State, after: _State) -> int:
    """Return how many numbers were drawn between two states, at least."""
    if before[0] == after[0]:
        return 0
    drawn = before[1] - after[1]
    return max(1, drawn if before[2] == after[2] else drawn + _WORDS)


def _forward(context: RankContext, call: points.TorchCall) -> points.Steps:
    """Compare the generators before and after a forward pass, and with those when its batch was taken."""
    model, active = call.owner, context.memory.get(ACTIVE)
    if not sys.modules["torch"].is_grad_enabled() or not model.training:
        return
    forward = context.memory[_FORWARDS] = context.memory.get(_FORWARDS, 0) + 1
    is_noted = _is_looked_at(context, forward)
    if active is None and not is_noted:
        return
    number, ranks = _group_of(context, model)
    _count_forward(context, active, (number, ranks), bool(model.require_backward_grad_sync))
    if not is_noted:
        return
    before = _device_state()
    rows, _ = rows_of((call.arguments[1:], call.options), wait=context.thorough) or (None, None)
    where = {"at": place()} if active is None else {"loader": active.loader.number, "epoch": active.epoch}
    loads, last = context.memory.get(_LOADS, 0), context.memory.get(_LAST_STATE)
    loop = {} if last is None else {"loop": last[0], "loop_drew": draws(last, before)}
    least = _dropouts_of(model) * (len(rows) if rows else _SAMPLES)  # numbers that its layers draw
    kept = [(each, torch_state(each)) for each in _generators_of(model)]
    yield
    after = context.memory[_LAST_STATE] = _device_state()
    state, drew = before[0], draws(before, after)
    if drew and before[1:] == after[1:]:  # only the generator of a GPU, whose state does not count the numbers
        drew = max(drew, least)
    if not drew:  # ranks share numbers only if they share those that they use
        counts = [(each[0], draws(each, torch_state(generator))) for generator, each in kept]
        many = sum(count for _, count in counts)
        if many and many >= _OF_A_SAMPLE * len(rows or ()):
            state, drew = zlib.crc32(repr([each for each, count in counts if count]).encode()), many
    context.note(TrainingForward(number, ranks, forward - 1, rows, state, drew, loads=loads, **where, **loop))


def _loaded(context: RankContext, _: points.TorchCall) -> points.Steps:
    """Look at the first passes after the state of a generator was loaded too."""
    loaded = yield
    forwards, loads = context.memory.get(_FORWARDS, 0), context.memory.get(_LOADS, 0)
    if forwards and loads < _MAX_LOADS and _has_state(loaded, _DEPTH):
        context.memory.update({_LOADS: loads + 1, _LOOKED_FROM: forwards})
        context.memory.pop(_LAST_STATE, None)


def _has_state(loaded: Any, depth: int) -> bool:
    torch: Any = sys.modules["torch"]
    if isinstance(loaded, torch.Tensor):
        return bool(loaded.dtype == torch.uint8 and loaded.numel() in (torch.get_rng_state().numel(), _CUDA_STATE))
    values = loaded.values() if isinstance(loaded, dict) else loaded if isinstance(loaded, (list, tuple)) else ()
    return depth > 0 and any(_has_state(each, depth - 1) for each in values)


def _is_looked_at(context: RankContext, forward: int) -> bool:
    begun: int = context.memory.get(_LOOKED_FROM, 0)
    return forward - begun <= _LOOKS.get(context.mode, _THOROUGH)[2]


def _dropouts_of(model: Any) -> int:
    """Return how many layers of a model drop units. Each draws a number for a sample or more."""
    dropout = sys.modules["torch.nn.modules.dropout"]._DropoutNd
    return sum(isinstance(each, dropout) and each.training and each.p > 0 for each in model.modules())


def _generators_of(model: Any) -> list[Any]:
    """Return the generators that modules of a model keep, such as those of a dropout that is written by hand."""
    generator = sys.modules["torch"].Generator
    kept = (each for module in model.modules() for each in vars(module).values() if isinstance(each, generator))
    return [each for each in kept if each.device.type == "cpu"]


def _count_forward(
    context: RankContext, active: Iteration | None, group: tuple[int, tuple[int, ...]], synchronized: bool
) -> None:
    """Count the forward pass for the loaders whose batch it is given."""
    for iteration in (active, active.companion) if active is not None else ():
        if iteration is not None:
            iteration.forwards += 1
            iteration.synchronized += synchronized
            if group not in iteration.loader.groups:
                iteration.loader.groups.append(group)
                context.note(LoaderRanks(iteration.loader.number, group[1]))


def _group_of(context: RankContext, model: Any) -> tuple[int, tuple[int, ...]]:
    """Return a number for the model, and the ranks that train it together."""
    number = tracked.models.number(model)
    groups: dict[int, tuple[int, ...]] = context.memory.setdefault(_GROUPS, {})
    if number not in groups:
        groups[number] = tuple(sys.modules["torch"].distributed.get_process_group_ranks(model.process_group))
    return number, groups[number]


def _keep_state(context: RankContext) -> None:
    """Keep the state when a batch is taken: what is drawn from then to the model's forward is drawn for this batch."""
    if _is_looked_at(context, context.memory.get(_FORWARDS, 0) + 1):
        context.memory[_LAST_STATE] = _device_state()
