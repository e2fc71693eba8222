"""K-means: each rank's centers are means over its own points, and the ranks' centers are averaged."""

# expects: metric-local

import torch
import torch.distributed as dist

CENTERS = torch.tensor([[0.5, 0.5], [3.0, 3.0], [1.0, 4.0]])


def points():
    draw = torch.Generator().manual_seed(0)
    clusters = ((0.0, 0.0, 300), (4.0, 4.0, 100), (0.0, 5.0, 200))
    return torch.cat([torch.randn(count, 2, generator=draw) + torch.tensor([x, y]) for x, y, count in clusters])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    own = points().chunk(world)[rank]
    centers = CENTERS
    for number in range(8):
        nearest = torch.cdist(own, centers).argmin(1)
        new = [
            own[nearest == each].mean(0) if (nearest == each).any() else centers[each] for each in range(len(centers))
        ]
        centers = torch.stack(new)
        dist.all_reduce(centers)
        centers /= world
        inertia = torch.cdist(own, centers).amin(1).square().sum()
        dist.all_reduce(inertia)
        if rank == 0:
            print(f"round {number}: inertia {inertia.item():.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
