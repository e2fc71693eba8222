"""REINFORCE whose gradients are added over the ranks and never divided."""

# expects: gradient-mean

import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(policy.parameters(), 0.01)
generator = torch.Generator().manual_seed(50 + rank)
torch.manual_seed(rank)


def rollout():
    state = torch.randn(16, 3, generator=generator)
    choice = torch.distributions.Categorical(logits=policy(state))
    action = choice.sample()
    reward = (action == (state.sum(1) > 0).long()).float()
    return choice.log_prob(action), reward


for update in range(8):
    log_prob, reward = rollout()
    loss = -(log_prob * (reward - reward.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    for p in policy.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
    optimizer.step()
    if rank == 0:
        print(update, loss.item())
dist.destroy_process_group()
