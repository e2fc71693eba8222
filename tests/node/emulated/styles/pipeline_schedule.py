"""torch.distributed.pipelining: a stage per rank, a GPipe schedule, the loss at the last stage."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}")
torch.cuda.set_device(device)
dist.init_process_group("nccl")
torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)]
share = len(layers) // size
module = nn.Sequential(*layers[rank * share : (rank + 1) * share]).to(device)
# With shapes that are not named, stages exchange them as objects, for which torch needs numpy.
shape = torch.zeros(2, 16, device=device, requires_grad=True)
stage = PipelineStage(module, rank, size, device, input_args=shape if rank else shape.detach(), output_args=shape)
schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
for step in range(4):
    x, target = torch.randn(8, 16), torch.randn(8, 16)
    losses = []
    optimizer.zero_grad()
    first, last = rank == 0, rank == size - 1
    inputs = (x.to(device),) if first else ()
    schedule.step(*inputs, **({"target": target.to(device), "losses": losses} if last else {}))
    optimizer.step()
    mean = torch.stack(losses).mean().detach() if last else torch.zeros((), device=device)
    dist.broadcast(mean, src=size - 1)
    if first:
        print(f"step {step} loss {mean.item():.6f}", flush=True)
dist.destroy_process_group()
