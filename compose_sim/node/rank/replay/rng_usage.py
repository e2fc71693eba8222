"""Detect whether the training itself draws random numbers, as dropout does: then one rank with all batches gets other results.

Numbers drawn between a batch and the optimizer's step belong to the training; what a DataLoader draws for batches does not.
"""

from __future__ import annotations

import gc
import random
import sys
from typing import Any

from ..context import RankContext
from ..torch_hooks import points


class RngUsage:
    """The random generators whose states change while a window is open."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.is_open = False
        self._before: dict[str, Any] = {}
        self._private: list[Any] | None = None

    def open(self) -> None:
        """Open the window: what is drawn from now on is drawn by the training."""
        self._before = self._states()
        self.is_open = True

    def close(self) -> None:
        """Close the window, and add the generators that were drawn from to `seen`."""
        if not self.is_open:
            return
        self.is_open = False
        now = self._states()
        self.seen |= {name for name, state in self._before.items() if not _equal(state, now.get(name))}

    def take(self) -> tuple[str, ...]:
        """Return what was seen since the last call."""
        seen, self.seen = self.seen, set()
        return tuple(sorted(seen))

    def notice(self, _: RankContext, call: points.TorchCall) -> None:
        """Notice draws from the script's own torch.Generator objects too: nothing lists them, but functions take them as arguments."""
        if self.is_open and call.options.get("generator") is not None:
            self.seen.add("torch.Generator")

    def _states(self) -> dict[str, Any]:
        torch, states = sys.modules["torch"], global_states()
        if torch.cuda.is_initialized():
            states["torch on CUDA"] = torch.cuda.get_rng_state()
        if self._private is None:
            self._private = _private_generators(sys.modules.get("numpy"))
        for index, generator in enumerate(self._private):
            bits = getattr(generator, "bit_generator", None)
            states[f"{type(generator).__name__} {index}"] = generator.getstate() if bits is None else repr(bits.state)
        return states


def global_states() -> dict[str, Any]:
    """Return the states of the generators that all code shares, on the CPU."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "random": random.getstate()}
    if numpy is not None and hasattr(numpy, "random"):
        states["numpy"] = repr(numpy.random.get_state(legacy=False))
    return states


def _private_generators(numpy: Any) -> list[Any]:
    """Return the generators of NumPy and `random` that the script has made. Those of samplers do not change while it trains."""
    kinds: tuple[type, ...] = (random.Random,)
    if numpy is not None and hasattr(numpy, "random"):
        kinds += (numpy.random.Generator,)
    shared = random.getstate.__self__  # type: ignore[attr-defined]
    found = [each for each in gc.get_objects() if issubclass(type(each), kinds) and each is not shared]
    return [each for each in found if type(each) is not random.SystemRandom]


def _equal(one: Any, other: Any) -> bool:
    if hasattr(one, "numel"):
        return other is not None and bool((one == other).all())
    return bool(one == other)
