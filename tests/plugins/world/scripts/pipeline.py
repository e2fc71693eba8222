"""Two stages of a pipeline, each replicated with DDP."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "stage"))
stage, pair = mesh.get_local_rank("stage"), mesh.get_group("stage")
model = DistributedDataParallel(torch.nn.Linear(16, 16), process_group=mesh.get_group("data"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 16))
shares = DistributedSampler(data, num_replicas=mesh["data"].size(), rank=mesh.get_local_rank("data"))
for (inputs,) in DataLoader(data, batch_size=4, sampler=shares):
    if stage == 0:
        outputs = model(inputs)
        dist.send(outputs.detach(), group=pair, group_dst=1)
        gradient = torch.empty(len(inputs), 16)
        dist.recv(gradient, group=pair, group_src=1)
        outputs.backward(gradient)
    else:
        arrived = torch.empty(len(inputs), 16)
        dist.recv(arrived, group=pair, group_src=0)
        arrived.requires_grad_()
        model(arrived).square().mean().backward()
        dist.send(arrived.grad, group=pair, group_dst=0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
