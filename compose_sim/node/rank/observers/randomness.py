"""Which random numbers does a rank draw while it loads samples, and inside its model?

States of generators are read, never drawn from. Only the first few fetches and forwards are looked at: ranks that share their
random numbers share them from the beginning.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import weakref
import zlib
from types import ModuleType
from typing import Any

from ...shared.import_hooks import after_import
from ..context import Watch, here, in_child, place
from .iterations import Iteration
from .loaders import ACTIVE, BEGUN, FETCHING, WHEN_TAKEN, guard
from .samples import bytes_of, rows_of

_LOOKS = {"": (2, 3, 6)}  # epochs; fetches of each; forwards
_THOROUGH = (4, 12, 24)
_FORWARDS, _LAST_STATE, _MODELS = "randomness.forwards", "randomness.last_state", "randomness.models"
_WORDS = 624  # of a Mersenne twister's state: so many numbers it gives before it makes new ones
_State = tuple[int, int, int]  # a number for all of it, how many more it gives, a number for where they come from
_States = dict[str, Any]  # a _State for each generator


def install() -> None:
    WHEN_TAKEN.append(_keep_state)
    after_import("torch.utils.data._utils.fetch", _after_fetch)
    after_import("torch.nn.parallel.distributed", _after_parallel)
    after_import("torch._dynamo", _after_dynamo)


def _after_fetch(module: ModuleType) -> None:
    """There is no public hook on making a batch of samples, in the rank or in its workers."""
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        _observe_fetch(getattr(module, name))


def _observe_fetch(fetcher: Any) -> None:
    fetch = fetcher.fetch

    @functools.wraps(fetch)
    def fetch_observed(self: Any, index: Any) -> Any:
        watch = here() or in_child()
        if watch is None:
            return fetch(self, index)
        before = guard(_before_fetch, watch, index)
        batch = fetch(self, index)
        if before is not None:
            guard(_after_one_fetch, watch, before)
        return batch

    fetcher.fetch = fetch_observed


def _before_fetch(watch: Watch, index: Any) -> tuple[Iteration, int, _States] | None:
    iteration: Iteration | None = watch.memory.get(FETCHING if watch.is_here else BEGUN)
    if iteration is None:
        return None
    epochs, fetches, _ = _LOOKS.get(watch.mode, _THOROUGH)
    iteration.fetches += 1
    if iteration.epoch >= epochs or iteration.fetches > fetches:
        return None
    size = len(index) if isinstance(index, (list, tuple)) else 1
    return iteration, size, _states(iteration.loader.generators)


def _after_one_fetch(watch: Watch, before: tuple[Iteration, int, _States]) -> None:
    iteration, size, states = before
    after = _states(iteration.loader.generators)
    drawn = {name: (state[0], draws(state, after[name])) for name, state in states.items() if name in after}
    data = {
        **{"loader": iteration.loader.number, "epoch": iteration.epoch, "fetch": iteration.fetches - 1, "size": size},
        "states": {name: state for name, state in drawn.items() if state[1]},
    }
    if watch.is_here:
        watch.note("drawn", **data, worker=None)
    else:
        _write_from_child(watch, {"kind": "drawn", "t": time.time(), **data, "worker": _worker()})


def _worker() -> int | None:
    info = sys.modules["torch"].utils.data.get_worker_info()
    return None if info is None else int(info.id)


def _write_from_child(watch: Watch, line: dict[str, Any]) -> None:
    """What the rank keeps until its next flush is not ours to write: one line, which O_APPEND keeps whole."""
    file = os.open(watch.observations.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())
    finally:
        os.close(file)


def _states(generators: list[Any]) -> _States:
    """The state of each generator that code draws from without naming one, and of the data set's own."""
    states: _States = {"torch": torch_state()}
    random, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    if random is not None:
        states["python"] = _python_state(random)
    if numpy is not None:
        _, keys, position, *_ = numpy.get_state()
        states["numpy"] = (
            zlib.crc32(keys.tobytes(), int(position)),
            _WORDS - int(position),
            zlib.crc32(keys.tobytes()),
        )
    for index, generator in enumerate(generators):
        states[f"own {index}"] = _state_of(generator)
    return states


def torch_state(generator: Any = None) -> _State:
    """The state of torch's generator on the CPU, a Mersenne twister as torch lays it out in memory."""
    state = bytes_of(sys.modules["torch"].get_rng_state() if generator is None else generator.get_state())
    left = int.from_bytes(state[8:12], sys.byteorder, signed=True)
    return zlib.crc32(state), left, zlib.crc32(state[24 : 24 + 8 * _WORDS])


