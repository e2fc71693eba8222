"""Print one step per line until the process that started the ranks is killed."""

import json
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weight = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
step = 0
while True:
    weight.grad = torch.ones(1)
    dist.all_reduce(weight.grad)
    optimizer.step()
    step += 1
    if dist.get_rank() == 0:
        print(json.dumps({"step": step}), flush=True)
    time.sleep(0.05)
