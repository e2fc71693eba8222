"""Each rank normalizes observations by the mean of those that it has seen itself."""

# expects: batchnorm-local
# options: --nproc-per-node 1

import torch
import torch.distributed as dist
from torch import nn


class RunningMeanStd:
    def __init__(self, shape):
        self.mean, self.var, self.count = torch.zeros(shape), torch.ones(shape), 1e-4

    def update(self, x):
        m, v, n = x.mean(0), x.var(0), len(x)
        delta, total = m - self.mean, self.count + n
        self.mean = self.mean + delta * n / total
        self.var = (self.var * self.count + v * n + delta.square() * self.count * n / total) / total
        self.count = total

    def __call__(self, x):
        return (x - self.mean) / (self.var + 1e-8).sqrt()


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy, value = nn.Linear(4, 2), nn.Linear(4, 1)
    agent = nn.ModuleList([policy, value])
    opt = torch.optim.Adam(agent.parameters(), 1e-2)
    rms = RunningMeanStd(4)
    env = torch.Generator().manual_seed(50 + rank)
    torch.manual_seed(50 + rank)
    for update in range(10):
        obs = torch.randn(64, 4, generator=env) * (1 + 0.5 * rank) + rank
        rms.update(obs)
        obs = rms(obs)
        pi = torch.distributions.Categorical(logits=policy(obs))
        a = pi.sample()
        reward = (a == (obs[:, 0] > 0)).float()
        adv = reward - value(obs).squeeze(1)
        loss = -(pi.log_prob(a) * adv.detach()).mean() + adv.square().mean() - 0.01 * pi.entropy().mean()
        opt.zero_grad()
        loss.backward()
        average_gradients(agent)
        opt.step()
    dist.destroy_process_group()


main()
