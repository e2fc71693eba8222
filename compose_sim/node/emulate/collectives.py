"""What do collectives do that NCCL has and gloo lacks? They are composed from those that gloo has, as this table says."""

from __future__ import annotations

import functools
from typing import Any

from . import groups

# What a script calls with tensors; each is checked as NCCL checks it.
CHECKED_TEXT = (
    "all_reduce broadcast reduce all_gather all_gather_into_tensor gather scatter reduce_scatter "
    "reduce_scatter_tensor all_to_all all_to_all_single send recv isend irecv all_reduce_coalesced "
    "all_gather_coalesced _all_gather_base _reduce_scatter_base all_gather_single reduce_scatter_single"
)
CHECKED = tuple(CHECKED_TEXT.split())


def emulate(distributed: Any) -> None:
    """Once torch.distributed is there: check what scripts give to collectives, as NCCL would."""
    c10d = distributed.distributed_c10d
    for name in CHECKED:
        real = getattr(distributed, name, None)
        if real is not None:
            checked = _checked(real)
            for module in (distributed, c10d):
                if getattr(module, name, None) is real:
                    setattr(module, name, checked)


def _checked(real: Any) -> Any:
    @functools.wraps(real)
    def checked(*arguments: Any, **options: Any) -> Any:
        group = options.get("group")
        groups.check_tensors(group, arguments, options)
        return real(*arguments, **options)

    return checked
