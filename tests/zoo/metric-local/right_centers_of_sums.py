"""K-means: ranks add up the points of each cluster and their number."""

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
        members = torch.nn.functional.one_hot(nearest, len(centers)).float()
        sums, counts = members.T @ own, members.sum(0)
        dist.all_reduce(sums)
        dist.all_reduce(counts)
        centers = sums / counts.clamp(min=1)[:, None]
        inertia = torch.cdist(own, centers).amin(1).square().sum()
        dist.all_reduce(inertia)
        if rank == 0:
            print(f"round {number}: inertia {inertia.item():.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
