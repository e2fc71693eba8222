"""Flip single bits in what layers of a rank compute, now and then, as a faulty core or memory cell does."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_BITS = {
    "float32": ("int32", 22),
    "float64": ("int64", 51),
    "float16": ("int16", 9),
    "bfloat16": ("int16", 6),
}  # of the mantissa


def begin(note: Path) -> None:
    """Flip the first bit of a mantissa in the output of one layer call in four, until the note is removed."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return

    def flip(module: Any, _: Any, output: Any) -> None:
        if not note.exists():
            handle.remove()
        elif (
            os.urandom(1)[0] < 64
            and next(module.children(), None) is None
            and next(module.parameters(False), None) is not None
        ):
            flip_one(torch, output)

    handle = torch.nn.modules.module.register_module_forward_hook(flip)


def flip_one(torch: Any, output: Any) -> None:
    """Flip one bit of a tensor in place, without telling autograd: the hardware does not tell it either."""
    kind = _BITS.get(str(getattr(output, "dtype", ""))[6:])
    if kind is None or type(output) is not torch.Tensor or not output.numel() or not output.is_contiguous():
        return
    words = output.data.view(-1).view(getattr(torch, kind[0]))
    words[int.from_bytes(os.urandom(4), "little") % words.numel()] ^= 1 << kind[1]