def _python_state(random: Any) -> _State:
    numbers = random.getstate()[1]
    return hash(numbers) & 0xFFFFFFFF, _WORDS - numbers[-1], hash(numbers[:-1])  # of numbers: the same in every process


def _state_of(generator: Any) -> _State:
    if hasattr(generator, "get_state"):
        return torch_state(generator)
    if hasattr(generator, "getstate"):
        return _python_state(generator)
    whole = zlib.crc32(
        repr(generator.bit_generator.state).encode()
    )  # NumPy has many kinds: a change counts as many draws
    return whole, 0, whole


def draws(before: _State, after: _State) -> int:
    """How many numbers were drawn between two states, at least."""
    if before[0] == after[0]:
        return 0
    drawn = before[1] - after[1]
    return max(1, drawn if before[2] == after[2] else drawn + _WORDS)


def _after_parallel(module: ModuleType) -> None:
    """
    Look at what each DDP model is given.

    Patched, because hooks on the model itself would be saved with it. The compiler leaves what we do in it alone.
    """
    model = module.DistributedDataParallel
    forward = model.forward

    @functools.wraps(forward)
    def forward_observed(self: Any, *inputs: Any, **options: Any) -> Any:
        before = _enter(self, inputs, options)
        output = forward(self, *inputs, **options)
        if before is not None:
            _leave(before)
        return output

    model.forward = forward_observed


def _after_dynamo(_: ModuleType) -> None:
    global _enter, _leave
    disable = sys.modules["torch"].compiler.disable
    _enter, _leave = disable(_enter), disable(_leave)


def _enter(model: Any, inputs: Any, options: Any) -> dict[str, Any] | None:
    watch = here()
    return None if watch is None else guard(_before_forward, watch, model, (inputs, options))


def _leave(before: dict[str, Any]) -> None:
    watch = here()
    if watch is not None:
        guard(_after_forward, watch, before)


def _before_forward(watch: Watch, model: Any, given: Any) -> dict[str, Any] | None:
    torch = sys.modules["torch"]
    if not torch.is_grad_enabled() or not model.training:
        return None
    active: Iteration | None = watch.memory.get(ACTIVE)
    group = _group_of(watch, model)
    for iteration in (active, active.companion) if active is not None else ():
        if iteration is not None:
            iteration.forwards += 1
            iteration.synchronised += bool(model.require_backward_grad_sync)
            if group not in iteration.loader.groups:
                iteration.loader.groups.append(group)
                watch.note("trains", loader=iteration.loader.number, ranks=group[1])
    number = watch.memory[_FORWARDS] = watch.memory.get(_FORWARDS, 0) + 1
    if number > _LOOKS.get(watch.mode, _THOROUGH)[2]:
        return None
    state = torch_state()
    found = rows_of(given, wait=watch.thorough)
    data: dict[str, Any] = {"forward": number - 1, "steps": watch.steps, "state": state}
    last = watch.memory.get(_LAST_STATE)
    if last is not None:
        data.update(loop=last[0], loop_drew=draws(last, state))
    if found is not None:
        data["rows"], data["shape"] = found
    if active is None:
        data["at"] = place()
    else:
        data.update(loader=active.loader.number, epoch=active.epoch, batch=active.batches - 1)
    return {**data, "model": group[0], "ranks": group[1]}


def _group_of(watch: Watch, model: Any) -> tuple[int, list[int]]:
    """A number for the model, and the ranks that train it together."""
    models = watch.memory.get(_MODELS)
    if models is None:
        models = watch.memory[_MODELS] = weakref.WeakKeyDictionary()
    group: tuple[int, list[int]] | None = models.get(model)
    if group is None:
        ranks = sys.modules["torch"].distributed.get_process_group_ranks(model.process_group)
        group = models[model] = (len(models), list(ranks))
    return group


def _after_forward(watch: Watch, data: dict[str, Any]) -> None:
    after = watch.memory[_LAST_STATE] = torch_state()
    before = data.pop("state")
    watch.note("fed", **data, state=before[0], drew=draws(before, after))


def _keep_state(watch: Watch) -> None:
    """A batch was taken: what is drawn from now on until the model's forward is drawn for this batch."""
    if watch.memory.get(_FORWARDS, 0) < _LOOKS.get(watch.mode, _THOROUGH)[2]:
        watch.memory[_LAST_STATE] = torch_state()
