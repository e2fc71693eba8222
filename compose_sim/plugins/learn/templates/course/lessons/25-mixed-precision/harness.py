"""Train in float16 with the Scaler of script.py, where each rank has the gradients of its part of the layers."""

import math

import torch
import torch.distributed as dist
from measure import Traffic, report
from script import Scaler

STEPS, INTERVAL = 40, 4


def gradients_of(step: int, scale: float, owner: int) -> list[torch.Tensor]:
    """Return what backward leaves: in float16, so that large numbers overflow, and as float32."""
    generator = torch.Generator().manual_seed(100 * step + owner)
    large = 3.0 if step % 7 == owner else 0.2  # each rank has large gradients in other steps
    whole = [large * torch.rand(size, generator=generator) * scale for size in (5, 30)]
    if step in (11, 12) and owner == 1:
        whole[0][2] = math.nan
    return [each.half().float() for each in whole]


def main() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    scaler, traffic = Scaler(2.0**16, INTERVAL), Traffic()
    scale, good, skipped = 2.0**16, 0, 0
    wrong_steps = wrong_scales = wrong_gradients = 0
    for step in range(STEPS):
        wrong_scales += scaler.scale != scale
        gradients = gradients_of(step, scale, rank)
        wanted = [each / scale for each in gradients]
        finite = all(bool(each.isfinite().all()) for owner in range(ranks) for each in gradients_of(step, scale, owner))
        scaler.scale = scale  # a wrong one would only bring more of them
        with traffic:
            steps = scaler.unscale(gradients)
        wrong_steps += bool(steps) != finite
        skipped += not finite
        if finite:
            wrong_gradients += sum(not torch.equal(mine, each) for mine, each in zip(gradients, wanted, strict=True))
        good = good + 1 if finite else 0
        scale, good = (scale / 2, 0) if not finite else (scale * 2, 0) if good == INTERVAL else (scale, good)
    report(
        wrong_steps=wrong_steps,
        wrong_scales=wrong_scales + (scaler.scale != scale),
        wrong_gradients=wrong_gradients,
        steps_skipped_by_right=skipped,
        collectives_per_step=len(traffic.collectives) / STEPS,
        elements_per_step=sum(elements for _, elements, _ in traffic.collectives) / STEPS,
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
