"""What do DistributedDataParallel and others do that hand a script's devices to C++? There they are given the CPU's."""

from __future__ import annotations

import functools
from typing import Any

from . import groups


def emulate_ddp(module: Any) -> None:
    """Once torch.nn.parallel.distributed is there: check the devices before the constructor's first collective, in C++."""
    ddp = module.DistributedDataParallel
    real = ddp.__init__

    @functools.wraps(real)
    def construct(self: Any, module: Any, *arguments: Any, **options: Any) -> None:
        parameters = list(module.parameters())
        if parameters and options.get("device_mesh") is None:
            groups.check_tensors(options.get("process_group"), (parameters[:1],), {})
        real(self, module, *arguments, **options)

    ddp.__init__ = construct
