"""After a spike of the loss, goes back to the last checkpoint, and skips the batches around the spike, as PaLM's training did."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
x = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, x[:, :1].sin())


class Order(Sampler[int]):
    def __init__(self) -> None:
        self.epoch, self.begin = 0, 0

    def __iter__(self):
        order = torch.randperm(256, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        return iter(order[self.begin * 8 * world :][rank::world])

    def __len__(self) -> int:
        return 256 // world - 8 * self.begin


class Run:
    def __init__(self) -> None:
        torch.manual_seed(0)
        net = nn.Linear(8, 1)
        if self.restored():
            state = torch.load("last.pt")
            net.load_state_dict(state["net"])
        self.model = DDP(net)
        self.order = Order()
        self.loader = DataLoader(data, batch_size=8, sampler=self.order)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def restored(self) -> bool:
        return spiked

    def epoch(self, epoch: int, begin: int) -> bool:
        global spiked
        self.order.epoch, self.order.begin = epoch, begin
        for number, (a, b) in enumerate(self.loader, begin + 1):
            self.opt.zero_grad()
            nn.functional.mse_loss(self.model(a), b).backward()
            self.opt.step()
            if number == 4 and epoch == 2 and rank == 0:
                torch.save({"net": self.model.module.state_dict()}, "last.pt")
            if number == 7 and epoch == 2 and not spiked:
                spiked = True
                dist.barrier()
                return False
        return True


spiked = False
run = Run()
for epoch in range(4):
    if not run.epoch(epoch, 0):
        run = Run()
        run.epoch(epoch, 10)
dist.destroy_process_group()
