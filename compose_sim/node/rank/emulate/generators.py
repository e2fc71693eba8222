"""Draw random numbers for emulated devices from the CPU's generator, until a device gets a different seed.

A script that seeds all devices alike (with torch.manual_seed, or the same seed again for torch.cuda) draws bit for bit
what it would draw on the CPU. A device that gets another seed or a state has a separate generator from then on, as in
CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch

from ...shared.import_hooks import replace
from . import devices
from .devices import CPU, put

_torch: Any = torch
_RealGenerator: Any = _torch._C.Generator

# The states of the devices that have a separate generator.
own: dict[int, torch.Tensor] = {}
_seeds: dict[int, int] = {}

_DRAW_TEXT = (
    "rand randn randint randperm normal normal_ uniform_ random_ exponential_ geometric_ cauchy_ log_normal_ "
    "bernoulli bernoulli_ multinomial poisson rand_like randn_like randint_like dropout dropout_ "
    "feature_dropout alpha_dropout feature_alpha_dropout dropout1d dropout2d dropout3d native_dropout rrelu "
    "rrelu_ gumbel_softmax scaled_dot_product_attention multi_head_attention_forward fractional_max_pool2d "
    "fractional_max_pool3d binomial _sample_dirichlet _standard_gamma trunc_normal_ kaiming_uniform_ "
    "kaiming_normal_ lstm gru rnn_tanh rnn_relu embedding_bag"
)
_DRAW = frozenset(_DRAW_TEXT.split())


class Generator(_torch._C.Generator):  # type: ignore[misc]
    """A generator for an emulated device, or for the CPU; its state is a tensor on the CPU in both cases."""

    _index = CPU

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self._index == CPU else devices.device(self._index)

    def get_state(self) -> Any:
        return put(super().get_state(), CPU)

    def set_state(self, new_state: torch.Tensor) -> Any:
        return super().set_state(checked(new_state))


def checked(state: torch.Tensor) -> torch.Tensor:
    """Return the state for a generator, or raise CUDA's error if it was loaded onto a GPU."""
    if getattr(state, "_composesim_device", None) not in (None, CPU):
        raise TypeError("RNG state must be a torch.ByteTensor")
    return state


class _GeneratorClass(type):
    """The replacement for `torch.Generator`: the real class, except for CUDA devices."""

    def __call__(cls, device: Any = None, **options: Any) -> Any:
        index = CPU if device is None else devices.index_of(device)
        if index == CPU and device is not None and torch.device(device).type != "cpu":
            return _RealGenerator(device=device, **options)
        generator = Generator("cpu")
        generator._index = index
        return generator

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, (_RealGenerator, DefaultGenerator))

    def __subclasscheck__(cls, other: Any) -> bool:
        return issubclass(other, _RealGenerator)


class DefaultGenerator:
    """An element of `torch.cuda.default_generators`: the CPU's generator, or the device's own if there is one."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.device = devices.device(index)

    def get_state(self) -> Any:
        return put(own[self._index].clone() if self._index in own else torch.default_generator.get_state(), CPU)

    def set_state(self, state: torch.Tensor) -> DefaultGenerator:
        set_state(self._index, state)
        return self

    def manual_seed(self, seed: int) -> DefaultGenerator:
        seed_device(self._index, seed)
        return self

    def seed(self) -> int:
        self.manual_seed(_RealGenerator().seed())
        return self.initial_seed()

    def initial_seed(self) -> int:
        return _seeds.get(self._index, torch.default_generator.initial_seed())


def seed_device(index: int, seed: int) -> None:
    """Seed one device; with the initial seed of the CPU's generator, the device shares that generator unchanged."""
    seed = int(seed)
    own.pop(index, None)
    _seeds.pop(index, None)
    if seed != torch.default_generator.initial_seed():
        own[index] = _RealGenerator().manual_seed(seed).get_state()
        _seeds[index] = seed


def set_state(index: int, state: torch.Tensor) -> None:
    """Set the state of one device; with the current state of the CPU's generator, the device shares that generator."""
    state = checked(state).detach().clone()
    own.pop(index, None)
    if not torch.equal(state, torch.default_generator.get_state()):
        own[index] = state


