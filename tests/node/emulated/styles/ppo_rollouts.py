"""PPO in CleanRL's style: rollouts per rank, advantages normalized over all ranks, gradients reduced as one tensor."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical

local_rank, world_size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=world_size)
device = torch.device(f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu")
torch.cuda.set_device(device)
torch.backends.cudnn.deterministic = True
NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCH = 4, 16, 2, 32


class Walks:
    """Environments on the CPU: move towards the origin."""

    def __init__(self, seed):
        self.draws = torch.Generator().manual_seed(seed)
        self.state = torch.randn(NUM_ENVS, 3, generator=self.draws)

    def step(self, action):
        move = torch.nn.functional.one_hot(action % 3, 3) * torch.where(action < 3, 0.3, -0.3)[:, None]
        self.state = self.state + move + 0.05 * torch.randn(NUM_ENVS, 3, generator=self.draws)
        done = self.state.norm(dim=1) > 3
        self.state = torch.where(done[:, None], torch.randn(NUM_ENVS, 3, generator=self.draws), self.state)
        return self.state, -self.state.norm(dim=1), done


class RunningMeanStd:
    def __init__(self):
        self.mean, self.var = torch.zeros(3, device=device), torch.ones(3, device=device)
        self.count = torch.tensor(1e-4, dtype=torch.float64, device=device)

    def update(self, x):
        sums = torch.cat([x.double().sum(0), x.double().pow(2).sum(0), torch.tensor([float(len(x))], device=device)])
        dist.all_reduce(sums)
        count, total = sums[-1], self.count + sums[-1]
        mean = sums[:3] / count
        delta, var = mean - self.mean, sums[3:6] / count - mean**2
        self.var = (self.var * self.count + var * count + delta**2 * self.count * count / total) / total
        self.mean, self.count = self.mean + delta * count / total, total

    def __call__(self, x):
        return ((x - self.mean) / torch.sqrt(self.var + 1e-8)).float()


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))
        self.actor = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 6))
        for layer in (*self.critic[::2], *self.actor[::2]):
            nn.init.orthogonal_(layer.weight, 0.5)
            nn.init.constant_(layer.bias, 0.0)

    def forward(self, x, action):
        distribution = Categorical(logits=self.actor(x))
        return distribution.log_prob(action), distribution.entropy(), self.critic(x).squeeze(-1)


torch.manual_seed(1)
agent = Agent().to(device)
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3, eps=1e-5)
for parameter in agent.parameters():
    dist.broadcast(parameter.data, src=0)
envs, normalize, draws = Walks(dist.get_rank()), RunningMeanStd(), torch.Generator().manual_seed(dist.get_rank())
shape = (NUM_STEPS, NUM_ENVS)
obs, actions = torch.zeros(*shape, 3, device=device), torch.zeros(shape, dtype=torch.long, device=device)
logprobs, rewards, dones, values = (torch.zeros(shape, device=device) for _ in range(4))
pinned, copies = torch.empty(NUM_ENVS, 3, pin_memory=True), torch.cuda.Stream(device)
next_obs, next_done = envs.state.to(device), torch.zeros(NUM_ENVS, device=device)
for update in range(4):
    optimizer.param_groups[0]["lr"] = 3e-3 * (1 - update / 4)
    for step in range(NUM_STEPS):
        obs[step], dones[step] = normalize(next_obs), next_done
        with torch.no_grad():
            probs = agent.actor(obs[step]).softmax(-1).cpu()  # sampled on the CPU: a GPU would draw others
            action = torch.multinomial(probs, 1, generator=draws).squeeze(1)
            logprobs[step], _, values[step] = agent(obs[step], action.to(device))
        actions[step] = action
        seen, reward, done = envs.step(action)
        pinned.copy_(seen)
        with torch.cuda.stream(copies):
            next_obs = pinned.to(device, non_blocking=True)
            arrived = copies.record_event()
        rewards[step], next_done = reward.to(device).view(-1), done.to(device).float()
        arrived.wait(torch.cuda.current_stream(device))
        next_obs.record_stream(torch.cuda.current_stream(device))
        arrived.synchronize()  # before the pinned memory is written again
    normalize.update(obs.flatten(0, 1) if update == 0 else next_obs)
    with torch.no_grad():
        advantages, last, next_value = torch.zeros_like(rewards), 0, agent.critic(normalize(next_obs)).squeeze(-1)
        for t in reversed(range(NUM_STEPS)):
            live = 1.0 - (next_done if t == NUM_STEPS - 1 else dones[t + 1])
            following = next_value if t == NUM_STEPS - 1 else values[t + 1]
            last = rewards[t] + 0.95 * following * live - values[t] + 0.95 * 0.95 * live * last
            advantages[t] = last
        returns = advantages + values
        moments = torch.stack([advantages.sum(), advantages.square().sum(), advantages.new_tensor(advantages.numel())])
        dist.all_reduce(moments)
        mean = moments[0] / moments[2]
        advantages = (advantages - mean) / ((moments[1] / moments[2] - mean**2).sqrt() + 1e-8)
    flat = [tensor.reshape(-1, *tensor.shape[2:]) for tensor in (obs, actions, logprobs, advantages, returns)]
    for _ in range(EPOCHS):
        for indices in torch.randperm(NUM_STEPS * NUM_ENVS, generator=draws).to(device).split(MINIBATCH):
            b_obs, b_actions, b_logprobs, b_advantages, b_returns = (tensor[indices] for tensor in flat)
            newlogprob, entropy, newvalue = agent(b_obs, b_actions)
            ratio = (newlogprob - b_logprobs).exp()
            policy = torch.max(-b_advantages * ratio, -b_advantages * ratio.clamp(0.8, 1.2)).mean()
            loss = policy - 0.01 * entropy.mean() + 0.05 * (newvalue - b_returns).square().mean()
            optimizer.zero_grad()
            loss.backward()
            gradients = torch.cat([p.grad.view(-1) for p in agent.parameters() if p.grad is not None])
            dist.all_reduce(gradients, op=dist.ReduceOp.SUM)
            offset = 0
            for p in agent.parameters():
                p.grad.data.copy_(gradients[offset : offset + p.numel()].view_as(p.grad.data) / world_size)
                offset += p.numel()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            if not torch.cuda.is_current_stream_capturing():
                optimizer.step()
    metrics = torch.stack([loss.detach(), rewards.mean(), ((ratio - 1) - ratio.log()).mean().detach()])
    dist.all_reduce(metrics, op=dist.ReduceOp.AVG)
    assert metrics[2] >= -1e-6
    if dist.get_rank() == 0:
        print(f"update {update} loss {metrics[0].item():.6f} reward {metrics[1].item():.4f}", flush=True)
dist.destroy_process_group()
