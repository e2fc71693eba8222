"""PPO: every rank collects its own rollouts, DDP policy."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel as DDP


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.pi = nn.Linear(32, 2)
        self.v = nn.Linear(32, 1)

    def forward(self, o):
        h = self.body(o)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class Env:
    def __init__(self, n, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.o = torch.randn(n, 4, generator=self.g)

    def step(self, a):
        r = ((self.o[:, 0] > 0).long() == a).float()
        self.o = torch.randn(self.o.shape, generator=self.g)
        return self.o, r


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
agent = Agent()
model = DDP(agent)
opt = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-5)
torch.manual_seed(1 + rank)
env = Env(8, 77 + rank)
for update in range(4):
    obs, act, logp, rew, val = [], [], [], [], []
    for t in range(16):
        with torch.no_grad():
            d, v = agent(env.o)
            a = d.sample()
        obs.append(env.o)
        act.append(a)
        logp.append(d.log_prob(a))
        val.append(v)
        _, r = env.step(a)
        rew.append(r)
    observed, A, L, R, V = map(torch.cat, (obs, act, logp, rew, val))
    adv = R - V
    for ep in range(2):
        for idx in torch.randperm(len(observed)).chunk(4):
            d, v = model(observed[idx])
            ratio = (d.log_prob(A[idx]) - L[idx]).exp()
            a = adv[idx]
            a = (a - a.mean()) / (a.std() + 1e-8)
            pg = torch.max(-a * ratio, -a * ratio.clamp(0.8, 1.2)).mean()
            loss = pg + 0.5 * (v - R[idx]).pow(2).mean() - 0.01 * d.entropy().mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
    m = R.mean()
    dist.all_reduce(m)
    if rank == 0:
        print("update", update, "reward", m.item() / dist.get_world_size())
dist.destroy_process_group()
