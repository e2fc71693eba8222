"""A learner sends the parameters of its policy to the actors, and the statistics by which it normalizes observations."""

import torch
import torch.distributed as dist
from torch import nn

OBSERVED, ACTIONS, STEPS, ROUNDS = 4, 3, 16, 12


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(OBSERVED))
        self.register_buffer("square", torch.ones(OBSERVED))
        self.layers = nn.Sequential(nn.Linear(OBSERVED, 16), nn.Tanh(), nn.Linear(16, ACTIONS))

    def follow(self, observed):
        self.mean.lerp_(observed.mean(0), 0.1)
        self.square.lerp_(observed.square().mean(0), 0.1)

    def forward(self, observed):
        return self.layers((observed - self.mean) / self.square.sqrt())


def publish(policy):
    for tensor in policy.state_dict().values():
        dist.broadcast(tensor, src=0)


@torch.no_grad()
def play(policy, draw):
    observed = 5 + 3 * torch.randn(STEPS, OBSERVED, generator=draw)
    chosen = torch.multinomial(policy(observed).softmax(-1), 1, generator=draw)
    reward = -(chosen - observed[:, :1].clamp(0, 2)).abs()
    return torch.cat([observed, chosen.float(), reward], 1)


def learn(policy, optimizer, played):
    observed, chosen, reward = played.split([OBSERVED, 1, 1], 1)
    policy.follow(observed)
    likely = policy(observed).log_softmax(-1).gather(1, chosen.long())
    loss = -(likely * (reward - reward.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2) if rank == 0 else None
    draw = torch.Generator().manual_seed(10 + rank)
    for _ in range(ROUNDS):
        publish(policy)
        own = play(policy, draw) if rank else torch.zeros(STEPS, OBSERVED + 2)
        parts = [torch.empty_like(own) for _ in range(world)]
        dist.all_gather(parts, own)
        if rank == 0:
            learn(policy, optimizer, torch.cat(parts[1:]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
