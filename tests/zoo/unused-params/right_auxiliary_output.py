"""The loss uses both outputs of the model: every layer gets a gradient."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(8, 16)
        self.main = nn.Linear(16, 3)
        self.auxiliary = nn.Linear(16, 1)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.shared(inputs))
        return self.main(hidden), self.auxiliary(hidden)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(256, 8)
    data = TensorDataset(inputs, inputs[:, :3].argmax(dim=1), inputs.norm(dim=1, keepdim=True))
    sampler = DistributedSampler(data)
    model = DistributedDataParallel(TwoHeads())
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for features, labels, sizes in DataLoader(data, batch_size=16, sampler=sampler):
            logits, size = model(features)
            loss = nn.functional.cross_entropy(logits, labels) + 0.3 * nn.functional.mse_loss(size, sizes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        shown = loss.detach() / dist.get_world_size()
        dist.all_reduce(shown)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {shown.item():.4f}")
    dist.destroy_process_group()


main()
