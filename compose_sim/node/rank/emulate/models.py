"""What does DistributedDataParallel do, whose collectives are C++'s? Its first one checks the devices of a model, as NCCL does."""

from __future__ import annotations

import functools
from typing import Any

from . import groups


def emulate_ddp(module: Any) -> None:
    """
    Once torch.nn.parallel.distributed is there: check the devices before the constructor's first collective, in C++.

    The constructor has looked at its arguments by then, and raised its own errors; there is no hook between. The function has
    had this name, and the group and the parameters as its first arguments, since torch 1.11.
    """
    name = "_verify_param_shape_across_processes"
    real = getattr(module, name, None)
    if real is None:
        return

    @functools.wraps(real)
    def verify(process_group: Any, tensors: Any, *arguments: Any, **options: Any) -> Any:
        groups.check_tensors(process_group, (list(tensors)[:1],), {})
        return real(process_group, tensors, *arguments, **options)

    setattr(module, name, verify)
