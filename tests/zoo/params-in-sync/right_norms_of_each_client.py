"""FedBN: some clients of each round train, all average what is no normalization layer, and keep that to themselves."""

import torch
import torch.distributed as dist
from torch import nn

ROUNDS = 8


class Client:
    def __init__(self, number):
        draw = torch.Generator().manual_seed(10 + number)
        self.rows = 60 + 20 * number
        self.x = torch.randn(self.rows, 10, generator=draw) * (1 + number)
        self.y = (self.x.sum(1) > 0).long()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.BatchNorm1d(10), nn.Linear(10, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 2))

    def shared(self):
        return [p for layer in self.net if isinstance(layer, nn.Linear) for p in layer.parameters()]

    def train(self, weights):
        with torch.no_grad():
            for parameter, weight in zip(self.shared(), weights):
                parameter.copy_(weight)
        opt = torch.optim.SGD(self.net.parameters(), 0.05)
        for rows in torch.arange(self.rows).split(20):
            loss = nn.functional.cross_entropy(self.net(self.x[rows]), self.y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
        return [p.detach() - weight for p, weight in zip(self.shared(), weights)]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    client = Client(rank)
    weights = [p.detach().clone() for p in client.shared()]
    choose = torch.Generator().manual_seed(9)
    for _ in range(ROUNDS):
        chosen = torch.randperm(world, generator=choose)[: max(1, 3 * world // 4)].tolist()
        changes = client.train(weights) if rank in chosen else [torch.zeros_like(each) for each in weights]
        share = torch.tensor(float(client.rows if rank in chosen else 0))
        total = share.clone()
        dist.all_reduce(total)
        for weight, change in zip(weights, changes):
            change *= share / total
            dist.all_reduce(change)
            weight += change
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
