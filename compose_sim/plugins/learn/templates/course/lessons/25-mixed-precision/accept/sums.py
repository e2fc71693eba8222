"""Right: the sum of zero times each gradient is NaN if any of them is not finite, also over the ranks."""

import torch
import torch.distributed as dist
from torch import Tensor


class Scaler:
    """Halve the scale when gradients overflow, and double it after `interval` steps in which they did not."""

    def __init__(self, scale: float = 2.0**16, interval: int = 4) -> None:
        self.scale = scale  # what the loss is multiplied with before backward
        self.interval = interval
        self.good_steps = 0

    def unscale(self, gradients: list[Tensor]) -> bool:
        """Divide the float32 gradients of this rank by the scale, in place; return whether to step, and update the scale."""
        for gradient in gradients:
            gradient /= self.scale
        zero = torch.zeros(1)
        for gradient in gradients:
            zero += (gradient * 0).sum()
        found = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(found, zero)
        is_finite = not any(each.isnan() for each in found)
        if not is_finite:
            print(f"rank {dist.get_rank()} skips a step, whose scale was {self.scale:g}", flush=True)
        self.good_steps = self.good_steps + 1 if is_finite else 0
        if not is_finite:
            self.scale /= 2
        elif self.good_steps == self.interval:
            self.scale, self.good_steps = self.scale * 2, 0
        return is_finite
