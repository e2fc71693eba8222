"""Read the states of the random generators that code uses without naming one. Nothing is drawn."""

from __future__ import annotations

import sys
import zlib

from ....node.rank.observers.randomness import generator_states, torch_state
from ....node.rank.observers.samples import bytes_of


def random_states() -> dict[str, int]:
    """Return a hash of the state of each: of Python, NumPy, torch on the CPU, and on the current GPU if CUDA is in use."""
    states = {name: state[0] for name, state in generator_states([]).items()}
    states["torch"] = torch_state()[0]
    cuda = sys.modules["torch"].cuda
    if cuda.is_initialized() and not cuda.is_current_stream_capturing():
        own = zlib.crc32(bytes_of(cuda.get_rng_state()))
        states.update({} if own == states["torch"] else {"cuda": own})  # emulated GPUs may share that of the CPU
    return states
