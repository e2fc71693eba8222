"""A mixture of experts, one per rank: tokens travel by all_to_all_single with uneven splits and come back."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_to_all_single

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
gate = nn.Linear(16, size).cuda()
experts = [nn.Linear(16, 16) for _ in range(size)]
expert = experts[rank].cuda()
optimizer = torch.optim.SGD([*gate.parameters(), *expert.parameters()], lr=0.1)
torch.manual_seed(rank)
for step in range(4):
    x = torch.randn(32, 16).cuda()
    weights, chosen = gate(x).softmax(-1).max(-1)
    order = torch.argsort(chosen, stable=True)
    send = torch.bincount(chosen, minlength=size)
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send)
    sends, receives = send.tolist(), receive.tolist()
    routed = x.new_empty(sum(receives), 16)
    routed = all_to_all_single(routed, x[order], output_split_sizes=receives, input_split_sizes=sends)
    back = all_to_all_single(x.new_empty(32, 16), expert(routed), output_split_sizes=sends, input_split_sizes=receives)
    output = torch.zeros_like(x).index_copy(0, order, back) * weights[:, None]
    loss = (output - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in gate.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
