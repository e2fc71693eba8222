"""The backbone is frozen when DDP wraps the model and unfrozen later: DDP never reduces its gradients."""
# expects: params-after-wrap
# also: params-in-sync, matches-single

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class FineTuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(9, 18), nn.SiLU())
        self.head = nn.Linear(18, 3)

    def forward(self, x):
        return self.head(self.backbone(x))

    def freeze(self, frozen):
        for parameter in self.backbone.parameters():
            parameter.requires_grad = not frozen


class Phases:
    def __init__(self, data):
        self.model = FineTuned()
        self.model.freeze(True)
        self.wrapped = DDP(self.model)
        self.optimizer = torch.optim.SGD(self.model.head.parameters(), lr=0.1)
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=8, sampler=self.sampler)

    def unfreeze(self):
        self.model.freeze(False)
        self.optimizer.add_param_group({"params": self.model.backbone.parameters(), "lr": 0.01})

    def epoch(self, number):
        self.sampler.set_epoch(number)
        for x, y in self.loader:
            loss = F.cross_entropy(self.wrapped(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.detach()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    x = torch.randn(192, 9)
    phases = Phases(TensorDataset(x, x[:, :3].argmax(1)))
    for number in range(4):
        if number == 2:
            phases.unfreeze()
        loss = phases.epoch(number)
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            print(f"epoch {number} loss {loss.item() / dist.get_world_size():.4f}")
    del phases
    dist.destroy_process_group()


main()
