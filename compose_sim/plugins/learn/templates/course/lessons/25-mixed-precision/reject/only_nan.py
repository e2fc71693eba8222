"""Wrong: an infinite gradient is no NaN."""

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
        overflows = torch.zeros(())
        for gradient in gradients:
            overflows += (torch.isnan(gradient)).any()
        dist.all_reduce(overflows)  # on every rank, whatever it has found
        is_finite = not overflows
        if not is_finite:
            print(f"rank {dist.get_rank()} skips a step, whose scale was {self.scale:g}", flush=True)
        self.good_steps = self.good_steps + 1 if is_finite else 0
        if not is_finite:
            self.scale /= 2
        elif self.good_steps == self.interval:
            self.scale, self.good_steps = self.scale * 2, 0
        return is_finite
