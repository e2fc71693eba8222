"""A consistency loss goes through model.module in a second backward pass, after DDP has reduced: it stays local."""
# expects: wrapper-bypassed
# also: params-in-sync, matches-single

import torch
from torch import distributed, nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 20), nn.GELU(), nn.LayerNorm(20), nn.Linear(20, 3))


def run(epochs: int = 2) -> None:
    rank, world = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(5)
    points = torch.randn(256, 6)
    data = TensorDataset(points, points[:, :3].abs().argmax(1))
    model = DistributedDataParallel(build())
    torch.manual_seed(100 + rank)  # the noise differs between ranks
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=sampler)
    optimizer = optim.Adam(model.parameters(), 2e-3)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            logits = model(inputs)
            loss = nn.functional.cross_entropy(logits, labels)
            loss.backward()
            noisy = model.module(inputs + 0.1 * torch.randn_like(inputs))
            consistency = nn.functional.mse_loss(noisy, logits.detach())
            consistency.backward()
            optimizer.step()
        shown = torch.stack([loss.detach(), consistency.detach()]) / world
        distributed.all_reduce(shown)
        if rank == 0:
            print(f"epoch {epoch} loss {shown[0]:.3f} consistency {shown[1]:.3f}")


distributed.init_process_group("gloo")
run()
distributed.destroy_process_group()
