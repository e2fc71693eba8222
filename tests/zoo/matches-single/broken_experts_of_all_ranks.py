"""Each rank has one expert for the samples of all ranks, whose gradient adds up while FSDP averages the others."""

# expects: matches-single

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH, ROWS, CLASSES, STEPS = 12, 24, 5, 20


class Exchange(torch.autograd.Function):
    """Give the i-th chunk to rank i, and its gradient back."""

    @staticmethod
    def forward(context, chunks):
        received = torch.empty_like(chunks)
        dist.all_to_all_single(received, chunks.contiguous())
        return received

    @staticmethod
    def backward(context, gradient):
        returned = torch.empty_like(gradient)
        dist.all_to_all_single(returned, gradient.contiguous())
        return returned


class Mixture(nn.Module):
    """An expert for each rank; every rank sends an equal share of its samples to each."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(50 + dist.get_rank())
            self.expert = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, samples):
        return samples + Exchange.apply(self.expert(Exchange.apply(samples)))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(8, WIDTH)
        self.mixture = Mixture()
        self.leave = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs):
        return self.leave(self.mixture(torch.tanh(self.enter(inputs))))


def draw(generator):
    inputs = torch.randn(ROWS, 8, generator=generator)
    return inputs, inputs[:, :CLASSES].argmax(1)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = Classifier()
    experts = list(model.mixture.parameters())
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)), ignored_params=set(experts))
    shared = [each for name, each in model.named_parameters() if not name.startswith("mixture")]
    optimizer = torch.optim.SGD([{"params": shared}, {"params": experts}], lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(10 + dist.get_rank())
    for step in range(STEPS):
        inputs, labels = draw(generator)
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"rank {dist.get_rank()}, step {step}: {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