def _share_again(state: torch.Tensor) -> None:
    """Let devices whose state was set before the CPU's share its generator, as they do in the other order."""
    for index in [index for index, mine in own.items() if torch.equal(mine, state)]:
        own.pop(index)
        _seeds.pop(index, None)


def seed_all(seed: int) -> None:
    """Let every device share the CPU's generator again, as `torch.manual_seed` does."""
    own.clear()
    _seeds.clear()


def check(function: Any, options: dict[str, Any], tag: int | None) -> None:
    """Raise CUDA's error if the generator belongs to another device than the tensor."""
    generator = options.get("generator")
    if generator is None:
        return
    if isinstance(generator, DefaultGenerator):
        options["generator"] = None
        return
    wanted = "cpu" if tag == CPU else "cuda"
    if tag is not None and isinstance(generator, _RealGenerator) and generator.device.type != wanted:
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{generator.device.type}'")


def drawing(function: Any, tag: int | None, options: dict[str, Any]) -> Any:
    """Return a context in which random numbers come from the device's generator."""
    if tag in own and options.get("generator") is None and getattr(function, "__name__", "") in _DRAW:
        return _drawing_own(tag)
    return _nothing


_nothing = nullcontext()


@contextmanager
def _drawing_own(tag: int) -> Iterator[None]:
    shared = torch.default_generator
    before = shared.get_state()
    shared.set_state(own[tag])
    try:
        yield
    finally:
        own[tag] = shared.get_state()
        shared.set_state(before)


def install() -> None:
    """Replace `torch.Generator`, and let torch.manual_seed reset the devices' generators."""
    # A class, because scripts use isinstance. The C constructor cannot make a generator for CUDA here.
    _torch.Generator = _GeneratorClass("Generator", (), {"__module__": "torch", "__qualname__": "Generator"})
    seed_cpu = _torch.manual_seed

    def manual_seed(seed: Any) -> Any:
        generator = seed_cpu(seed)
        seed_all(seed)
        return generator

    manual_seed.__doc__ = seed_cpu.__doc__
    _torch.manual_seed = _torch.random.manual_seed = manual_seed
    set_cpu_state = _torch.set_rng_state

    def set_rng_state(new_state: torch.Tensor) -> None:
        set_cpu_state(checked(new_state))
        _share_again(new_state)

    set_rng_state.__doc__ = set_cpu_state.__doc__
    _torch.set_rng_state = _torch.random.set_rng_state = set_rng_state
    get_cpu_state = _torch.get_rng_state
    _torch.get_rng_state = _torch.random.get_rng_state = wraps(get_cpu_state)(lambda: put(get_cpu_state(), CPU))
    cuda: Any = torch.cuda
    answers: dict[str, Any] = {
        "get_rng_state": lambda device="cuda": default(device).get_state(),
        "get_rng_state_all": lambda: [default(index).get_state() for index in range(devices.count())],
        "set_rng_state": lambda new_state, device="cuda": set_state(devices.index_without_use(device), new_state),
        "set_rng_state_all": _set_all_states,
        "manual_seed": lambda seed: seed_device(devices.current(), seed),
        "manual_seed_all": _seed_every,
        "seed": lambda: DefaultGenerator(devices.current()).seed() and None,
        "seed_all": lambda: manual_seed(_RealGenerator().seed()) and None,
        "initial_seed": lambda: default(None).initial_seed(),
        "_get_generator": default,
    }
    replace(answers, cuda, cuda.random)
    cuda.default_generators = tuple(map(DefaultGenerator, range(devices.count())))


def default(device: Any) -> DefaultGenerator:
    """Return the default generator of a device."""
    return DefaultGenerator(devices.index_of(device))


def _seed_every(seed: int) -> None:
    for index in range(devices.count()):
        seed_device(index, seed)


def _set_all_states(new_states: Any) -> None:
    for index, state in enumerate(new_states):
        set_state(devices.checked(index), state)
