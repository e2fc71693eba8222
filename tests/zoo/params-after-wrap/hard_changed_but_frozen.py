"""Many changes after wrapping, none of them trained: weights loaded in place, a new activation, a frozen teacher."""

import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Student(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(7, 12)
        self.embed.requires_grad_(False)
        self.act: nn.Module = nn.ReLU()
        self.out = nn.Linear(12, 7)
        self.teacher: nn.Module | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.out(self.act(self.embed(inputs)))
        with torch.no_grad():
            targets = self.teacher(inputs)
        return nn.functional.mse_loss(outputs, targets)


def pretrained() -> io.BytesIO:
    torch.manual_seed(9)
    file = io.BytesIO()
    torch.save(nn.Linear(7, 12).state_dict(), file)
    file.seek(0)
    return file


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    data = TensorDataset(torch.randn(192, 7))
    model = DistributedDataParallel(Student())
    model.module.embed.load_state_dict(torch.load(pretrained(), weights_only=True))
    model.module.act = nn.GELU()
    torch.manual_seed(6)
    model.module.teacher = nn.Linear(7, 7).requires_grad_(False)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for (inputs,) in loader:
            loss = model(inputs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"{epoch}: {total.item() / dist.get_world_size():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
