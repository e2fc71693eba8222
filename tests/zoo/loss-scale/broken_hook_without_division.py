"""A communication hook sums gradients in half precision without dividing: steps are world-size times too long."""

# expects: loss-scale
# also: matches-single

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def compressed(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    small = bucket.buffer().to(torch.bfloat16)
    future = dist.all_reduce(small, group=group, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))


def main() -> None:
    torch.manual_seed(2)
    images = torch.rand(192, 1, 8, 8)
    data = TensorDataset(images, (images.mean((1, 2, 3)) > 0.5).long())
    sampler = DistributedSampler(data, seed=2)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 3), torch.nn.ReLU(), torch.nn.AvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(54, 2)
    )
    model = DistributedDataParallel(net)
    model.register_comm_hook(dist.group.WORLD, compressed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
