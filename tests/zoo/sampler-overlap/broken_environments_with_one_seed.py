"""A2C with gradients reduced by hand: environments and actions have the same seed on every rank, so all collect the same."""

# expects: sampler-overlap

import torch
import torch.distributed as dist
import torch.nn as nn


class CartLike:
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.state = self.reset()

    def reset(self):
        self.state = torch.randn(4, generator=self.generator) * 0.1
        return self.state

    def step(self, action):
        push = 1.0 if action == 1 else -1.0
        self.state = self.state * 0.95 + torch.tensor([push, 0.5 * push, -push, 0.1]) * 0.1
        return self.state, 1.0 - self.state.abs().sum().item()


class RunningNorm:
    """Count, sum and sum of squares over the observations of all ranks."""

    def __init__(self):
        self.moments = torch.zeros(9)

    def update(self, observations):
        part = torch.cat([torch.tensor([float(len(observations))]), observations.sum(0), (observations**2).sum(0)])
        dist.all_reduce(part)
        self.moments += part

    def __call__(self, x):
        n = self.moments[0].clamp(min=1)
        mean = self.moments[1:5] / n
        return (x - mean) / ((self.moments[5:] / n - mean**2).clamp(min=1e-4).sqrt())


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh())
        self.pi, self.v = nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, x):
        h = self.body(x)
        return torch.distributions.Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def average_gradients(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for p in model.parameters():
        p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
        offset += p.numel()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = ActorCritic()
for p in model.parameters():
    dist.broadcast(p.data, src=0)
optimizer = torch.optim.RMSprop(model.parameters(), 3e-3)
torch.manual_seed(100)
env, norm = CartLike(1000), RunningNorm()
for iteration in range(8):
    observations, actions, rewards = [env.reset()], [], []
    for t in range(10):
        with torch.no_grad():
            policy, _ = model(norm(observations[-1]))
        action = policy.sample()
        observation, reward = env.step(action.item())
        observations.append(observation)
        actions.append(action)
        rewards.append(reward)
    batch = torch.stack(observations[:-1])
    norm.update(batch)
    policy, value = model(norm(batch))
    returns, running = [], 0.0
    for reward in reversed(rewards):
        running = reward + 0.9 * running
        returns.insert(0, running)
    returns = torch.tensor(returns)
    advantage = returns - value.detach()
    loss = (
        -(policy.log_prob(torch.stack(actions)) * advantage).mean()
        + 0.5 * (returns - value).pow(2).mean()
        - 0.01 * policy.entropy().mean()
    )
    optimizer.zero_grad()
    loss.backward()
    average_gradients(model)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
dist.destroy_process_group()
